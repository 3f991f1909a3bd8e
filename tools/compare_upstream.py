"""A training step and generation of small transformers models with and without our kernels in its own mechanism.

Needs the kernels package: `python tools/compare_upstream.py`. Prints processor time on one thread, and the largest
differences of losses and gradients.
"""

import sys
import time

import torch
import transformers

from holdfast.integrations import kernels

SMALL = {"vocab_size": 65, "hidden_size": 64, "num_hidden_layers": 2, "use_cache": False}
MODELS = {
    "Mamba": lambda: transformers.MambaForCausalLM(transformers.MambaConfig(state_size=16, **SMALL)),
    "Mamba-2": lambda: transformers.Mamba2ForCausalLM(
        transformers.Mamba2Config(state_size=16, num_heads=8, head_dim=16, n_groups=1, chunk_size=64, **SMALL)
    ),
    "Qwen3-Next": lambda: transformers.Qwen3NextForCausalLM(
        transformers.Qwen3NextConfig(
            intermediate_size=64, num_attention_heads=2, num_key_value_heads=1, head_dim=32, linear_num_value_heads=4,
            linear_num_key_heads=2, linear_key_head_dim=32, linear_value_head_dim=32, num_experts=0,
            layer_types=["linear_attention"] * 2, mlp_only_layers=[0, 1], **SMALL,
        )
    ),
}  # fmt: skip


def step(model: torch.nn.Module, tokens: torch.Tensor) -> tuple[float, torch.Tensor, float]:
    """The loss of a training step, all its gradients, and the least processor time of three."""
    times = []
    for _ in range(3):
        model.zero_grad()
        begin = time.process_time()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        times.append(time.process_time() - begin)
    gradients = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return float(loss.detach()), gradients, min(times)


def main() -> None:
    """Compares the models one after another; what is registered stays, so all are run without it first."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    tokens = torch.randint(0, 65, (4, 256), generator=torch.Generator().manual_seed(0))
    models = {}
    for name, make in MODELS.items():
        torch.manual_seed(0)
        models[name] = make().train()
    before = {name: step(model, tokens) for name, model in models.items()}
    sys.stdout.write(f"registered: {', '.join(kernels.register())}\n")
    for name, model in models.items():
        model.set_use_kernels(True)
        loss, gradients, seconds = step(model, tokens)
        plain_loss, plain_gradients, plain_seconds = before[name]
        error = float((gradients - plain_gradients).norm() / plain_gradients.norm())
        sys.stdout.write(
            f"{name}: CPU seconds per step {plain_seconds:.3f} -> {seconds:.3f}, {plain_seconds / seconds:.1f} times; loss "
            f"differs by {abs(loss - plain_loss):.1e}, gradients by {error:.1e}\n"
        )


if __name__ == "__main__":
    main()

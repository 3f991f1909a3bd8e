"""Our kernels in the mechanism that transformers has for those of others; the kernels package stands in a folder of its own.

With the package installed beside transformers, its models cannot be pickled any more: other tests do without it.
"""

import sys
from pathlib import Path

import pytest

import children
from holdfast.errors import BackendError
from holdfast.integrations import kernels

ROOT = Path(__file__).parents[2]
APART = ROOT / "build" / "kernels"  # where .ci/run puts it
pytestmark = pytest.mark.slow

CODE = """
import torch, transformers
from holdfast.integrations import kernels
from transformers.models.mamba import modeling_mamba
from transformers.models.mamba2 import modeling_mamba2

small = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2}
torch.manual_seed(0)
models = {
    "mamba": transformers.MambaForCausalLM(transformers.MambaConfig(state_size=4, **small)),
    "mamba2": transformers.Mamba2ForCausalLM(
        transformers.Mamba2Config(state_size=4, num_heads=4, head_dim=8, n_groups=1, chunk_size=8, **small)
    ),
}
x = torch.randint(0, 30, (2, 20))

def results(model):
    model.train().zero_grad()
    model(input_ids=x, labels=x, use_cache=False).loss.backward()
    gradients = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    with torch.no_grad():
        return gradients, model.eval()(input_ids=x).logits, model.generate(x[:, :5], max_new_tokens=8, do_sample=False)

before = {name: results(model) for name, model in models.items()}
names = kernels.register()
for name, model in models.items():
    model.set_use_kernels(True)
    after = results(model)
    distances = [((a - b).norm() / b.norm()).item() for a, b in zip(after[:2], before[name][:2])]
    print(name, *distances, torch.equal(after[2], before[name][2]))
used = [modeling_mamba.mamba_selective_scan, modeling_mamba.causal_conv1d_fn, modeling_mamba2.mamba2_chunk_scan,
        modeling_mamba2.mamba2_selective_state_update]
print("ours", all(function.forward.__module__ == kernels.__name__ for function in used), len(names))
u, index = torch.randn(1, 20, 16), (torch.arange(20) >= 9).int()[None]
mixer = models["mamba2"].backbone.layers[0].mixer
with torch.no_grad():
    apart = torch.cat([mixer(u[:, :9]), mixer(u[:, 9:])], 1)
    print("packed", (mixer(u, seq_idx=index) - apart).abs().max().item(), (mixer(u) - apart).abs().max().item())
"""


@pytest.fixture
def package():
    if not APART.is_dir():
        pytest.skip("the kernels package is not here; pip install --no-deps --target build/kernels kernels==0.17.2")
    return f"import sys; sys.path.append({str(APART)!r})\n"


def test_transformers_takes_our_kernels_and_computes_the_same(package):
    done = children.run(package + CODE)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line}
    for name in ("mamba", "mamba2"):
        *distances, equal = rows[name]
        # float32 sums in another order
        assert all(float(d) < 1e-5 for d in distances) and equal == "True", name
    assert rows["ours"] == ["True", "7"]
    error, effect = map(float, rows["packed"])
    assert error < 1e-6 < 1e-4 < effect


def test_the_comparison_of_the_document_runs(package):
    path = str(ROOT / "tools" / "compare_upstream.py")
    done = children.run(f"{package}import runpy; runpy.run_path({path!r}, run_name='__main__')")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("times; loss differs by") == 3


def test_without_the_package_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "kernels", None)
    with pytest.raises(BackendError, match="kernels is not installed: pip install"):
        kernels.register()

"""3,000 argument sets for `rnn`, good and bad, in one process: it lives, and each gets a right result or our own error.

Run as a script, this file is that process; with a number, it runs the set of that number alone and shows it.
"""

import random
import sys

import torch

SETS = 3000
ACTIVATIONS = ("tanh", "hardtanh", "relu", "sigmoid", "linear")


def test_every_argument_set_gives_a_right_result_or_our_error():
    import children  # beside conftest.py, where a script does not look

    done = children.run(
        f"import runpy, sys; sys.argv = [{__file__!r}]; runpy.run_path({__file__!r}, run_name='__main__')"
    )
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-3000:]}"
    right, refused = (int(word) for word in done.stdout.split())
    assert right + refused == SETS
    assert right > SETS / 4
    assert refused > SETS / 4


class Draw:
    """One argument set, drawn from its number."""

    def __init__(self, number):
        self.random = random.Random(number)
        self.generator = torch.Generator().manual_seed(number)
        self.bad = False  # something was made wrong on purpose; the rest must succeed
        self.finite = True
        sizes = [0, 1, 1, 2, 3, 5]
        self.batch, self.time = self.random.choice([*sizes, 17]), self.random.choice(sizes)
        self.features, self.state = self.random.choice([*sizes, 19]), self.random.choice([*sizes, 8, 16, 17, 33, 70])
        self.dtype = self.random.choice([torch.float32] * 3 + [torch.float64] * 3 + [torch.bfloat16, torch.float16])

    def chance(self, probability):
        return self.random.random() < probability

    def number(self, *shape, scale=1.0):
        dtype = self.dtype
        if dtype in (torch.bfloat16, torch.float16) and self.chance(0.5):
            dtype = torch.float32
        value = (scale * torch.randn(*shape, generator=self.generator, dtype=torch.float64)).to(dtype)
        if value.numel() and self.chance(0.02):
            value.view(-1)[self.random.randrange(value.numel())] = self.random.choice(
                [torch.nan, torch.inf, -torch.inf]
            )
            self.finite = False
        return self.strided(value)

    def strided(self, value):
        """The same values, or some that take less memory, laid out in another way."""
        how = self.random.choice(
            ["plain"] * 4 + ["steps", "transposed", "offset", "expanded", "overlapping", "negative"]
        )
        if how == "steps":
            return torch.stack([value, value + 1], dim=-1)[..., 0]
        if how == "transposed" and value.ndim > 1:
            return value.transpose(0, -1).contiguous().transpose(0, -1)
        if how == "offset":
            return torch.cat([value.new_zeros(1), value.reshape(-1)])[1:].view(value.shape)
        if how == "expanded" and value.ndim and value.shape[0] > 0:
            return value[:1].expand(value.shape)
        if how == "overlapping" and value.numel() > 1:
            memory = value.reshape(-1).repeat(2)
            return memory.as_strided(value.shape, [1] * value.ndim)
        if how == "negative" and value.dtype in (torch.float32, torch.float64):
            return torch._neg_view(-value)
        return value

    def arguments(self):
        dims, diagonal = (self.batch, self.time), self.chance(0.3)
        x_dtype, self.dtype = self.dtype, self.dtype
        x = self.number(*dims, self.features).to(x_dtype)
        shape = (self.state,) if diagonal else (self.state, self.state)
        found = {
            "x": x,
            "w": self.number(*shape, scale=0.5 / max(1, self.state) ** (0 if diagonal else 0.5)),
            "u": self.number(self.state, self.features, scale=1 / max(1, self.features) ** 0.5),
            "b": self.random.choice([None, self.number(self.state)]),
            "h0": self.random.choice([None, self.number(self.batch, self.state)]),
            "dt": self.random.choice([None, None, 0.1, 0, -0.3, 2, self.number(*dims, scale=0.3)]),
            "activation": self.random.choice(ACTIVATIONS),
            "lengths": None,
            "reverse": self.chance(0.5),
            "backend": self.random.choice(["auto", "auto", "native", "chunked"]),
        }
        if self.chance(0.4):
            lengths = torch.randint(0, self.time + 1, (self.batch,), generator=self.generator)
            found["lengths"] = self.random.choice([lengths, torch.stack([lengths, lengths], 1)[:, 0]])
        for name in ("x", "w", "u", "b", "h0", "dt"):
            if isinstance(found[name], torch.Tensor) and self.chance(0.6):
                found[name] = found[name].detach().requires_grad_()
        if self.chance(0.03):
            found = {n: v.to("meta") if isinstance(v, torch.Tensor) else v for n, v in found.items()}
        for _ in range(self.random.choice([0, 0, 1, 1, 2])):
            self.spoil(found)
        return found

    def spoil(self, found):
        """Makes one argument wrong, or at least strange."""
        self.bad = True
        name = self.random.choice(list(found))
        value = found[name]
        if isinstance(value, torch.Tensor):
            found[name] = self.spoiled(value.detach())
        else:
            found[name] = self.random.choice([
                None, "", "tanhh", 1, -1, True, float("nan"), float("inf"), [], {}, (2, 3), object(), b"x",
                torch.zeros(()), torch.zeros(2, 3), torch.tensor([1, 2]), torch.zeros(0), 10**400,
            ])  # fmt: skip

    def spoiled(self, value):
        if value.layout is not torch.strided or value.numel() > 10**6 or value.is_meta:  # spoiled before
            return value
        first = self.random.choice(["shape", "dtype", "device", "kind", "huge", "value"])
        if first == "shape":
            changes = [value[None], value.reshape(-1), value.new_zeros(()), value.new_zeros(0), value.new_zeros(3, 1)]
            changes += [torch.cat([value, value]), value[:0], value[..., :1]] if value.ndim else []
            return self.random.choice(changes)
        if first == "dtype":
            dtypes = [
                torch.int64,
                torch.int32,
                torch.bool,
                torch.complex64,
                torch.complex128,
                torch.float64,
                torch.bfloat16,
            ]
            return torch.nan_to_num(value.float()).to(self.random.choice(dtypes))
        if first == "device":
            return value.to("meta")
        if first == "kind":
            return self.random.choice([None, value.tolist(), value.numpy if value.ndim else 3.0, value.to_sparse()])
        if first == "huge":  # no memory behind it: strides of 0
            sizes = [self.random.choice([2**61, 2**62 - 1]), *self.random.choices([0, 1], k=value.ndim - 1)]
            return value.new_zeros(()).expand(sizes) if value.ndim else value
        self.finite = False
        return value - 2 if value.dtype == torch.int64 else value * float("nan")


def plain(value):
    """The argument in float64, to be differentiated by the reference."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return value.detach().double().requires_grad_(value.requires_grad)


def agree(found, exact, tolerance):
    found, exact = found.detach().double(), exact.detach()
    if found.shape != exact.shape or not torch.equal(found.isnan(), exact.isnan()):
        return False
    if found.numel() == 0:
        return True
    found, exact = torch.nan_to_num(found), torch.nan_to_num(exact)
    infinite = exact.abs() > 1e30
    if not torch.equal(found.abs() > 1e30, infinite):
        return False
    found, exact = found[~infinite], exact[~infinite]
    return found.numel() == 0 or float((found - exact).abs().max()) <= tolerance * max(1.0, float(exact.abs().max()))


def check(draw, found, h, last):
    """Compares outputs and gradients with the float64 reference."""
    from holdfast.kernels.rnn import rnn_reference

    x = found["x"]
    if x.device.type == "meta":
        assert h.device.type == last.device.type == "meta"
        assert h.shape == (*x.shape[:2], found["u"].shape[0])
        return
    exact = {name: plain(value) for name, value in found.items() if name != "backend"}
    e, e_last = rnn_reference(**exact)
    single = 1e-14 if x.dtype == torch.float64 else 2e-6  # a few ulp, times 5 steps that hardly amplify
    rounded = max(single, torch.finfo(x.dtype).eps)
    assert h.dtype == x.dtype
    assert agree(h, e, rounded)
    assert agree(last, e_last, single)
    names = [n for n, v in found.items() if isinstance(v, torch.Tensor) and v.requires_grad]
    loss, e_loss = h.double().square().sum() + last.double().sum(), e.square().sum() + e_last.sum()
    finite = draw.finite and bool(torch.isfinite(e).all())
    if not names or not e_loss.requires_grad or not finite:
        return
    gradients = torch.autograd.grad(loss, [found[n] for n in names], allow_unused=True)
    expected = torch.autograd.grad(e_loss, [exact[n] for n in names], materialize_grads=True)
    # the loss is a square, of outputs rounded to x's dtype; gradients add up over batch and time
    for g, e in zip(gradients, expected, strict=True):
        assert g is None or agree(g, e, 20 * max(rounded, torch.finfo(g.dtype).eps))


def run(number, show=False):
    """True for a right result, False for a refusal."""
    from holdfast.errors import HoldfastError
    from holdfast.kernels.rnn import rnn

    draw = Draw(number)
    found = draw.arguments()
    if show:
        print(draw.bad, found)  # noqa: T201
    try:
        h, last = rnn(**found)
    except HoldfastError as refusal:
        assert draw.bad, f"refused a good set: {refusal}"
        if show:
            print(refusal)  # noqa: T201
        return False
    check(draw, found, h, last)
    return True


def main():
    torch.set_num_threads(2)  # the larger sets run on a team of two
    if len(sys.argv) > 1:
        run(int(sys.argv[1]), show=True)
        return
    right = 0
    for number in range(SETS):
        try:
            right += run(number)
        except Exception as unexpected:
            raise AssertionError(f"set {number}: {type(unexpected).__name__}: {unexpected}") from unexpected
    print(right, SETS - right)  # noqa: T201


if __name__ == "__main__":
    main()

"""Many images from a state each: one factorization, two products a part, and no copy of all states at once."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast_papers import reconstruct
from holdfast_papers.reconstruct.decoder import _ROWS

COUNT, MODES = 10_000, 28


class Operators(TorchDispatchMode):
    """Records each operator that runs, with the rows of the tensor that it makes."""

    def __init__(self):
        super().__init__()
        self.ran = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        rows = len(out) if isinstance(out, torch.Tensor) and out.ndim else 0
        self.ran.append((func.overloadpacket.__name__, rows))
        return out


def test_ten_thousand_images_take_one_factorisation_and_copies_of_a_part():
    u = torch.rand(COUNT, MODES, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    lam = reconstruct.roots_of_unity(MODES)
    x = reconstruct.encode(u, lam).to(torch.complex64)
    with Operators() as operators:
        found = reconstruct.inputs(x, lam, MODES)
    names = [name for name, _ in operators.ran]
    parts = -(-COUNT // _ROWS)
    assert names.count("_linalg_svd") == 1
    # one more product makes the pseudo-inverse
    assert (names.count("mm"), names.count("addmm_")) == (parts + 1, parts)
    copies = [rows for name, rows in operators.ran if name in ("_to_copy", "clone", "cat")]
    assert len(copies) >= parts and max(copies) <= _ROWS
    # complex64 states keep seven digits
    assert found.error(u) < 1e-6

"""
Images rebuilt from the last state
==================================

How much of the past does the state of a linear recurrence hold?

Each image is read pixel by pixel, 784 numbers, by x_k = Lam x_{k-1} + u_k; from the last state alone all pixels are
solved for. Eigenvalues inside the unit disk keep only the latest rows; near the circle the whole image comes back; the
784 roots of unity give it back exactly. ("On the Universality of Linear Recurrences", Fig. 2-5.)
"""

import time

import torch
from rich.console import Console
from rich.table import Table

from holdfast import data, reconstruct

SIDE = 28
LENGTH = SIDE * SIDE
SHADES = " .:-=+*#%@"


def digits(count):
    """Test images of MNIST where they are at hand, else drawn shapes; as rows of numbers in [0, 1]."""
    try:
        found = data.mnist("test", download=False)
    except data.MissingDataError:
        return drawn(count), f"{count} drawn rings and bars (MNIST is not in the data folder; see `holdfast doctor`)"
    return found.sequences(torch.float64)[:count], found.source


def drawn(count):
    """Rings and bars of random place and size, soft at the edges."""
    generator = torch.Generator().manual_seed(0)
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    cx, cy, r = (torch.rand(count, 1, 1, generator=generator, dtype=torch.float64) for _ in range(3))
    distance = torch.hypot(x - (10 + 8 * cx), y - (10 + 8 * cy))
    ring = torch.exp(-(((distance - 4 - 5 * r) / 1.2) ** 2))
    bar = torch.exp(-(((x - (4 + 20 * r)) / 1.5) ** 2)) * (y > 5) * (y < 22)
    kind = (torch.arange(count) % 2).reshape(-1, 1, 1)
    return torch.where(kind == 0, ring, bar.double()).reshape(count, LENGTH)


def shown(*images):
    """Images as characters, side by side, every second row."""
    rows = []
    for row in range(0, SIDE, 2):
        parts = []
        for image in images:
            line = image.reshape(SIDE, SIDE)[row].clamp(0, 1)
            parts.append("".join(SHADES[int(9 * v)] for v in line))
        rows.append(" | ".join(parts))
    return "\n".join(rows)


def main():
    console = Console()
    images, source = digits(10_000)
    console.print(f"{source}, {LENGTH} pixels each")
    choices = {
        "ring 0..1": reconstruct.ring_eigenvalues(LENGTH, 0.0),
        "ring 0.9..1": reconstruct.ring_eigenvalues(LENGTH, 0.9),
        "ring 0.99..1": reconstruct.ring_eigenvalues(LENGTH, 0.99),
        "512 of them": reconstruct.ring_eigenvalues(512, 0.99),
        "roots of unity": reconstruct.roots_of_unity(LENGTH),
    }
    table = Table(title="all pixels from the last state: errors, rank, condition of V^H V", box=None)
    for column in ("eigenvalues", "form", "relative", "first 100", "last 100", "rank", "cond.", "s"):
        table.add_column(column, justify="left" if column in ("eigenvalues", "form") else "right")
    rebuilt = {}
    for name, lam in choices.items():
        states = reconstruct.encode(images, lam)
        for form in ("complex", "real"):
            start = time.perf_counter()
            found = reconstruct.inputs(states, lam, LENGTH, form=form)
            seconds = time.perf_counter() - start
            by_time = found.error_by_time(images)
            table.add_row(
                name,
                form,
                f"{found.error(images):.1e}",
                f"{by_time[:100].mean():.1e}",
                f"{by_time[-100:].mean():.1e}",
                f"{found.rank}/{found.unknowns}",
                f"{found.condition:.0e}",
                f"{seconds:.1f}",
            )
            rebuilt[name, form] = found.values[0].clone()
    console.print(table)
    console.print("\nan image, and what is left of it with ring 0..1 (complex form):")
    console.print(shown(images[0], rebuilt["ring 0..1", "complex"]), highlight=False, markup=False)
    console.print("\nwith ring 0.9..1, and with roots of unity:")
    pictures = (rebuilt["ring 0.9..1", "complex"], rebuilt["roots of unity", "complex"])
    console.print(shown(*pictures), highlight=False, markup=False)


if __name__ == "__main__":
    main()

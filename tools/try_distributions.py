"""Builds wheels and a source distribution, and tries them in an empty environment, away from the clone.

`python tools/try_distributions.py` (`make try-wheel`) ends with 0 if wheel and source distribution of holdfast can be
imported, measure, train a step and pass `holdfast doctor`: the wheel with its native kernels, the source distribution
where no compiler is found without. The wheel serves every Python; with that of holdfast-papers the command has `list`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
TRIAL = """
import sys
from pathlib import Path
import torch, holdfast
from holdfast.kernels._common import library
assert Path(holdfast.__file__).is_relative_to(sys.prefix), holdfast.__file__
assert library.status().available == (sys.argv[1] == "native"), library.status()
torch.manual_seed(0)
model = holdfast.nn.S4D(1, 8)
curve = holdfast.memory_function(model, horizon=50)
before = model(torch.ones(1, 50, 1))[0].square().mean()
before.backward()
torch.optim.SGD(model.parameters(), lr=1e-3).step()
after = model(torch.ones(1, 50, 1))[0].square().mean()
assert after < before, (after, before)
print(f"{sys.argv[1]}: M(0) = {curve.values[0]:.3g}, loss {before.item():.4g} -> {after.item():.4g}")
"""


def run(*command: str | Path, path: str | None = None, **environment: str) -> None:
    """Runs a command with the pinned versions; an error ends the trial."""
    pinned = {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    said = " ".join(str(part) if "\n" not in str(part) else "..." for part in command)
    sys.stderr.write(f"+ {said}\n")
    everything = {**inherited, **pinned, **environment, **({} if path is None else {"PATH": path})}
    subprocess.run(command, env=everything, cwd=tempfile.gettempdir(), check=True)


def build(python: Path, into: Path) -> tuple[Path, Path, Path]:
    """The wheel and the source distribution of holdfast, and the wheel of holdfast-papers."""
    run(python, "-m", "pip", "install", "--quiet", "build")
    run(python, "-m", "build", "--sdist", "--outdir", into, ROOT)
    run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", into, ROOT, ROOT / "papers")
    wheel = next(into.glob("holdfast-*.whl"))
    # one build serves every Python: nothing in it knows the interpreter's binary interface
    assert "-py3-none-" in wheel.name, wheel.name
    return wheel, next(into.glob("*.tar.gz")), next(into.glob("holdfast_papers-*.whl"))


def main() -> None:
    """Builds, installs and tries; the second replaces the first in the same environment."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(Path(folder, "venv"), with_pip=True)
        bin = next(Path(folder, "venv").glob("[bS][ic][nr]*"))  # bin, or Scripts
        wheel, source, papers = build(bin / "python", Path(folder, "dist"))
        run(bin / "python", "-m", "pip", "install", "--quiet", wheel)
        run(bin / "python", "-I", "-c", TRIAL, "native")
        run(bin / "holdfast", "doctor")
        run(bin / "python", "-m", "pip", "install", "--quiet", papers)
        run(bin / "holdfast", "list")
        run(bin / "python", "-m", "pip", "uninstall", "--quiet", "--yes", "holdfast")
        # CMake looks beyond PATH, so that the compiler is named as well: one that is not there
        without = {"path": str(bin), "CXX": str(Path(folder, "no-compiler"))}
        run(bin / "python", "-m", "pip", "install", "--quiet", "--no-deps", source, **without)
        run(bin / "python", "-I", "-c", TRIAL, "torch")
        run(bin / "holdfast", "doctor", path=str(bin))


if __name__ == "__main__":
    main()

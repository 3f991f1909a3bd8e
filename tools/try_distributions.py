"""Builds wheels and a source distribution, and tries them in an empty environment, away from the clone.

`python tools/try_distributions.py` (`make try-wheel`) ends with 0 if wheel and source distribution of holdfast can be
imported, measure, stabilize, train a step and pass `holdfast doctor`: the wheel with its native kernels, the source
distribution without them where no compiler is found. The wheel serves every Python, and alone it diagnoses a user's
model, trains and says what `holdfast reproduce` needs; with the wheel of holdfast-papers the command has `list`.
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

MODEL = "import torch\n\nmodel = torch.nn.LSTM(2, 8, batch_first=True)\n"  # a user's file
STABILIZE = """
import torch, holdfast
rnn = torch.nn.RNN(2, 8, batch_first=True)
with torch.no_grad():
    rnn.weight_hh_l0.mul_(4)
holdfast.stabilize(rnn, allow_change=True)
certificate = holdfast.certify(rnn)
assert certificate.status == "stable", certificate
print(certificate)
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


def try_alone(bin: Path, wheel: Path, folder: Path) -> None:
    """What the library does without the papers: a diagnosis, a stabilized model, a run, and what the rest needs."""
    Path(folder, "model.py").write_text(MODEL)
    run(bin / "holdfast", "diagnose", f"{folder / 'model.py'}:model")
    run(bin / "python", "-I", "-c", STABILIZE)
    run(bin / "python", "-m", "pip", "install", "--quiet", f"{wheel}[train]")
    config, runs = ROOT / "examples/configs/recall.toml", folder / "runs"
    run(bin / "holdfast", "train", config, "--set", "run.steps=2", "--set", "run.evaluate_every=2", "--folder", runs)
    hint = subprocess.run([bin / "holdfast", "reproduce"], capture_output=True, text=True, check=False)
    assert hint.returncode != 0 and "holdfast-papers" in hint.stdout + hint.stderr, hint
    sys.stderr.write(hint.stderr or hint.stdout)


def main() -> None:
    """Builds, installs and tries; the second replaces the first in the same environment."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(Path(folder, "venv"), with_pip=True)
        bin = next(Path(folder, "venv").glob("[bS][ic][nr]*"))  # bin, or Scripts
        wheel, source, papers = build(bin / "python", Path(folder, "dist"))
        run(bin / "python", "-m", "pip", "install", "--quiet", wheel)
        run(bin / "python", "-I", "-c", TRIAL, "native")
        run(bin / "holdfast", "doctor")
        try_alone(bin, wheel, Path(folder))
        run(bin / "python", "-m", "pip", "install", "--quiet", papers)
        run(bin / "holdfast", "list")
        run(bin / "python", "-m", "pip", "uninstall", "--quiet", "--yes", "holdfast")
        # CMake looks beyond PATH, so that the compiler is named as well: a missing one
        without = {"path": str(bin), "CXX": str(Path(folder, "no-compiler"))}
        run(bin / "python", "-m", "pip", "install", "--quiet", "--no-deps", source, **without)
        run(bin / "python", "-I", "-c", TRIAL, "torch")
        run(bin / "holdfast", "doctor", path=str(bin))


if __name__ == "__main__":
    main()

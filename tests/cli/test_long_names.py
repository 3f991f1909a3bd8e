"""Names that no file system takes, and files that are folders: a message and exit code 2, no traceback."""

import sys

import pytest

from holdfast.cli.app import main

LONG = "x" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", f"{LONG}.toml"),
        ("memory", f"{LONG}.py:make"),
        ("memory", f"hf:{LONG}/"),
        ("diagnose", "net.py:make", "--data", f"{LONG}.csv"),
        ("fit-kernel", f"{LONG}.csv"),
        ("fit-kernel", "rho.csv", "--export", f"{LONG}/layer.safetensors"),
        ("fit-kernel", "rho.csv", "--export", f"{LONG}.safetensors"),
        ("train", "small.toml", "--folder", LONG),
        ("memory", "net.py:make", "--plot", f"{LONG}.png"),
    ],
)
def test_a_name_that_is_too_long_is_told(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text("from torch import nn\ndef make(): return nn.GRU(1, 2, batch_first=True)\n")
    (tmp_path / "rho.csv").write_text("".join(f"{t},{0.5**t}\n" for t in range(20)))
    (tmp_path / "small.toml").write_text(
        '[task]\nname = "recall"\nlength = 4\nvocabulary = 6\n[model]\nwidth = 4\ndepth = 1\n[run]\nsteps = 1\nthreads = 1\n'
    )
    monkeypatch.setattr(sys, "argv", ["holdfast", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err

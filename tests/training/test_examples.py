"""What the documentation promises of training: an own module in a few lines, and a large model without its memory."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from holdfast.errors import BackendError
from holdfast.nn import LanguageModel

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def test_an_own_module_on_own_data_takes_at_most_15_lines_and_learns(tmp_path, monkeypatch, capsys):
    path = EXAMPLES / "train_your_own.py"
    code = path.read_text().split('"""')[2]
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    runpy.run_path(str(path))
    printed = capsys.readouterr().out
    assert "finished at step 60" in printed
    assert float(re.search(r"accuracy ([\d.]+)", printed).group(1)) > 0.9


def test_the_paper_size_language_model_is_built_without_memory():
    with torch.device("meta"):
        model = LanguageModel(50257, 768, depth=12, state_size=128)
        scores, _ = model(torch.zeros(1, 1024, dtype=torch.int64), return_state=False)
    assert scores.shape == (1, 1024, 50257)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(125e6, rel=0.1)


def test_without_lightning_training_says_how_to_get_it(monkeypatch, tmp_path):
    from small_training import CONFIG, new_model, new_task

    from holdfast.training import fit

    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    with pytest.raises(BackendError, match=r"pip install 'holdfast\[train\]'"):
        fit(new_model(), new_task(), CONFIG, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()

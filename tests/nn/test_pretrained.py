"""Models in a folder, with how they are built: the same outputs after loading, and errors that say what is wrong."""

import json
import shutil
import subprocess
import sys

import pytest
import torch

import holdfast
from holdfast.errors import ArgumentError, DamagedResultError
from holdfast.nn import LRU, LanguageModel, SequenceClassifier, SequenceModel

MODELS = {
    "sequence": lambda: SequenceModel(3, 8, depth=2, layer="lru", state_size=4, out_features=2, r_max=0.99),
    "classifier": lambda: SequenceClassifier(3, 5, 8, pool="last", depth=1, layer="linear", state_size=4).double(),
    "language": lambda: LanguageModel(11, 8, depth=1, state_size=4, expansion=2),
}


def inputs(model):
    if isinstance(model, LanguageModel):
        return torch.arange(10).view(2, 5)
    return torch.linspace(-1, 1, 30, dtype=next(model.parameters()).dtype).view(2, 5, 3)


def outputs(model):
    found = model.eval()(inputs(model))
    return found[0] if isinstance(found, tuple) else found


@pytest.mark.parametrize("kind", MODELS)
def test_a_saved_model_comes_back_bit_by_bit(kind, tmp_path):
    model = MODELS[kind]()
    model.save_pretrained(tmp_path / "new" / "folder")
    again = type(model).from_pretrained(tmp_path / "new" / "folder")
    assert torch.equal(outputs(again), outputs(model))
    assert again.arguments == json.loads((tmp_path / "new" / "folder" / "config.json").read_text())["arguments"]
    assert all(weight.requires_grad and not weight.is_meta for weight in again.parameters())


def test_a_stabilised_model_is_saved_with_its_new_parameterization(tmp_path):
    model = MODELS["sequence"]()
    holdfast.stabilize(model, "best")
    model.save_pretrained(tmp_path)
    assert torch.equal(outputs(SequenceModel.from_pretrained(tmp_path)), outputs(model))


def test_weights_tied_by_hand_are_saved_with_their_numbers(tmp_path):
    model = MODELS["sequence"]()
    model.blocks[1].mixer = model.blocks[0].mixer
    model.save_pretrained(tmp_path)
    assert torch.equal(outputs(SequenceModel.from_pretrained(tmp_path)), outputs(model))


def test_a_model_card_tells_the_memory_of_the_saved_weights(tmp_path):
    model = MODELS["sequence"]()
    model.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: holdfast\n")
    for view in holdfast.recurrences(model):
        times = view.time_constants()
        expected = (
            f"| {view.path} | {view.kind} | {view.margin():.4g}, stable | {times.min():.4g} to {times.max():.4g} |"
        )
        assert expected in card
    (tmp_path / "README.md").write_text("mine")
    model.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_a_folder_that_is_none_is_named(tmp_path):
    with pytest.raises(ArgumentError, match=r"a folder that save_pretrained wrote.* got .*none; check the path"):
        SequenceModel.from_pretrained(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match=r"folder must be a folder, got .*file, which is a file"):
        MODELS["sequence"]().save_pretrained(tmp_path / "file")
    with pytest.raises(DamagedResultError, match=r"config\.json.*give a folder that save_pretrained wrote"):
        SequenceModel.from_pretrained(tmp_path)


def test_a_repository_that_the_hub_does_not_give_is_named(monkeypatch):
    hub = pytest.importorskip("huggingface_hub")

    def download(*_, **__):
        raise OSError("404")

    monkeypatch.setattr(hub, "snapshot_download", download)
    with pytest.raises(
        ArgumentError, match=r"got someone/none: no such folder .* returned no such repository \(OSError: 404\)"
    ):
        SequenceModel.from_pretrained("someone/none")


def test_what_cannot_be_written_or_read_is_said(tmp_path):
    with pytest.raises(ArgumentError, match=r"layer=<function .* cannot be written into config.json"):
        SequenceModel(3, 8, depth=1, layer=lambda width: LRU(width, 4)).save_pretrained(tmp_path)
    MODELS["sequence"]().save_pretrained(tmp_path)
    with pytest.raises(ArgumentError, match="describes a SequenceModel, not a LanguageModel; call SequenceModel"):
        LanguageModel.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(DamagedResultError, match="does not hold a complete SequenceModel"):
        SequenceModel.from_pretrained(tmp_path)


def test_the_hub_is_asked_where_there_is_no_folder(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    asked, model = [], MODELS["language"]()

    class Api:
        def create_repo(self, name, exist_ok):
            asked.append((name, exist_ok))

        def upload_folder(self, repo_id, folder_path, **options):
            shutil.copytree(folder_path, tmp_path / repo_id)

    def download(name, revision, allow_patterns):
        asked.append((name, revision, allow_patterns))
        return str(tmp_path / name)

    monkeypatch.setattr(hub, "HfApi", Api)
    monkeypatch.setattr(hub, "snapshot_download", download)
    model.push_to_hub("someone/tiny", commit_message="first")
    assert torch.equal(outputs(LanguageModel.from_pretrained("someone/tiny", revision="v1")), outputs(model))
    assert asked == [("someone/tiny", True), ("someone/tiny", "v1", ["config.json", "model.safetensors"])]


HUGE = 10**9
OVERSIZED = {
    "states of S4D": ("s4d", {"state_size": HUGE}),
    "modes of a matrix of HiPPO": ("s4d", {"state_size": 10**5, "initialization": "legs"}),
    "states of an LRU": ("lru", {"state_size": HUGE}),
    "states of a diagonal SSM": ("diagonal", {"state_size": HUGE}),
    "states of a selective SSM": ("selective", {"state_size": HUGE}),
    "states of a matrix": ("linear", {"state_size": 10**5}),
    "width": ("lru", {"width": HUGE}),
    "depth": ("lru", {"depth": HUGE}),
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("kind", OVERSIZED)
def test_a_config_larger_than_its_weights_is_refused_before_memory_is_taken(kind, tmp_path):
    layer, sizes = OVERSIZED[kind]
    SequenceModel(3, 8, depth=1, layer=layer, state_size=4).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["arguments"] |= sizes
    (tmp_path / "config.json").write_text(json.dumps(config))
    code = f"""
import resource
from holdfast.errors import DamagedResultError
from holdfast.nn import SequenceModel
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 2**29, taken + 2**29))
try:
    SequenceModel.from_pretrained({str(tmp_path)!r})
except DamagedResultError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert "does not hold a complete SequenceModel (ArgumentError: the file holds" in run.stdout, (
        run.stdout + run.stderr
    )

"""Every result that a person looks at: one line, a figure, a file that gives it back and notices damage."""

import base64
import dataclasses
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import holdfast
from holdfast._files import seal
from holdfast._record import FORMAT, Record
from holdfast.decay._result import reach_of
from holdfast.diagnosis._advice import Advice
from holdfast.diagnosis._forgetting import PROBES, Forgetting
from holdfast.diagnosis._learning import Learning
from holdfast.diagnosis._trial import Outcome, Trial
from holdfast.diagnosis._weights import Edge, LongRun, Survival, Tolerance
from holdfast.errors import ArgumentError, DamagedResultError
from holdfast.figures import Figure
from holdfast.stability import GradientHistory, LyapunovSpectrum
from holdfast.training import History, TrainingRun


def memory_curve():
    return holdfast.MemoryCurve(
        time=np.arange(60.0), values=np.exp(-0.2 * np.arange(60.0)), floor=np.full(60, 1e-12), notes=("a <b> note",),
        eigenvalues=np.array([0.5 + 0.1j, 0.5 - 0.1j]),
    )  # fmt: skip


def perturbation_curve(width=8):
    return holdfast.PerturbationCurve(
        radii=np.array([0.01, 0.1, 1.0]), errors=np.array([0.02, 0.02 * width**0.5, np.inf]), centre=0.01,
        target_norm=1.0, draws=np.array([[0.01, 0.02], [0.02, np.inf], [0.1, np.inf]]), scope=("lambda",),
    )  # fmt: skip


def certificate():
    torch.manual_seed(0)
    return holdfast.certify(torch.nn.GRU(1, 2, num_layers=2), starts=1)


def gradient_history():
    torch.manual_seed(0)
    model = holdfast.nn.LRU(1, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with holdfast.GradientMonitor(model) as monitor:
        for _ in range(2):
            model(torch.ones(1, 3, 1))[0].sum().backward()
            optimizer.step()
    return monitor.history


def training_run():
    line = np.array([1.0, np.nan])
    steps = np.array([1, 2])
    history = History(
        steps, line, line, line, line, line, line, steps, {"loss": np.array([0.5, 0.25])}, {"w/maximum": (steps, line)}
    )
    return TrainingRun(
        Path("runs/$x$<i>"), "diverged", "loss is <nan>", 2, 9, 1.5, {"test": {"loss": np.inf}},
        {"step": 1, "valid": {"loss": 0.25}}, history, ("careful",), {"name": "t"}, {"steps": 9, "betas": [0.9, 0.99]},
    )  # fmt: skip


def task_study():
    x = np.random.default_rng(0).normal(size=(12, 40, 1))
    return holdfast.study_task(x, np.roll(x, 3, axis=1))


def diagnosis():
    curve, fit = memory_curve(), holdfast.fit_decay(memory_curve(), eigenvalues=torch.tensor([0.5]))
    part = holdfast.certify(holdfast.nn.LRU(1, 2))
    survival = Survival(Tolerance(0.1, np.inf, "at least", perturbation_curve()))
    trial = Trial(Outcome(np.inf, 3.0, -0.1), Outcome(0.5, np.inf, None), 10, 0.01, 0.01, "a task")
    return holdfast.Diagnosis(
        "a $x$ <b>", "a GRU", memory=tuple(Forgetting(kind, "ahead", curve, fit, reach_of(fit), 1.0) for kind in PROBES),
        edge=Edge((part,), part, ("W",), LongRun(10, 1.0, np.inf)), survival=survival,
        learning=Learning("a task", {"other": 0.1}, 2.0, 1.0, None, {"other": 0.01, "recurrent": None}, (0.1, 0.01)),
        task=task_study(), needs=3, advice=(Advice("it <b>", "3", "call()", "so", trial),), notes=("n",),
    )  # fmt: skip


SAMPLES = {
    "MemoryCurve": memory_curve,
    "DecayFit": lambda: holdfast.fit_decay(memory_curve(), eigenvalues=torch.tensor([0.5, 0.2])),
    "undecided DecayFit": lambda: holdfast.fit_decay(memory_curve().until(3.0)),
    "zero DecayFit": lambda: holdfast.fit_decay(holdfast.MemoryCurve(time=np.arange(9.0), values=np.zeros(9))),
    "PerturbationCurve": perturbation_curve,
    "StabilityVerdict": lambda: holdfast.assess_stability({m: perturbation_curve(m) for m in (2, 4, 8, 16, 900)}),
    "Certificate": certificate,
    "continuous Certificate": lambda: holdfast.certify(holdfast.nn.DiagonalSSM(1, 3), horizon=5),
    "ExponentialSum": lambda: holdfast.ExponentialSum(np.array([1 + 2j, 1 - 2j]), np.array([0.5 + 0j, 0.5 + 0j])),
    "GradientHistory": gradient_history,
    "empty GradientHistory": lambda: holdfast.GradientMonitor(holdfast.nn.LRU(1, 4)).history,
    "TrainingRun": training_run,
    "LyapunovSpectrum": lambda: LyapunovSpectrum(np.array([0.4, -np.inf]), np.array([0.01, 0.0]), 50, 2, 2, 0.5),
    "MemoryCapacity": lambda: holdfast.memory.MemoryCapacity(
        np.arange(1.0, 4), np.array([1.0, 0.6, 0.1]), 3, 100, 20, 1e-6
    ),
    "DataMemory": lambda: holdfast.memory.DataMemory(
        np.arange(3.0),
        np.array([[1.0, 0.5, 0.001], [2.0, 0.3, 0.2]]),
        np.zeros(2),
        np.array([[0, 1], [1, 4]]),
        notes=("n",),
    ),
    "DataMemory of nothing": lambda: holdfast.memory.DataMemory(
        np.arange(3.0), np.zeros((1, 3)), np.zeros(1), np.array([[0, 1]])
    ),
    "Certificate along data": lambda: holdfast.certify(torch.nn.GRU(1, 2), inputs=torch.randn(40, 2, 1)),
    "ReceptiveField": lambda: holdfast.memory.ReceptiveField(np.arange(3.0), np.array([1.0, 0.5, 0.0]), 4),
    "BitBudget": lambda: holdfast.stability.BitBudget(
        np.array([2.0, 3.0]), np.array([0.5, 0.2]), np.array([np.inf, 0.1]), np.array([0.3, 0.05]), 0.2, ("w",)
    ),
    "TaskStudy": task_study,
    "undecided TaskStudy": lambda: holdfast.study_task(np.zeros((2, 5, 1)), np.zeros((2, 5, 1))),
    "Diagnosis": diagnosis,
    "Diagnosis of nothing": lambda: holdfast.Diagnosis("none", "a <b>", unseen=("the model could not be run: why",)),
}


@pytest.fixture(scope="module")
def results():
    return {name: make() for name, make in SAMPLES.items()}


def assert_same(a, b):
    assert type(a) is type(b)
    if dataclasses.is_dataclass(a):
        for f in dataclasses.fields(a):
            assert_same(getattr(a, f.name), getattr(b, f.name))
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    elif isinstance(a, tuple | list):
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            assert_same(left, right)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        assert_same(list(a.values()), list(b.values()))
    else:
        assert a == b or (a != a and b != b)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_result_is_one_line_a_figure_and_a_file_that_gives_it_back(name, results, tmp_path):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    result = results[name]
    assert repr(result) == f"{type(result).__name__}({result.summary()})"
    assert "\n" not in repr(result) and len(repr(result)) < 600
    figure = result.figure()
    assert isinstance(figure, Figure) and figure.caption.endswith(".")
    places = pyplot.figure().subplots(1, len(figure.panels), squeeze=False).ravel()
    drawn = np.ravel(np.asarray(result.plot(places if len(places) > 1 else places[0]), dtype=object))
    assert list(drawn) == list(places)
    assert [place.get_ylabel() for place in places] == [panel.y.label for panel in figure.panels]
    pyplot.close("all")
    saved = result.save(tmp_path / "deep" / "result.json")
    assert_same(type(result).load(saved), result)


@pytest.mark.parametrize("name", ["MemoryCurve", "zero DecayFit", "empty GradientHistory", "TrainingRun", "Diagnosis"])
def test_a_notebook_shows_the_line_escaped_above_the_figure(name, results):
    pytest.importorskip("matplotlib")
    shown = results[name]._repr_html_()
    assert not any(markup in shown.replace("<p><b>", "", 1) for markup in ("<i>", "<nan>", "<b>"))
    assert base64.b64decode(shown.split("base64,")[1].split('"')[0]).startswith(b"\x89PNG")


def test_axes_are_made_where_none_are_given_and_too_few_are_refused(results):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    assert results["MemoryCurve"].plot().get_xlabel() == "t"
    both = results["GradientHistory"].plot()
    with pytest.raises(ArgumentError, match="ax must be 2 matplotlib axes"):
        results["GradientHistory"].plot(both[0])
    with pytest.raises(ArgumentError, match="ax must be 1 matplotlib axes"):
        results["MemoryCurve"].plot("here")
    pyplot.close("all")


def test_a_file_that_was_changed_or_cut_is_refused_by_name(results, tmp_path):
    file = results["MemoryCurve"].save(tmp_path / "curve.json")
    content = file.read_bytes()
    place = content.index(b"MemoryCurve")
    for wrong in (content[:-20], content[:place] + b"m" + content[place + 1 :], b"", b"{}"):
        file.write_bytes(wrong)
        with pytest.raises(DamagedResultError, match=r"curve\.json"):
            holdfast.MemoryCurve.load(file)


def test_loading_names_what_a_file_holds_and_saving_refuses_a_folder(results, tmp_path):
    file = results["DecayFit"].save(tmp_path / "fit.json")
    with pytest.raises(ArgumentError, match=r"got a DecayFit in .*; use DecayFit\.load"):
        holdfast.MemoryCurve.load(file)
    with pytest.raises(ArgumentError, match="got the folder"):
        results["DecayFit"].save(tmp_path)
    with pytest.raises(DamagedResultError, match="does not exist"):
        holdfast.DecayFit.load(tmp_path / "none.json")


def test_a_link_is_read_and_written_through(results, tmp_path):
    file = results["DecayFit"].save(tmp_path / "fit.json")
    link = tmp_path / "a link.json"
    link.symlink_to(file)
    assert_same(holdfast.DecayFit.load(link), results["DecayFit"])
    results["MemoryCurve"].save(link)
    assert link.is_symlink()
    assert_same(holdfast.MemoryCurve.load(file), results["MemoryCurve"])


def test_a_path_that_cannot_be_is_refused_by_what_is_there(results, tmp_path):
    curve = results["MemoryCurve"]
    file = curve.save(tmp_path / "curve.json")
    with pytest.raises(ArgumentError, match=r"must be in a folder, got .*curve\.json, which is not a folder"):
        curve.save(file / "inside.json")
    with pytest.raises(ArgumentError, match=r"path must be text or a pathlib\.Path, got int 3"):
        curve.save(3)
    with pytest.raises(ArgumentError, match=r"got the folder .*; give a file in it"):
        holdfast.MemoryCurve.load(tmp_path)
    file.write_text('{"not": "ours"}')
    with pytest.raises(
        DamagedResultError, match=r"does not begin with the header of a holdfast file.*file that save\(\) wrote"
    ):
        holdfast.MemoryCurve.load(file)


def test_the_page_of_a_diagnosis_is_not_loaded_and_a_wrong_ending_makes_no_folder(results, tmp_path):
    page = results["Diagnosis"].save(tmp_path / "report.html")
    with pytest.raises(ArgumentError, match=r"got the page .*; load the file that save\('NAME\.json'\) wrote"):
        holdfast.Diagnosis.load(page)
    with pytest.raises(ArgumentError, match=r"\.html or \.json, got '\.txt'"):
        results["Diagnosis"].save(tmp_path / "new" / "report.txt")
    assert not (tmp_path / "new").exists()


def drawn(result):
    """The axes of a result, in a list."""
    return list(np.ravel(np.asarray(result.plot(), dtype=object)))


def test_margins_between_records_without_one_are_drawn_over_all_steps():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    steps, each = np.arange(9), np.full((9, 1), 0.5)
    some = np.where(steps[:, None] % 4 == 0, each, np.nan)
    history = GradientHistory(("w",), (0.5,), steps, each, each, each[..., None], each, some, some)
    ratios, margins = drawn(history)
    line = margins.get_lines()[0]
    assert line.get_xdata().tolist() == [0, 4, 8] and np.isfinite(line.get_ydata()).all() and line.get_marker() == "o"
    assert margins.get_xlim() == ratios.get_xlim()
    pyplot.close("all")


def test_a_run_without_a_step_says_so_in_place_of_a_curve(results):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    run = results["TrainingRun"]
    empty = History(*[np.empty(0)] * 8, {}, {})
    (place,) = drawn(dataclasses.replace(run, history=empty))
    assert [text.get_text() for text in place.texts] == ["nothing to draw"]
    assert place.get_legend() is None
    assert not drawn(run)[0].texts
    pyplot.close("all")


def test_the_legend_of_eigenvalues_lies_above_the_unit_circle():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    (place,) = drawn(holdfast.certify(holdfast.nn.LRU(1, 4)))
    place.figure.canvas.draw()
    box = place.get_legend().get_window_extent().transformed(place.transData.inverted())
    assert box.y0 > 1.0
    pyplot.close("all")


def test_rules_differ_and_short_logarithmic_axes_have_plain_numbers(results):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    (place,) = drawn(results["PerturbationCurve"])
    styles = [
        line.get_linestyle() for line in place.get_lines() if line.get_label() in ("unperturbed", "norm of the target")
    ]
    assert len(set(styles)) == 2
    curves = {m: perturbation_curve(m) for m in (4, 8, 16, 32)}
    (place,) = drawn(holdfast.assess_stability(curves))
    place.figure.canvas.draw()
    assert {"5", "10", "20"} <= {tick.get_text() for tick in place.get_xticklabels(which="both")}
    pyplot.close("all")


def bomb(size):
    """An .npz that says one member unpacks to `size` bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.npy", b"x" * 10)
    content = bytearray(buffer.getvalue())
    place = content.index(b"PK\x01\x02")
    content[place + 24 : place + 28] = size.to_bytes(4, "little")
    return base64.b64encode(bytes(content)).decode()


def pickled():
    buffer = io.BytesIO()
    np.savez(buffer, a=np.array([{}], dtype=object))
    return base64.b64encode(buffer.getvalue()).decode()


@pytest.mark.parametrize(
    "body",
    [
        {"record": {"MemoryCurve": {"time": {"Popen": {"args": "true"}}}}, "arrays": base64.b64encode(b"").decode()},
        {"record": {"MemoryCurve": {"time": {"array": "a"}, "values": {"array": "a"}}}, "arrays": bomb(0xFFFFFFF0)},
        {"record": {"MemoryCurve": {"time": {"array": "a"}, "values": {"array": "a"}}}, "arrays": pickled()},
        {"record": {"MemoryCurve": {"nothing": 1}}, "arrays": "$"},
        {"record": {}, "arrays": ""},
        {},
    ],
)
def test_a_sealed_file_builds_nothing_but_its_own_class_and_unpickles_nothing(body, tmp_path):
    file = tmp_path / "hostile.json"
    file.write_bytes(seal({"format": FORMAT, **body}))
    with pytest.raises(DamagedResultError, match=r"hostile\.json"):
        holdfast.MemoryCurve.load(file)


def test_what_json_reads_is_what_was_saved(results, tmp_path):
    saved = json.loads(results["DecayFit"].save(tmp_path / "fit.json").read_text())
    assert saved["record"]["DecayFit"]["law"] == "exponential"
    assert saved["format"] == FORMAT


def test_every_result_class_at_the_top_is_a_record():
    names = (
        "MemoryCurve",
        "DecayFit",
        "PerturbationCurve",
        "StabilityVerdict",
        "Certificate",
        "ExponentialSum",
        "Diagnosis",
    )
    assert all(issubclass(getattr(holdfast, name), Record) for name in names)
    assert issubclass(GradientHistory, Record) and issubclass(TrainingRun, Record)

import json
import math

import pytest

from holdfast._provenance import Provenance
from holdfast.errors import ArgumentError, DamagedResultError
from holdfast_papers.benchmarks import markdown
from holdfast_papers.benchmarks.growth import Growth
from holdfast_papers.benchmarks.memory import Peak
from holdfast_papers.benchmarks.report import Report, Row
from holdfast_papers.benchmarks.table import speed, summary
from holdfast_papers.benchmarks.timing import Quartiles

ROWS = (
    Row(
        "scan-2x3x4",
        "row 1",
        (2, 3, 4),
        "peer | one",
        4.0,
        "at least",
        "met",
        "",
        1.5,
        12.0,
        Quartiles(7.0, 8.0, 9.0),
        11,
    ),
    Row("scan-2x3x5", "row 2", (2, 3, 5), "gemm", 1.15, "at most", "missed", "", 2.0, 1.0, Quartiles(1.9, 2.0, 2.1), 5),
    Row("scan-2x3x5", "row 1", (2, 3, 5), "peer | one", 4.0, "at least", "not run", "jax not installed"),
)
GROWTH = (Growth("scan", "T", (2, 3, 4), (1, 2, 4), (0.1, 0.2, 0.4), 1.0, 0.01, 1.0),)
MEMORY = (Peak("scan", (2, 3, 4), 2**20, 2**19, "6 B T N"), Peak("lru", (2, 3, 4), None, 2**19, "x", "not measured: y"))


@pytest.fixture
def report():
    provenance = Provenance.collect(seed=0, native="v4", peers={"jax": "9.9"})
    return Report("holdfast bench --peers", provenance, ROWS, GROWTH, MEMORY)


def test_json_gives_back_what_was_written(report, tmp_path):
    report.save(tmp_path / "bench.json")
    assert Report.load(tmp_path / "bench.json") == report


def test_json_is_valid_even_with_an_infinite_error(report, tmp_path):
    row = Row("c", "r", (1, 1), "x", None, "at least", "wrong", ours_error=math.inf)
    Report("c", report.provenance, (row,), (), ()).save(tmp_path / "bench.json")
    assert json.loads((tmp_path / "bench.json").read_text())["rows"][0]["ours_error"] == 1e308


def test_reading_what_is_no_report_says_so(tmp_path):
    path = tmp_path / "bench.json"
    with pytest.raises(ArgumentError, match="write it with `holdfast bench --json"):
        Report.load(path)
    path.write_text("{")
    with pytest.raises(DamagedResultError, match="is not valid JSON"):
        Report.load(path)
    with path.open("wb") as file:
        file.truncate(2**40)  # a hole in the file: nothing is read into memory beyond the limit
    with pytest.raises(DamagedResultError, match="was not written by `holdfast bench --json`"):
        Report.load(path)
    path.write_text("[]")
    with pytest.raises(DamagedResultError, match="was not written by `holdfast bench --json`"):
        Report.load(path)


def test_table_puts_the_shapes_of_a_row_below_each_other():
    lines = speed(ROWS).lines
    assert [line[:2] for line in lines] == [("row 1", "2 x 3 x 4"), ("row 1", "2 x 3 x 5"), ("row 2", "2 x 3 x 5")]
    assert lines[0][3:] == ("1.5", "12", "8.00 (7.00-9.00, n=11)", ">= 4", "met")
    assert lines[1][3:] == ("", "", "", ">= 4", "not run: jax not installed")
    assert lines[2][3:] == ("2", "1", "2.00 (1.90-2.10, n=5)", "<= 1.15", "missed")


def test_summary_counts_each_status(report):
    assert summary(report) == "goals: 1 met, 1 missed, 1 not run"


def test_markdown_has_machine_command_and_every_table(report):
    text = markdown.render(report)
    assert "Command: `holdfast bench --peers`." in text
    assert report.provenance.machine["cpu"] in text
    assert "jax 9.9" in text
    assert "| row 1 | 2 x 3 x 4 | peer \\| one | 1.5 | 12 | 8.00 (7.00-9.00, n=11) | >= 4 | met |" in text
    assert "| scan | T | 1 to 4 | 2 x 3 x 4 | 1.00 ± 0.01 | 1 |" in text
    assert "| scan | 2 x 3 x 4 | 1 | 0 | 2.00 | 6 B T N |" in text


def test_page_is_changed_only_between_its_marks(report, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# Speed\n\nwords\n\n{markdown.BEGIN}\nold numbers\n{markdown.END}\n\nmore words\n")
    markdown.write_page(page, report)
    once = page.read_text()
    assert once.startswith("# Speed\n\nwords\n\n")
    assert once.endswith(f"{markdown.END}\n\nmore words\n")
    assert "old numbers" not in once
    markdown.write_page(page, report)
    assert page.read_text() == once


def test_page_without_marks_is_refused_and_left_alone(report, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Speed\n")
    with pytest.raises(ArgumentError, match="must contain each of these two lines once"):
        markdown.write_page(page, report)
    assert page.read_text() == "# Speed\n"


def test_new_page_can_be_written_again(report, tmp_path):
    page = tmp_path / "page.md"
    markdown.write_page(page, report)
    once = page.read_text()
    markdown.write_page(page, report)
    assert page.read_text() == once

"""Kept results of earlier settings hold claims that the rule for differences over seeds decided."""

import importlib.util
from pathlib import Path

import pytest

from holdfast_papers.results import Result

ROOT = Path(__file__).parents[3]
KEPT = ROOT / "docs" / "results"


@pytest.fixture(scope="module")
def tool():
    path = ROOT / "tools" / "judge_kept_results.py"
    spec = importlib.util.spec_from_file_location("judge_kept_results", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _earlier(tool):
    found = [Result.load(KEPT / id / "conclusion-standard") for id in tool.JUDGES]
    return [result for result in found if dict(result.config) != tool.get(result.experiment).config("standard")]


def test_judging_kept_results_again_changes_nothing(tool, capsys):
    for result in _earlier(tool):
        again = tool.judged(result)
        assert [claim.status for claim in again.claims] == [claim.status for claim in result.claims]
        assert tool.NOTE in again.page.notes


def test_no_kept_claim_counts_seeds_or_two_standard_errors(tool):
    for result in _earlier(tool):
        for claim in result.claims:
            assert not tool.COUNTED.search(claim.statement), (result.experiment, claim.name)


def test_equal_arms_are_never_met(tool):
    """The losses of best, exp and softplus at the largest rate agree to 0.0003 nats: no claim of order can be met."""
    kept = {r.experiment: r for r in _earlier(tool)}
    if "stable-fig6" not in kept:
        pytest.skip("stable-fig6 is of the new setting")
    assert {claim.status for claim in kept["stable-fig6"].claims} == {"undecided"}

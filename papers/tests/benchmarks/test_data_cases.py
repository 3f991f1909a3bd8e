"""The batches that are timed are right: each sample is the same when it is made alone."""

import pytest

from holdfast_papers.benchmarks.cases import data
from holdfast_papers.benchmarks.run import prepare


@pytest.mark.parametrize("case", data.cases(), ids=lambda case: case.group)
def test_a_batch_holds_the_samples_that_its_indices_give_alone(case):
    inputs = {"indices": case.inputs()["indices"][:5]}
    ready = prepare(case, case.ours, inputs, lambda: case.truth(inputs))
    assert ready.reason == ""

import pytest
import torch

from holdfast_papers.benchmarks.check import compare

TRUTH = {"y": torch.tensor([1.0, -2.0], dtype=torch.float64), "a": torch.tensor([4.0], dtype=torch.float64)}


def test_error_is_a_share_of_the_largest_entry():
    found = compare({"y": torch.tensor([1.0, -1.9]), "a": torch.tensor([4.0])}, TRUTH, 0.1)
    assert found.fault == ""
    assert found.errors["y"] == pytest.approx(0.05, rel=1e-6)  # float32 of 1.9
    assert found.worst == found.errors["y"]


def test_a_wrong_gradient_is_a_fault_that_is_named():
    found = compare({"y": TRUTH["y"], "a": torch.tensor([4.5])}, TRUTH, 1e-4)
    assert found.fault == "differs from the float64 truth: a 1.2e-01 (allowed 1.0e-04)"


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_a_fault(bad):
    found = compare({"y": torch.tensor([1.0, bad]), "a": TRUTH["a"]}, TRUTH, 1.0)
    assert "y inf" in found.fault


def test_a_missing_gradient_is_a_fault():
    assert compare({"y": TRUTH["y"]}, TRUTH, 1.0).fault == "gives y where the truth has a, y"


def test_a_wrong_shape_is_a_fault():
    found = compare({"y": torch.zeros(2, 1), "a": TRUTH["a"]}, TRUTH, 1.0)
    assert found.fault == "y has shape (2, 1) where the truth has (2,)"


def test_a_truth_of_zero_is_compared_absolutely():
    zero = {"y": torch.zeros(2, dtype=torch.float64)}
    assert compare({"y": torch.zeros(2)}, zero, 1e-6).fault == ""
    assert compare({"y": torch.full((2,), 1e-3)}, zero, 1e-6).fault != ""

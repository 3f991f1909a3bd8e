"""Every contender computes what it is said to compute; peers that are not installed are skipped."""

import pytest
import torch

from holdfast.kernels.s4d import s4d as s4d_kernel
from holdfast_papers.benchmarks.cases import gated, lru, rnn, s4d, scan, selective, token
from holdfast_papers.benchmarks.check import compare
from holdfast_papers.benchmarks.peers import optional
from holdfast_papers.benchmarks.peers.fft_s4d import fft_s4d
from holdfast_papers.benchmarks.run import prepare
from holdfast_papers.benchmarks.steps import training_step, truth_by

SMALL = {scan: (3, 20, 16), s4d: (3, 20, 2, 8), lru: (3, 20, 4, 8), rnn: (3, 20, 4, 8), selective: (3, 20, 4, 8)}
PAIRS = [
    pytest.param(module, i, id=f"{module.GROUP}: {match.against.name}")
    for module, shape in SMALL.items()
    for i, match in enumerate(module._case(shape).matches)
]


@pytest.mark.parametrize(("module", "i"), PAIRS)
def test_contender_agrees_with_its_float64_truth_in_outputs_and_gradients(module, i):
    case = module._case(SMALL[module])
    contender = case.matches[i].against
    if optional.missing(contender.modules):
        pytest.skip(optional.missing(contender.modules))
    inputs = case.inputs()
    ready = prepare(case, contender, inputs, lambda: case.truth(inputs))
    assert ready.reason == ""
    assert ready.check.worst <= case.tolerance


@pytest.mark.parametrize("module", SMALL, ids=lambda m: m.GROUP)
def test_ours_agrees_with_the_truth_by_which_all_are_measured(module):
    case = module._case(SMALL[module])
    inputs = case.inputs()
    assert prepare(case, case.ours, inputs, lambda: case.truth(inputs)).reason == ""


@pytest.mark.parametrize("kind", gated.MODULES)
def test_gated_modules_and_their_streams_agree_with_the_references_in_float64(kind):
    for case in (gated._case(kind, (3, 20, 4, 8)), gated.stream_case(kind, (2, 1, 5, 7))):
        inputs = case.inputs()
        for contender in (case.ours, *(match.against for match in case.matches)):
            assert prepare(case, contender, inputs, lambda case=case, inputs=inputs: case.truth(inputs)).reason == ""


def test_one_token_of_ours_and_of_transformers_agrees_with_the_references_in_float64():
    pytest.importorskip("transformers")
    case = token.case((2, 1, 5, 3))
    inputs = case.inputs()
    for contender in (case.ours, case.matches[0].against):
        assert prepare(case, contender, inputs, lambda: case.truth(inputs)).reason == ""


@pytest.mark.parametrize("shape", [(2, 1, 3, 4), (2, 64, 3, 4), (2, 300, 2, 16)])
def test_fft_truth_of_s4d_is_the_loop_over_time_in_float64(shape):
    inputs = s4d.make_inputs(shape)
    loop = truth_by(lambda *leaves: s4d_kernel(*leaves, backend="reference")[0])(inputs)
    runner = training_step(fft_s4d, {name: x.double() for name, x in inputs.items()})
    # the phase pi n dt l of the last power is below 700 rad, and the FFT sums 600 terms: 1e-13 each, 1e-11 in all
    assert compare(runner.read(runner.step()), loop, 1e-10).fault == ""


def test_mambapy_has_no_conjugate_in_its_complex_backward():
    """Why its scan is compared on real numbers only."""
    pscan = pytest.importorskip("mambapy.pscan").pscan
    numbers = torch.Generator().manual_seed(0)
    a, b, cotangent = (torch.randn(1, 4, 1, 1, dtype=torch.complex128, generator=numbers) for _ in range(3))
    leaves = [x.clone().requires_grad_() for x in (a, b)]
    h = pscan(*leaves)
    found = torch.autograd.grad(h, leaves, cotangent)
    again = [x.clone().requires_grad_() for x in (a, b)]
    states, state = [], torch.zeros_like(b[:, 0])
    for t in range(4):
        state = again[0][:, t] * state + again[1][:, t]
        states.append(state)
    right = torch.autograd.grad(torch.stack(states, 1), again, cotangent)
    assert torch.allclose(h, torch.stack(states, 1))
    assert not any(torch.allclose(x, y) for x, y in zip(found, right, strict=True))
    # conjugating a and the states is all that is missing
    conjugated = [x.conj().resolve_conj().clone().requires_grad_() for x in (a, b)]
    repaired = torch.autograd.grad(pscan(*conjugated), conjugated, cotangent)
    assert all(torch.allclose(x, y) for x, y in zip(repaired, right, strict=True))


def test_missing_peers_are_named_as_on_pypi():
    assert optional.missing(()) == ""
    assert optional.missing(("torch",)) == ""
    if optional.missing(("s5",)):
        assert optional.missing(("s5",)).startswith("s5-pytorch not installed; pip install 'holdfast-papers[peers]'")

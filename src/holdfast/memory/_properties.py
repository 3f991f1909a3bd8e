"""check_properties: which of the papers' assumptions a model meets, each with a counterexample where it does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from holdfast._arguments import as_generator, checked
from holdfast._codec import plain
from holdfast.errors import ArgumentError
from holdfast.memory import _property_tests
from holdfast.memory._checks import prepare
from holdfast.memory._curve import ModelError
from holdfast.memory._options import Run

Answer = Literal["yes", "no", "undecided"]
PROPERTY_NAMES = ("linear", "continuous", "bounded", "time_homogeneous", "causal", "regular")


@dataclass(frozen=True)
class Property:
    """One answer: what was seen, in words and numbers, and for "no" the inputs that show it.

    Args:
        answer: "yes" (the tests did not refute it), "no" or "undecided".
        explanation: one sentence that says what was seen.
        numbers: the measured sizes behind the answer, by name.
        counterexample: for "no", the inputs that refute the property, by name.
    """

    answer: Answer
    explanation: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    counterexample: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)

    def __bool__(self) -> bool:
        """True for "yes" only."""
        return self.answer == "yes"


@dataclass(frozen=True)
class Properties:
    """The six properties of "Inverse Approximation Theory", Def. 2.1, of H_t(x) - H_t(0); each field is a Property.

    Args:
        linear: superposition, H(a x + b x') = a H(x) + b H(x').
        continuous: nearby inputs have nearby outputs.
        bounded: |H_t(x)| is at most a constant times |x|_inf.
        time_homogeneous: a shifted input gives the shifted output.
        causal: outputs do not depend on later inputs.
        regular: bounded inputs that fade pointwise leave nothing in the output.
    """

    linear: Property
    continuous: Property
    bounded: Property
    time_homogeneous: Property
    causal: Property
    regular: Property

    def to_dict(self) -> dict[str, Any]:
        """Answers, explanations and numbers, for JSON; an infinite number becomes None."""
        shown = ("answer", "explanation", "numbers")
        return {
            name: plain({part: getattr(getattr(self, name), part) for part in shown}, exact=False)
            for name in PROPERTY_NAMES
        }


@checked
def check_properties(
    model: Callable[..., Any],
    input_size: int = 1,
    horizon: int = 200,
    *,
    double: bool = False,
    run: Run | None = None,
    seed: int | torch.Generator = 0,
) -> Properties:
    """Tests a black box for the properties of "Inverse Approximation Theory", Def. 2.1, on `horizon` steps.

    Linear: superposition of random inputs. Continuous: halving segments between inputs, always the half over which the
    output changes more; a jump survives all halvings. Bounded: |H| / |x|_inf over amplitudes 1e-3 to 1e3 and over
    lengths up to `horizon` (inputs reach back to -inf, so a response that grows with the length is not bounded).
    Time-homogeneous: an input shifted behind zeros. Causal: a changed future, and a cut one. Regular: bounded inputs
    that fade pointwise, by amplitude and by moving into the past, must leave nothing.

    "yes" is what the tests did not refute, "no" comes with the inputs that refute it, "undecided" is for growth or
    decay that `horizon` steps do not settle. The model must be repeatable and keep rows apart (ModelError otherwise).

    Args:
        model: the model to test, as `memory_function` takes it.
        input_size: number of input features.
        horizon: length of the random inputs in steps, at least 16.
        double: test a float64 copy of an nn.Module, which leaves less room for rounding errors.
        run: how the model is called (layout, mode, dtype, device); None is `Run()`.
        seed: number or torch.Generator for the random inputs.

    Returns:
        a Properties object with an answer, a reason and a counterexample for each property.

    Raises:
        ModelError: the model is not repeatable, or rows of a batch influence each other.

    Example:
        >>> import torch, holdfast
        >>> found = holdfast.check_properties(lambda x: x.cumsum(1), horizon=32)
        >>> found.linear.answer, found.causal.answer, found.bounded.answer
        ('yes', 'yes', 'no')
    """
    if horizon < 16:
        raise ArgumentError(f"horizon must be at least 16 steps, got {horizon}")
    generator = as_generator(seed)
    run = run or Run()
    with run.undisturbed(model), torch.no_grad():
        subject = run.subject(model, input_size, double=double)
        # whether it is causal is one of the questions here, and no reason to refuse it
        prepare(subject, generator, causal=False)
        probe = _property_tests.Functional(subject, horizon, generator)
        if not probe.finite:
            raise ModelError(
                "expected finite outputs, got NaN or infinity on inputs of size 1; check that the model is stable, or scale "
                "its inputs"
            )
        return Properties(**{name: Property(*getattr(_property_tests, name)(probe)) for name in PROPERTY_NAMES})

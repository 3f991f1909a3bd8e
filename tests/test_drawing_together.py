"""Several results drawn into the same axes can be distinguished."""

import numpy as np
import pytest

from holdfast import MemoryCurve, fit_decay

pyplot = pytest.importorskip("matplotlib.pyplot")


def test_curves_in_the_same_axes_have_colours_and_names_of_their_own():
    _, ax = pyplot.subplots()
    t = np.arange(200.0)
    for rate in (0.05, 0.1, 0.2):
        fit_decay(MemoryCurve(time=t, values=np.exp(-rate * t), floor=np.full(200, 1e-9))).plot(ax)
    lines = [line for line in ax.get_lines() if line.get_label().startswith("envelope")]
    assert [line.get_label() for line in lines] == [
        "envelope of M(t)",
        "envelope of M(t) (2)",
        "envelope of M(t) (3)",
    ]
    assert len({line.get_color() for line in lines}) == 3
    # of the noise, which all of them have, one rule is enough
    assert sum(line.get_label() == "noise" for line in ax.get_lines()) == 1
    pyplot.close("all")

"""Values as JSON's own types."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast._codec import plain, restored
from holdfast.errors import ArgumentError


@dataclass(frozen=True)
class Pair:
    left: Any
    right: Any


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": (1, 2.5, None, True, "x")}, {"a": [1, 2.5, None, True, "x"]}),
        ({3: np.int64(4)}, {"3": 4}),
        (np.bool_(True), True),
        (np.float32(0.5), 0.5),
        (np.longdouble(0.5), 0.5),
        (np.array([np.longdouble(2.0)]), [2.0]),
        (np.clongdouble(1 + 2j), [1.0, 2.0]),
        (np.array([1 + 2j]), [[1.0, 2.0]]),
        (torch.tensor([[1.0], [2.0]]), [[1.0], [2.0]]),
        (Pair(Path("x"), Pair(1, ())), {"left": "x", "right": {"left": 1, "right": []}}),
    ],
)
def test_plain_gives_types_of_json(value: Any, expected: Any) -> None:
    assert plain(value) == expected
    assert type(plain(value)) is type(expected)
    assert json.loads(json.dumps(plain(value), allow_nan=False)) == expected


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, np.float64(math.inf), np.array([math.nan])])
def test_numbers_without_a_word_in_json_come_back(value: Any) -> None:
    written = json.dumps(plain({"x": [value]}), allow_nan=False)
    np.testing.assert_array_equal(restored(json.loads(written))["x"][0], value)
    assert json.dumps(plain({"x": value}, exact=False)).replace("[", "").replace("]", "") == '{"x": null}'


def test_a_dict_that_only_resembles_a_number_is_left_alone() -> None:
    assert restored({"float": 1.5}) == {"float": 1.5}
    assert restored({"float": "inf", "other": 1}) == {"float": "inf", "other": 1}


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", Pair, lambda: 0])
def test_what_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(ArgumentError, match="expected numbers, text"):
        plain({"x": value})

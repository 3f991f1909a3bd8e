"""Odd values of any option of any task end in a task or in an error that names the option."""

import random

import pytest
import torch
from test_tasks import OPTIONS

import api_fuzz
from holdfast.data import TASKS
from holdfast.errors import HoldfastError

CALLS = 15


@pytest.mark.parametrize("name", TASKS)
def test_an_odd_value_gives_a_task_or_an_error_that_names_it(root, user_mistakes, monkeypatch, name):
    monkeypatch.chdir(root)  # odd values are names of files for some options
    monkeypatch.setattr("holdfast.data._download.obtain", no_network)
    monkeypatch.setattr("holdfast.data._files.obtain", no_network)
    for number in range(CALLS):
        options = OPTIONS[name](root)
        odd = api_fuzz.replaced(random.Random(f"{name} {number}"), TASKS[name], options)
        try:
            task = TASKS[name](**options | odd)
            task.batch("train", torch.tensor([0]))
            assert task.describe() and task.identity()
        except (HoldfastError, TypeError, ValueError) as error:
            assert api_fuzz.names_it(error, odd), f"{odd}: {error}"


def no_network(*_, **__):
    raise HoldfastError("part download")  # these two options lead here, and nowhere else in these tests

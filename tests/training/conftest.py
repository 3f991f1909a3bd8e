"""Fixtures of the tests of training: one thread, the tiny task and its settings."""

import pytest
from small_training import CONFIG, new_task

pytest.importorskip("lightning_fabric", reason="needs the extra `train`")


@pytest.fixture(autouse=True)
def one_thread(threads):
    threads(1)


@pytest.fixture
def task():
    return new_task()


@pytest.fixture
def config():
    return dict(CONFIG)

import pytest


@pytest.fixture(autouse=True)
def _one_thread(threads):
    """OpenMP threads wait by spinning: on a shared machine two of them can make a small step 100x slower than one."""
    threads(1)

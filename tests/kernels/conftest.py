import pytest
import torch


@pytest.fixture
def poisoned():
    """Fills every new tensor with NaN, so that an element that is never written shows."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)

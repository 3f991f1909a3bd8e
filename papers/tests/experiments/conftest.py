"""Runs an experiment at the quick preset and looks at what every conclusion must have."""

import pytest

from holdfast_papers import experiments


@pytest.fixture
def conclude():
    """run(id, **changes) -> Result: a claim that is not met is explained, a figure has a caption."""

    def run(id, **changes):
        result = experiments.run(id, "quick", **changes)
        assert result.claims and all(claim.explanation for claim in result.claims if claim.status != "met")
        assert result.page.figures and all(figure.caption for figure in result.page.figures)
        return result

    return run


@pytest.fixture
def claims(conclude):
    """run(id, **changes) -> the claims of its conclusion, by name."""
    return lambda id, **changes: {claim.name: claim for claim in conclude(id, **changes).claims}


@pytest.fixture
def met():
    """met(claims, *names): whether those claims are met; all of them where none is named."""
    return lambda found, *names: all(found[name].status == "met" for name in names or found)

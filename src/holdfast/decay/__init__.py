"""The decay law of a memory curve."""

from holdfast.decay.envelope import envelope
from holdfast.decay.fit_decay import fit_decay
from holdfast.decay.result import AsymptoticLaw, DecayFit, UndecidedError
from holdfast.decay.spectrum import asymptotic_law

__all__ = ["AsymptoticLaw", "DecayFit", "UndecidedError", "asymptotic_law", "envelope", "fit_decay"]

"""The decay law of a memory curve."""

from holdfast.decay.decide import fit_decay
from holdfast.decay.envelope import envelope
from holdfast.decay.fit import AsymptoticLaw, DecayFit, UndecidedError
from holdfast.decay.spectrum import asymptotic_law

__all__ = ["AsymptoticLaw", "DecayFit", "UndecidedError", "asymptotic_law", "envelope", "fit_decay"]

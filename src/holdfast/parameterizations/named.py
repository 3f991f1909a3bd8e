"""The name and the constants of a parameterization as a part of the state dict, checked when it is loaded."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from holdfast._types import Time
from holdfast.errors import ArgumentError


class Named(nn.Module):
    """A module that writes `key`, `time` and its constants into the state dict, as one tensor of bytes.

    A tensor, because safetensors holds nothing else, and of bytes, because `.to(bfloat16)` rounds every other kind.
    Loaded into a module of the same name the constants are taken over, into one of another name they are refused:
    the same free weights would mean another recurrence. Layers translate them first (`_saved.py`).
    """

    key: ClassVar[str]
    time: Time

    def constants(self) -> dict[str, float]:
        """The numbers that the map depends on beside its free weights."""
        return {name: value for name, value in self.__dict__.items() if isinstance(value, float)}

    def _identity(self) -> str:
        return self.key

    def get_extra_state(self) -> Tensor:
        """Name, time and constants."""
        text = json.dumps({"name": self._identity(), "time": self.time, "constants": self.constants()})
        return torch.tensor(list(text.encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        """Takes the constants over where the name is the same; raises otherwise."""
        saved = decoded(state)
        came, here = (saved.get("name"), saved.get("time")), (self._identity(), self.time)
        constants = saved.get("constants")
        if came != here or not isinstance(constants, dict) or set(constants) != set(self.constants()):
            raise ArgumentError(
                f"the state dict holds free weights of the parameterization {came[0]!r} ({came[1]} time); this model has "
                f"{here[0]!r} ({here[1]} time), where they mean other eigenvalues. Build the layer with the saved "
                "parameterization, or call stabilize(...) as it was called before saving, or undo() it before saving."
            )
        self._check_constants(constants)
        for name, value in constants.items():
            setattr(self, name, float(value))

    def _check_constants(self, constants: dict[str, Any]) -> None:
        """Refuses constants that the constructor refuses: best with a = b = -5 is unstable for every weight."""
        if constants:
            type(self)(**constants)


def decoded(state: Any) -> dict[str, Any]:
    """Name, time and constants as they were saved."""
    try:
        saved = json.loads(bytes(state.cpu().tolist()))
    except (AttributeError, TypeError, ValueError):
        saved = None
    if not isinstance(saved, dict):
        raise ArgumentError("the name of a parameterization in the state dict cannot be read; was it converted or cut?")
    return saved

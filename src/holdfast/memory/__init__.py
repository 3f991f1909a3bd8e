"""The memory of a sequence model: probes, curves, functional properties, repeated inputs and closed forms.

`measure.py` holds `memory_function`, `options.py` what can be said to it and `curve.py` what it gives. `preserve.py` leaves
the model as it was, `subject.py` gives every model one face, `precision.py` says whether in float64, `checks.py` sees that
it can be measured, `state.py` whether it goes on from a state, `settle.py` brings it to rest. `probes.py` has the inputs of
a probe, `window.py` the reversed one in the paper's own form, `search.py` looks for the worst input and `linear.py` knows
that of a linear model. `properties.py` (tests in `functional.py`) and `repeated.py` hold other public functions,
`capacity.py` and `receptive_field.py` measures that others use, `huggingface.py` the adapters for transformers,
`closed_form/` exact answers for linear layers.
"""

from holdfast.memory import closed_form, huggingface
from holdfast.memory.capacity import MemoryCapacity, Readout, memory_capacity
from holdfast.memory.curve import MemoryCurve, ModelError, NotCausalError
from holdfast.memory.measure import memory_function
from holdfast.memory.options import InputSearch, Probe, Run
from holdfast.memory.properties import Properties, Property, check_properties
from holdfast.memory.receptive_field import ReceptiveField, receptive_field
from holdfast.memory.repeated import repeated_input_memory

__all__ = [
    "InputSearch",
    "MemoryCapacity",
    "MemoryCurve",
    "ModelError",
    "NotCausalError",
    "Probe",
    "Properties",
    "Property",
    "Readout",
    "ReceptiveField",
    "Run",
    "check_properties",
    "closed_form",
    "huggingface",
    "memory_capacity",
    "memory_function",
    "receptive_field",
    "repeated_input_memory",
]

"""The memory of a sequence model: probes, curves, functional properties, repeated inputs and closed forms.

`_measure.py` holds `memory_function`, `_options.py` what can be said to it and `_curve.py` what it gives. `preserve.py`
leaves the model as it was, `_subject.py` gives every model one face, `_checks.py` sees that it can be measured and brings
it to rest. `_probes.py` has the inputs of a probe, `_search.py` looks for the worst input, `_confirming.py` tells a memory
that is gone from a zero of an oscillation. `_properties.py` (tests in `_property_tests.py`) and `_repeated.py` hold other
public functions, `_on_data.py` (with `_data_runner.py` and `_data_memory.py`) measures along data, `_capacity.py` and
`_receptive_field.py` hold measures that others use, `huggingface.py` the adapters for transformers, `closed_form/` exact
answers for linear layers.
"""

from holdfast.memory import closed_form, huggingface
from holdfast.memory._capacity import MemoryCapacity, Readout, memory_capacity
from holdfast.memory._curve import MemoryCurve, ModelError, NotCausalError
from holdfast.memory._data_memory import DataMemory
from holdfast.memory._measure import memory_function
from holdfast.memory._on_data import memory_on_data
from holdfast.memory._options import InputSearch, Probe, Run
from holdfast.memory._properties import Properties, Property, check_properties
from holdfast.memory._receptive_field import ReceptiveField, receptive_field
from holdfast.memory._repeated import repeated_input_memory

__all__ = [
    "DataMemory",
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
    "memory_on_data",
    "receptive_field",
    "repeated_input_memory",
]

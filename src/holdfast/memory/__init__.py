"""The memory of a sequence model: probes, curves, functional properties, repeated inputs and closed forms."""

from holdfast.memory import closed_form, huggingface
from holdfast.memory.curve import MemoryCurve, ModelError, NotCausalError
from holdfast.memory.measure import memory_function
from holdfast.memory.properties import Properties, Property, check_properties
from holdfast.memory.repeated import repeated_input_memory

__all__ = [
    "MemoryCurve",
    "ModelError",
    "NotCausalError",
    "Properties",
    "Property",
    "check_properties",
    "closed_form",
    "huggingface",
    "memory_function",
    "repeated_input_memory",
]

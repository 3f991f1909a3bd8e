"""Beyond the papers: how fast a memory can be learned, and by which parameterization.

Experiments: `slopes.py` (the largest rate that trains, by memory), `rule.py` (the library's rate on tasks that it was
not chosen on), `choice.py` (which parameterization learns best) and `gates.py` (LSTM and GRU against their reach). All
of them train many copies at once by `_copies.py`: of a linear layer (`_linear.py`), a stack (`_stack.py`) or gates
(`_gated.py`). `_tasks.py` has the tasks of rule and choice, `_teacher.py` the trained teacher among them, `_sweeps.py`
one cell of them, and `_largest.py` the largest rate, which stable-rates takes too.
"""

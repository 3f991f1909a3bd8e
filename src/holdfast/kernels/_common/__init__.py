"""What the kernels share, below all of them.

`library.py` finds the compiled library, `calls.py` is the one way into C, `arguments.py` the last look before C reads a
tensor, `checks.py` the checks of a public call, `segments.py` cuts rows at resets and packed bounds, `autograd.py` holds the
ways into an operator, `memory.py` large results, `stream.py` what the memory system gives.
"""

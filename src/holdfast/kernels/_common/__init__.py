"""What the kernels share, below all of them.

`backends.py` registers and chooses backends, `checks.py` has the checks of a public call, `autograd.py` what the autograd
functions share, `segments.py` cuts rows at resets and packed bounds; `library.py` finds the compiled library, `calls.py` is
the one way from tensors into it, `gpu.py` tells where the Triton kernels run and launches them, `_triton_functions.py` is
what these share, `rooflines.py` measures what the machine gives at most.
"""

"""Recurrence kernels: reference, chunked torch and native C++ versions of each, behind one function."""

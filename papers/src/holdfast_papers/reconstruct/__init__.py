"""Inputs rebuilt from the hidden state of a linear recurrence (linrec): Vandermonde, sparse, timestamps."""

from holdfast_papers.reconstruct.bases import fourier_basis, haar_basis, learned_basis
from holdfast_papers.reconstruct.decoder import Decoder, make_decoder
from holdfast_papers.reconstruct.eigenvalues import counting_eigenvalue, ring_eigenvalues, roots_of_unity
from holdfast_papers.reconstruct.inputs import (
    Reconstruction,
    decoder,
    inputs,
    interpolated,
    longest_count,
    sparse_inputs,
    timestamp,
)
from holdfast_papers.reconstruct.operator import encode, vandermonde

__all__ = [
    "Decoder",
    "Reconstruction",
    "counting_eigenvalue",
    "decoder",
    "encode",
    "fourier_basis",
    "haar_basis",
    "inputs",
    "interpolated",
    "learned_basis",
    "longest_count",
    "make_decoder",
    "ring_eigenvalues",
    "roots_of_unity",
    "sparse_inputs",
    "timestamp",
    "vandermonde",
]

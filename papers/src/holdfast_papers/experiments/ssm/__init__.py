"""State-space Models with Layer-wise Nonlinearity are Universal Approximators: one file per figure or table."""

"""State-space Models with Layer-wise Nonlinearity are Universal Approximators: one file a figure or table."""

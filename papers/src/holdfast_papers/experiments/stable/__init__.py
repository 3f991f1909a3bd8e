"""StableSSM: one file a figure or table."""

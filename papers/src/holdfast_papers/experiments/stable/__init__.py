"""StableSSM: one file per figure or table."""

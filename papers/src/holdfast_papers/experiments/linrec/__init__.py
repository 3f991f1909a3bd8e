"""On the Universality of Linear Recurrences Followed by Nonlinear Projections: one file per figure or table."""

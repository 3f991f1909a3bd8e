"""On the Universality of Linear Recurrences Followed by Nonlinear Projections: one file a figure or table."""

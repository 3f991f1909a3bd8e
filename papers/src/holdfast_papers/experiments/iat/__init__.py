"""Inverse Approximation Theory for Nonlinear Recurrent Neural Networks: one file per figure or table."""

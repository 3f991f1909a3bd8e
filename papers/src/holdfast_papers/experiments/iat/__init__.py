"""Inverse Approximation Theory for Nonlinear Recurrent Neural Networks: one file a figure or table."""

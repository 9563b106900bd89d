"""Estimators of the compute multiplier, one a file."""

"""Fit forms: one file, one registration each."""

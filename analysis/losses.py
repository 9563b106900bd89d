"""What can be a validation loss at all."""

MIN_LOSS, MAX_LOSS = 1e-4, 1e3
"""Nats a token. A uniform guess over a million tokens is 13.8; a store may write infinity as 1.8e308."""

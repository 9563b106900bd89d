"""Data sets: each turns its name into one fixed stream of tokens, split by content, read by step."""

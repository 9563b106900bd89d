"""Figures 4 to 8 of the AttnRes paper drawn again from its numbers, and one with all claims side by side."""

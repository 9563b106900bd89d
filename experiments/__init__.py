"""One run: its spec, its data, its training, its record."""

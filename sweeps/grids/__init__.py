"""Grids: one file each, registered with ``@GRIDS.register("name")``."""

"""Residual streams: one file each, registered with ``@STREAMS.register("name")``."""

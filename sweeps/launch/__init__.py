"""Launchers: where the cells of a grid are executed. One file each."""

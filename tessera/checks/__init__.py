"""Checks of Tile kernels: races, bounds, shared memory, registers, roofline, numbers."""

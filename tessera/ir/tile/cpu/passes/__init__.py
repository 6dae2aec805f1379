"""Passes over the Tile programs of the CPU."""

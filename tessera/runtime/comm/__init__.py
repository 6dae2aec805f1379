"""Engines: what the ranks of a run speak by."""

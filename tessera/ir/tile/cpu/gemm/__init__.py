"""Contractions: packed panels and micro-kernels, or matrix registers."""

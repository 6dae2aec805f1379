"""Operators from arrays, sizes and functions: one module for each family."""

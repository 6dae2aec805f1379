"""Operators from operators, and what can be asked of them."""

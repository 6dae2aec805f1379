"""Lowering to tiles for the CPU: what one instance of a kernel computes, at sizes that may be symbols."""

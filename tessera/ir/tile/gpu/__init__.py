"""Lowering to tiles for GPUs: what one block of threads computes, at known sizes."""

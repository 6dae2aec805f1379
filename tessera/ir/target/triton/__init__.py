"""The target of GPUs: Tile IR printed as Triton, for NVIDIA and AMD."""

"""The cases of the cliff detector (benchmarks/gpu_sweep.py), by family."""

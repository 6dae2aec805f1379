"""AMD GPUs by the HIP runtime: what is different from CUDA; runtime/cuda has everything else."""

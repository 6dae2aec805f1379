"""Functions of NumPy, SciPy and PyTorch under the names that people type, written with ops."""

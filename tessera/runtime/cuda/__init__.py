"""The CUDA runtime: the driver API by ctypes, without other packages; importing it loads no driver."""

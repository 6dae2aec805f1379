"""The kernels of the standard library, in the kernel language."""

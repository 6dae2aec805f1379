"""Schedule IR: when and where a program computes, as kernels over buffers."""

"""The target of GPUs: graphs become Triton kernels, which run on arrays in a device's memory."""

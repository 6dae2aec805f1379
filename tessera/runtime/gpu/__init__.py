"""Running programs on a device, whose driver is CUDA's or HIP's (runtime/cuda, runtime/hip)."""

"""The language: tensors, tracing, jit, modules, annotations."""

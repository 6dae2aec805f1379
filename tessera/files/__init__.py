"""Files of tensors: trees in the safetensors format, read by mapping and written atomically."""

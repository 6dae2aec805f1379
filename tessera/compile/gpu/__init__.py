"""GPUs as targets, those that are here and those that are only named."""

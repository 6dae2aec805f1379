"""Language models from files: weights, tokenizers, architectures, generation."""

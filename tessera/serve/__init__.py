"""A server of language models: continuous batching over paged caches, and an OpenAI-compatible interface."""

"""Language models from files: weights, tokenizers, architectures, generation."""

from tessera.models.loading import load as load
from tessera.models.typed import types as types

"""Language models from files: weights, tokenizers, architectures, generation."""

from tessera.core.modules import answer
from tessera.models.loading import load as load
from tessera.models.typed import types as types

answer(__name__, "models")

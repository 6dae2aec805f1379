"""`load`: a model from a GGUF file or a Hugging Face folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tessera.core.errors import ModelError
from tessera.models import decoder, gemma, llama
from tessera.models.config import Config
from tessera.models.gguf import GGUF
from tessera.models.gguf_source import GGUFSource, config_of
from tessera.models.hub_tokenizer import HubTokenizer
from tessera.models.model import Family, LanguageModel
from tessera.models.safetensors import Folder, read_json
from tessera.models.source import FolderSource, Source
from tessera.models.tokenizer import Tokenizer, from_gguf

_DECODER = Family(decoder.forward, decoder.logits)
FAMILIES: dict[str, Any] = {
    **dict.fromkeys(llama.KINDS, (llama, _DECODER)),
    **dict.fromkeys(gemma.KINDS, (gemma, _DECODER)),
}


def load(path: str | os.PathLike[str]) -> Any:
    """A model from a GGUF file, or from a folder with config.json and safetensors."""
    where = Path(path)
    if where.is_dir():
        return _from_folder(where)
    if not where.exists():
        raise ModelError(f"models.load: {where} is neither a file nor a folder")
    g = GGUF(where)
    c = config_of(g)
    return _made(c, GGUFSource(g, c), from_gguf(g.metadata, str(where)), where.stem)


def _from_folder(where: Path) -> Any:
    c = Config(read_json(where / "config.json"), str(where / "config.json"))
    tokenizer = HubTokenizer(where) if (where / "tokenizer.json").is_file() else None
    return _made(c, FolderSource(Folder(where)), tokenizer, where.name)


def _made(c: Config, source: Source, tokenizer: Tokenizer | None, name: str) -> Any:
    kind = c.choice("model_type", FAMILIES)
    module, family = FAMILIES[kind]
    shape = module.shape(c)
    return LanguageModel(family, shape, module.params(shape, source), tokenizer, name)

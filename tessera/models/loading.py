"""`load`: a model from a GGUF file or a Hugging Face folder."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tessera.core.blame import blames_arguments
from tessera.core.errors import ModelError
from tessera.models import decoder, encoder, gemma, gpt2, gpt_oss, llama
from tessera.models.config import Config
from tessera.models.gguf import GGUF
from tessera.models.gguf_source import GGUFSource, config_of
from tessera.models.hub_tokenizer import HubTokenizer
from tessera.models.model import Family
from tessera.models.safetensors import Folder, read_json
from tessera.models.source import FolderSource
from tessera.models.together import together
from tessera.models.tokenizer import Tokenizer, from_gguf
from tessera.models.writer import Writer

Made = Writer | encoder.TextEncoder | encoder.ImageEncoder

_DECODER = Family(decoder.forward, decoder.logits)
FAMILIES: dict[str, Any] = {
    **dict.fromkeys(llama.KINDS, (llama, _DECODER)),
    **dict.fromkeys(gemma.KINDS, (gemma, _DECODER)),
    **dict.fromkeys(gpt2.KINDS, (gpt2, Family(gpt2.forward, gpt2.logits))),
    **dict.fromkeys(gpt_oss.KINDS, (gpt_oss, Family(gpt_oss.forward, gpt_oss.logits))),
}
PREFIXES = {"gpt2": "transformer.", "bert": "bert.", "vit": "vit."}  # of names in some files


@blames_arguments
def load(path: str | os.PathLike[str]) -> Made:
    """A model from a GGUF file, a folder with config.json and safetensors, or an installed package that
    holds one.
    """
    where, name = _found(Path(path))
    if where.is_dir():
        return _from_folder(where, name)
    g = GGUF(where)
    c = config_of(g)
    source = GGUFSource(g, c)
    made = _decoder(c, source, from_gguf(g.metadata, str(where)), name)
    source.finish()
    return made


def _found(where: Path) -> tuple[Path, str]:
    """The file or folder itself, or the one that an installed package of this name holds, and a name."""
    if where.is_dir():
        return where, where.resolve().name
    if where.exists():
        return where, where.stem
    name = str(where).replace("-", "_")
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        for path in sorted(Path(folder).rglob("*")):
            if path.suffix == ".gguf":
                return path, path.stem
            if path.name == "model.safetensors":
                return path.parent, str(where)
    raise ModelError(
        f"models.load: {where} is neither a file, a folder nor an installed package with a model"
    )


def _from_folder(where: Path, name: str) -> Made:
    if not (where / "config.json").exists():
        files = sorted(where.glob("*.gguf"))
        hint = f"; give the file {files[0]}" if files else ", and no GGUF file"
        raise ModelError(f"{where}: the folder has no config.json as those of Hugging Face{hint}")
    c = Config(read_json(where / "config.json"), str(where / "config.json"))
    kind = c.choice("model_type", {**FAMILIES, **ENCODERS})
    _check_quantisation(c, kind)
    tokenizer = HubTokenizer(where) if (where / "tokenizer.json").is_file() else None
    source = FolderSource(Folder(where), PREFIXES.get(kind, ""))
    if kind in ENCODERS:
        return ENCODERS[kind](c, source, tokenizer, where, name)
    return _decoder(c, source, tokenizer, name)


def _check_quantisation(c: Config, kind: str) -> None:
    """Refuse weights that need scales beside them, which nothing here would apply."""
    found = c.values.get("quantization_config")
    method = found.get("quant_method") if isinstance(found, dict) else found
    if method is not None and (kind, method) != ("gpt_oss", "mxfp4"):
        raise ModelError(
            f"{c.path}: the weights are quantised by {method!r}, which is not read; take the weights in "
            "bf16 or a GGUF file"
        )


def _decoder(c: Config, source: Any, tokenizer: Tokenizer | None, name: str) -> Writer:
    module, family = FAMILIES[c.choice("model_type", FAMILIES)]
    shape = module.shape(c)
    return Writer(family, shape, together(module.params(shape, source)), tokenizer, name)


def _bert(
    c: Config, w: FolderSource, tokenizer: Tokenizer | None, where: Path, name: str
) -> encoder.TextEncoder:
    shape = encoder.bert_shape(c)
    pooling = where / "1_Pooling" / "config.json"
    settings = read_json(pooling) if pooling.is_file() else {}
    how = "cls" if settings.get("pooling_mode_cls_token") is True else "mean"
    return encoder.TextEncoder(shape, encoder.bert_params(shape, w), tokenizer, name, how)


def _vit(
    c: Config, w: FolderSource, _: Tokenizer | None, __: Path, name: str
) -> encoder.ImageEncoder:
    shape = encoder.vit_shape(c)
    named = c.values.get("id2label")
    labels = len(named) if isinstance(named, dict) else c.size("num_labels", 2)
    return encoder.ImageEncoder(shape, encoder.vit_params(shape, w, labels), name)


ENCODERS: dict[str, Callable[[Config, FolderSource, Tokenizer | None, Path, str], Made]] = {
    "bert": _bert,
    "vit": _vit,
}

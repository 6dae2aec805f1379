"""The instructions of a kernel by what they do, and the registers and stack that its assembly uses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

# The first pattern that a mnemonic matches says its class; those of A64, x86, PTX and AMDGCN.
_CLASSES = (
    ("matrix", "(?:bf|s|u|us)?mmla fmopa tdp wgmma mma\\. tcgen05\\.mma v_\\w*mfma [su]dot vpdpb bfdot vdpb"),
    ("multiply-add", "fn?ml[as] fn?m(?:add|sub) vfn?m(?:add|sub) fma\\. v_(?:pk_)?fma v_mad_f"),
    ("load", "ld global_load buffer_load ds_(?:read|load) s_load flat_load cp\\.async prf prefetch"),
    ("store", "st(?!mxcsr) global_store buffer_store ds_(?:write|store) flat_store red\\. v?movnt"),
    ("branch", "b$ b\\. cbn?z tbn?z blr?$ br$ ret j[a-z]+$ call bra s_c?branch s_endpgm exit setp cmp test"),
    ("wait", "bar mbarrier s_waitcnt s_barrier fence dmb s_nop nop"),
    ("shuffle", "zip uzp trn tbl ext dup ins$ rev v?perm vpshuf v?shuf vp?broadcast vinsert vextract v?unpck "
                "vp?blend shfl prmt v_perm ds_bpermute ds_swizzle"),
    ("convert", "fcvt [su]cvtf v?cvt bfcvt vpmov[sz]x v_cvt [su]xtl [su]shll xtn"),
    ("float", "f(?!mov) v?(?:add|sub|mul|div|max|min|sqrt|rsqrt14|rcp14|andn?|or|xor|round)[ps][sd] "
              "(?:add|sub|mul|div|max|min|sqrt|rcp|neg|abs)\\.\\S*f(?:16|32|64) ex2\\. "
              "v_(?:pk_)?(?:add|sub|mul|max|min|rcp|exp|log|sqrt)_f"),
)  # fmt: skip
_MATCH = [(name, re.compile("|".join(words.split()))) for name, words in _CLASSES]
_VECTORS = re.compile(r"\b(?:v(\d+)\.|[qds](\d+)\b|[zxy]mm(\d+))|%[xyz]mm(\d+)")
_FRAME = re.compile(r"(?:sub\s+sp, sp, #(\d+)|subq?\s+\$(\d+), %rsp)")
_STACK = re.compile(r"\[sp\b|\(%rsp|%SP|scratch_")
_PTX = re.compile(r"\.reg \.(\w+)\s+%\w+<(\d+)>")


def mix_of(assembly: Sequence[str]) -> dict[str, Any]:
    """Instructions by class, how many vector registers, and the bytes and accesses of the stack."""
    counts: dict[str, int] = {}
    vectors: set[str] = set()
    frame = touches = 0
    for line in assembly:
        text = line.strip()
        declared = _PTX.search(text)
        if declared is not None:
            vectors |= {f"{declared[1]}{i}" for i in range(int(declared[2]) - 1)}
        if (
            not text
            or text.startswith((".", "//", ";", "#", "{", "}", "$", ")"))
            or text.endswith(":")
        ):
            continue
        words = text.split(None, 1)
        # A predicate of PTX stands before its instruction.
        word = (
            words[1].split(None, 1)[0] if words[0].startswith("@") and len(words) > 1 else words[0]
        )
        kind = _class(word, text)
        counts[kind] = counts.get(kind, 0) + 1
        vectors |= {x for found in _VECTORS.findall(text) for x in found if x}
        made = _FRAME.search(text)
        frame += int(made[1] or made[2]) if made else 0
        touches += bool(_STACK.search(text))
    return {"counts": counts, "registers": len(vectors), "frame": frame, "stack": touches}


def _class(word: str, text: str) -> str:
    """The class of an instruction; a move of x86 is a load or a store by where its memory stands."""
    if re.match(r"v?mov|vmovd?q", word) and "(" in text:
        return "store" if text.rstrip().endswith(")") else "load"
    return next((name for name, pattern in _MATCH if pattern.match(word)), "integer")

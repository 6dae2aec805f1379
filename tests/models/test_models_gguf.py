"""GGUF files: what is read is what was written, and what is damaged is refused with a clear error."""

import random
import re
import struct

import numpy as np
import pytest

from tessera.core.errors import ModelError
from tessera.models.blocks import FORMATS, dequantise
from tessera.models.gguf import GGUF
from tests.support.cases.model_files import gguf, random_blocks

META = {
    "general.architecture": "llama", "n": 7, "eps": 0.5, "flag": True, "u64": (10, 2**40), "i8": (1, -3),
    "f64": (12, 0.1), "u16": (2, 65535), "names": ["a", "bé", ""], "scores": [1.5, -2.0], "types": [1, 3],
    "bools": [True, False],
}  # fmt: skip


def write(tmp_path, data):
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_and_tensors_are_what_was_written(tmp_path, version):
    w = np.arange(12, dtype=np.float32).reshape(3, 4)
    half = w.astype("<f2")
    tensors = {"w": w, "half": (1, (3, 4), half.tobytes()), "scalar": np.float32(3.5)}
    g = GGUF(write(tmp_path, gguf(META, tensors, version)))
    assert g.version == version
    for key, v in META.items():
        want = v[1] if isinstance(v, tuple) else v
        got = g.metadata[key]
        assert (got.tolist() if isinstance(got, np.ndarray) else got) == want, key
    assert (g.tensor("w") == w).all()
    assert (g.tensor("half") == w).all()
    assert g.tensor("scalar") == 3.5
    assert not g.data("w").flags.writeable


def test_alignment_of_a_file_is_its_own(tmp_path):
    w = {"a": np.ones((3,), np.float32), "b": np.full((5,), 2, np.float32)}
    g = GGUF(write(tmp_path, gguf({"general.alignment": 128}, w, alignment=128)))
    assert (g.tensor("b") == 2).all()
    assert g.tensors["b"].start % 128 == 0


@pytest.mark.parametrize("kind", FORMATS, ids=lambda k: FORMATS[k].name)
def test_every_format_has_the_bytes_and_elements_of_its_blocks(tmp_path, kind):
    f = FORMATS[kind]
    raw = random_blocks(f, 6)
    g = GGUF(write(tmp_path, gguf({}, {"w": (kind, (2, 3 * f.elements), raw.tobytes())})))
    got = g.tensor("w")
    assert got.shape == (2, 3 * f.elements)
    flat = dequantise(f, raw[5:])  # the last block alone
    np.testing.assert_array_equal(got.reshape(-1, f.elements)[5], flat)


def test_q4_1_by_hand(tmp_path):
    block = np.array([0.5, -1.0], "<f2").tobytes() + bytes(range(16))
    got = dequantise(FORMATS[3], np.frombuffer(block, np.uint8))
    assert got.tolist() == [0.5 * i - 1 for i in range(16)] + [-1.0] * 16


def refuse(tmp_path, data, text):
    with pytest.raises(ModelError, match=re.escape(text)) as e:
        GGUF(write(tmp_path, data))
    assert "\n" not in e.value.message


WRONG = {
    "empty": (b"", "ends at 0, where 4 bytes are expected at 0"),
    "magic": (b"GGML" + bytes(40), "is not a GGUF file: it does not start with GGUF"),
    "version": (gguf({}, {}, 1), "has GGUF version 1, expected 2 or 3"),
    "many tensors": (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), f"has {2**60} tensors by its own count"),
    "many pairs": (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), f"has {2**60} metadata pairs"),
    "key length": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**40) + bytes(99),
    "bytes in a key by its own count"),
    "key text": (gguf({b"\xff": 1}, {}), "has a key that is not UTF-8 at byte 32"),
    "bool": (gguf({"a": (7, 2)}, {}), "has 2 for the bool a, expected 0 or 1"),
    "type": (gguf({"a": 1}, {}).replace(b"a\4", b"a\x63"),
    "has type 99 for the value of a, expected 0 to 12"),
    "axes": (gguf({}, {"w": np.ones((1,) * 5)}), "has 5 axes for the tensor w, expected at most 4"),
    "empty axis": (gguf({}, {"w": np.ones((0, 2))}),
    "has a tensor w of shape (0, 2), expected sizes of 1 or more"),
    "format": (gguf({}, {"w": (99, (4,), bytes(16))}), "has format 99 for the tensor w, which is not read"),
    "rows": (gguf({}, {"w": (2, (33,), bytes(36))}),
    "has rows of (33,) elements in the tensor w, expected a multiple of 32"),
    "short": (gguf({}, {"w": np.ones((9,))})[:-64], "but the tensor w ends at"),
    "alignment": (gguf({"general.alignment": 3}, {}), "has alignment 3, expected a multiple of 8"),
    "alignment 0": (gguf({"general.alignment": 0}, {}), "has alignment 0, expected a multiple of 8"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_damaged_file_is_refused(tmp_path, name):
    refuse(tmp_path, *WRONG[name])


def test_a_key_or_tensor_is_there_once(tmp_path):
    good = gguf({"ab": 1, "cb": 2}, {})
    refuse(tmp_path, good.replace(b"cb", b"ab"), "has the key ab twice")
    good = gguf({}, {"ab": np.ones((8,)), "cb": np.ones((8,))})
    refuse(tmp_path, good.replace(b"cb", b"ab"), "has the tensor ab twice")


def test_a_missing_file_and_a_missing_tensor(tmp_path):
    with pytest.raises(
        ModelError, match=r"none\.gguf: cannot be read \(No such file or directory\)"
    ):
        GGUF(tmp_path / "none.gguf")
    g = GGUF(write(tmp_path, gguf({}, {"w": np.ones((4,))})))
    with pytest.raises(ModelError, match=r"m\.gguf: there is no tensor v"):
        g.tensor("v")
    with pytest.raises(ModelError, match=r"m\.gguf: tensor w is F32, which has no blocks"):
        g.groups("w")


def mutated(rng, data):
    """The bytes with some changed, cut or doubled."""
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.randrange(len(out))
        match rng.randrange(4):
            case 0:
                out[at] = rng.randrange(256)
            case 1:
                out[at : at + 8] = struct.pack("<Q", rng.choice([0, 1, 2**31, 2**63, 2**64 - 1]))
            case 2:
                del out[at : at + rng.randrange(1, 40)]
            case 3:
                out[at:at] = out[at : at + 16]
        if not out:
            break
    return bytes(out)


@pytest.mark.parametrize("count", [500, pytest.param(20_000, marks=pytest.mark.deep)])
def test_mutated_files_are_read_or_refused(tmp_path, count):
    """Never another error, and never an allocation that the file does not pay for."""
    rng = random.Random(0)
    good = gguf(
        META, {"w": np.ones((2, 4)), "q": (3, (2, 32), bytes(40)), "k": (14, (256,), bytes(210))}
    )
    refused = 0
    for _ in range(count):
        path = write(tmp_path, mutated(rng, good))
        try:
            g = GGUF(path)
        except ModelError:
            refused += 1
            continue
        assert sum(g.tensor(name).size for name in g.tensors) < 10_000
    assert count // 4 < refused < count

"""Damaged and hostile files: a clear error or the right tensors, never anything else."""

import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import tessera as ts
from tessera.core.errors import FileError
from tessera.files.header import LARGEST

DTYPES = ["F32", "F64", "BF16", "U8", "I64", "BOOL", "F4", "F8_E8M0", "C64", "F128", "", None, 3]
NUMBERS = [
    0,
    1,
    2,
    3,
    7,
    8,
    -1,
    2**31,
    2**32,
    2**62,
    2**63,
    2**64,
    10**30,
    1.0,
    1e300,
    True,
    None,
    "1",
    [],
]


def parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    n = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + n]), data[8 + n :]


def joined(text: bytes, data: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text + data


def flipped(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def longer(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.randrange(1, 20)) + data[at:]


def without_some(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.randrange(1, 20) :]


def other_length(rng: random.Random, data: bytes) -> bytes:
    n = rng.choice([0, 1, 7, len(data), LARGEST, LARGEST + 1, 2**32, 2**63, 2**64 - 1])
    return n.to_bytes(8, "little") + data[8:]


def other_field(rng: random.Random, data: bytes) -> bytes:
    """A header with one number, dtype or name in it changed."""
    table, rest = parts(data)
    name = rng.choice([n for n in table if n != "__metadata__"])
    e = table[name]
    what = rng.randrange(7)
    if what == 0:
        e["dtype"] = rng.choice(DTYPES)
    elif what == 1:
        e["shape"].insert(rng.randrange(len(e["shape"]) + 1), rng.choice(NUMBERS))
    elif what == 2:
        e["data_offsets"][rng.randrange(2)] = rng.choice([*NUMBERS, rng.randrange(len(rest) + 9)])
    elif what == 3:
        e[rng.choice(["dtype", "shape", "data_offsets", "more"])] = rng.choice([*NUMBERS, {}, [[]]])
    elif what == 4:
        del e[rng.choice(["dtype", "shape", "data_offsets"])]
    elif what == 5:
        table["__metadata__"] = rng.choice([*NUMBERS, {"a": 1}, {"a": "b"}, {"a": {"b": "c"}}])
    else:
        table[rng.choice(["new", "__metadata__"])] = table.pop(name)
    return joined(json.dumps(table).encode(), rest)


def other_text(rng: random.Random, data: bytes) -> bytes:
    """A header that is other JSON, or none."""
    table, rest = parts(data)
    text = json.dumps(table).encode()
    name = json.dumps(next(n for n in table if n != "__metadata__")).encode()
    return joined(rng.choice([
        text[:-1] + b"," + name + b":" + json.dumps(list(table.values())[-1]).encode() + b"}",  # a name twice
        text + b" " * rng.randrange(1, 9), b" " + text, text + b"\0", text + text, b"[" + text + b"]", b"",
        b"{}",
        b"[" * 10**5, b'{"a":' * 10**5, b'{"a":[' + b"[" * 60 + b"]" * 60 + b"]}",
        text.replace(b":", b"=", 1),
        text.replace(b'"', b"'"), text.replace(b"0", b"00", 1), text.replace(b"0", b"NaN", 1),
        text.replace(b"[", b"[" + b"1," * 3000, 1), text.replace(name, b'"\xff\xfe"'),
        text.replace(name, b'"\\ud800"'),
    ]), rest)  # fmt: skip


MUTATIONS = [
    flipped,
    flipped,
    cut,
    longer,
    without_some,
    other_length,
    other_field,
    other_field,
    other_text,
]


def mutate(rng: random.Random, data: bytes) -> bytes:
    out = rng.choice(MUTATIONS)(rng, data)
    return out if rng.random() < 0.8 else rng.choice([flipped, longer, cut])(rng, out or b"x")


def arrays(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    made = {"a.0.w": rng.normal(size=(2, 3)).astype(np.float32), "h": rng.normal(size=5).astype(np.float16),
            "n": rng.integers(0, 9, 4), "flag": rng.integers(0, 2, 3).astype(bool), "e": np.zeros((0, 2)),
            "s": np.array(1.5)}  # fmt: skip
    return dict(list(made.items())[: 1 + seed % 6])


def read_by_package(path: Path) -> Any:
    try:
        return safetensors.numpy.load_file(path)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError, OSError):
        return None


def read(path: Path) -> Any:
    try:
        return ts.load(path)
    except FileError as e:
        text = e.message
    assert "\n" not in text
    assert len(text) < 700
    return None


def check_foreign(folder: Path, seed: int) -> bool:
    """What we take of a file of the package that was changed, the package takes, and reads the same."""
    rng = random.Random(seed)
    path = folder / "f.safetensors"
    path.write_bytes(
        mutate(rng, safetensors.numpy.save(arrays(seed), {"k": "v"} if seed % 2 else None))
    )
    got, want = read(path), read_by_package(path)
    if got is None:
        return False
    assert want is not None, f"seed {seed}: the package refuses it"
    assert {n: x.numpy().tobytes() for n, x in got.items()} == {
        n: x.tobytes() for n, x in want.items()
    }
    return True


def check_own(folder: Path, seed: int, original: bytes) -> bool:
    """A file of ours that was changed gives the tree that was saved, or an error."""
    path = folder / "o.safetensors"
    path.write_bytes(mutate(random.Random(seed), original))
    got = read(path)
    if got is None:
        return False
    if "a" not in got:  # the metadata is gone, and with it what the digests are
        assert all(isinstance(x, ts.Tensor) for x in got.values())
        return True
    assert str(got) == str(TREE)
    return True


TREE = {
    "a": [ts.tensor([1.0, 2.0]), 3, "x"],
    "b": {"f": 0.1, "w": ts.tensor([[1, 2]])},
    "i": ts.tensor([-8, 7], ts.i4),
}


def run(folder: Path, seeds: range) -> tuple[int, int]:
    ts.save(folder / "t.safetensors", TREE)
    original = (folder / "t.safetensors").read_bytes()
    foreign = sum(check_foreign(folder, s) for s in seeds[::2])
    return foreign, sum(check_own(folder, s, original) for s in seeds[1::2])


def test_mutated_files(tmp_path):
    foreign, own = run(tmp_path, range(500))
    assert foreign > 5, "some changes do not matter"
    assert own < 25, "digests find nearly all changes of our own files"


@pytest.mark.deep
@pytest.mark.parametrize("block", range(10))
def test_many_mutated_files(tmp_path, block):
    run(tmp_path, range(1000 + block * 5000, 6000 + block * 5000))


def test_every_bit_of_a_small_file(tmp_path):
    """A file with one bit changed is refused, or says the same: only white space may differ."""
    path = tmp_path / "a.safetensors"
    ts.save(path, {"w": ts.tensor([1.0])})
    original = path.read_bytes()
    rng = random.Random(0)
    for at in rng.sample(range(len(original) * 8), 120):
        data = bytearray(original)
        data[at // 8] ^= 1 << at % 8
        path.write_bytes(bytes(data))
        got = read(path)
        assert got is None or str(got) in ("{'w': Tensor([1.], f32[1])}",), (at, got)


# Each kind of damage, by its text ---------------------------------------------------------------


def described(dtype: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def text_of(tmp_path: Path, table: Any, data: bytes = bytes(4)) -> str:
    path = tmp_path / "a.safetensors"
    raw = table if isinstance(table, bytes) else joined(json.dumps(table).encode(), data)
    path.write_bytes(raw)
    with pytest.raises(FileError) as e:
        ts.load(path)
    return e.value.message.removeprefix("load: ").replace(str(path), "FILE")


WRONG = {
    "FILE has 3 bytes, fewer than the 8 that a safetensors file begins with; it is truncated or of another "
    "format": b"abc",
    "FILE states a header of 2314885530818453536 bytes, expected at most 100000000; it is no safetensors file": b" " * 9,  # noqa: E501
    "FILE states a header of 9 bytes but has 12 bytes in all; it is truncated": b"\x09" + bytes(11),
    "FILE has no JSON header; it is no safetensors file": joined(b"[]", b""),
    "FILE: the header is nested too deep or does not end": joined(b'{"a":{"b":{"c":{}}}}', b""),
    "FILE: an array in the header is too long; the file is damaged": joined(b'{"a":[' + b"1," * 4000
    + b"1]}", b""),
    "FILE: the JSON in it cannot be read: the name 'a' stands twice": joined(b'{"a":{},"a":{}}', b""),
    "FILE: __metadata__ is not a table of strings": {"__metadata__": {"a": 1}},
    "FILE: tensor 'x' is not described by dtype, shape and data_offsets": {"x": {"dtype": "F32"}},
    "FILE: tensor 'x' has the unknown dtype 'F31'": {"x": described("F31")},
    "FILE: the shape of tensor 'x' is [-1]": {"x": described(shape=(-1,))},
    "FILE: the offsets of tensor 'x' are [4, 0]": {"x": described(offsets=(4, 0))},
    "FILE: tensor 'x' of F32[2] has 4 bytes, expected 8.0": {"x": described(shape=(2,))},
    "FILE: tensor 'x' of F32[4294967296, 4294967296] has 4 bytes, expected far more": {"x": described(shape=(2**32, 2**32))},  # noqa: E501
    "FILE: tensor 'x' of F32[0, 4611686018427387904] has 0 bytes, expected far more": {
        "x": described(shape=(0, 2**62), offsets=(0, 0))
    },
    "FILE: tensor 'y' begins at 2, expected 4: it overlaps the tensor before it; the file is damaged":
        {"x": described(), "y": described("U8", offsets=(2, 3))},
    "FILE: tensor 'x' begins at 1, expected 0: it leaves a hole before it; the file is damaged":
        {"x": described("U8", offsets=(1, 2))},
    "FILE has 4 bytes of data, expected 8; it is truncated": {"x": described(shape=(2,), offsets=(0, 8))},
    "FILE has 4 bytes of data, expected 2; it has more bytes than its tensors": {"x": described("I16",
    offsets=(0, 2))},
    "FILE: tensor 'x' is F8_E8M0, which no dtype of Tessera holds; convert it first": {"x": described("F8_E8M0", (4,))},  # noqa: E501
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_a_wrong_file_says_what_is_wrong(tmp_path, text):
    assert text_of(tmp_path, WRONG[text]) == text
    if isinstance(WRONG[text], dict) and "F8_E8M0" not in text and "[0," not in text:
        assert read_by_package(tmp_path / "a.safetensors") is None


def test_bytes_that_are_no_bools(tmp_path):
    text = text_of(tmp_path, {"x": described("BOOL", (4,))}, bytes([0, 1, 2, 0]))
    assert (
        text == "FILE: tensor 'x' is BOOL but holds bytes other than 0 and 1; the file is damaged"
    )


def test_damage_of_our_own_files(tmp_path):
    path = tmp_path / "a.safetensors"
    ts.save(path, {"w": ts.tensor([1.0, 2.0]), "n": 3})
    table, data = parts(path.read_bytes())

    def told(metadata: dict[str, str], data: bytes = data) -> str:
        return text_of(tmp_path, table | {"__metadata__": metadata}, data)

    meta = table["__metadata__"]
    damaged = "does not have the digest that was saved with it; the file is damaged"
    assert told(meta, data[:-1] + b"\1") == f"FILE: tensor 'w' {damaged}"
    changed = meta["tessera"].replace('["n",3]', '["n",4]')
    assert told(meta | {"tessera": changed}) == f"FILE: the manifest {damaged}"
    path.write_bytes(joined(json.dumps(table).encode(), data[:-1] + b"\1"))
    assert ts.load(path, check=False)["n"] == 3


def test_a_hostile_header_takes_no_memory(tmp_path):
    path = tmp_path / "a.safetensors"
    text = json.dumps({"x": described(shape=(2**40, 2**20), offsets=(0, 2**62))}).encode()
    path.write_bytes(joined(text, b""))
    tracemalloc.start()
    with pytest.raises(FileError):
        ts.load(path)
    path.write_bytes((LARGEST - 1).to_bytes(8, "little") + b"{" * 1000)
    with pytest.raises(FileError):
        ts.load(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20

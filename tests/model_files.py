"""Small model files for tests: a writer of GGUF, with nothing checked, so that tests can write what is wrong."""

import struct

import numpy as np

KINDS = {int: 4, float: 6, bool: 7, str: 8}


def text(s):
    raw = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind, v):
    formats = {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "B",
        10: "Q",
        11: "q",
        12: "d",
    }
    return text(v) if kind == 8 else struct.pack("<" + formats[kind], v)


def value(v):
    """A metadata value with its type; a pair (kind, value) states the type."""
    if isinstance(v, tuple):
        return struct.pack("<I", v[0]) + scalar(*v)
    if isinstance(v, list):
        kind = KINDS[type(v[0])] if v else 8
        items = b"".join(scalar(kind, x) for x in v)
        return struct.pack("<IIQ", 9, kind, len(v)) + items
    return struct.pack("<I", KINDS[type(v)]) + scalar(KINDS[type(v)], v)


def gguf(metadata, tensors, version=3, alignment=32):
    """The bytes of a file; tensors are {name: (number of the format, shape, bytes)} or f32 arrays."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(text(k) + value(v) for k, v in metadata.items())
    data = b""
    for name, t in tensors.items():
        kind, shape, raw = t if isinstance(t, tuple) else (0, t.shape, t.astype("<f4").tobytes())
        head += text(name) + struct.pack("<I", len(shape))
        head += b"".join(struct.pack("<Q", n) for n in shape[::-1])
        head += struct.pack("<IQ", kind, len(data))
        data += raw + bytes(-len(raw) % alignment)
    return head + bytes(-len(head) % alignment) + data


def random_blocks(f, count, seed=0):
    """Blocks of random bytes in a format."""
    return np.random.default_rng(seed).integers(0, 256, (count, f.bytes), np.uint8)

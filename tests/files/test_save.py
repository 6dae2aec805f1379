"""ts.save and ts.load: trees come back to the bit, in files that any safetensors reader opens."""

import collections
import dataclasses
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

import tessera as ts
from tessera import op
from tessera.core.dtype import FORMATS
from tessera.core.errors import FileError, MissingFileError, OperandError

ROOT = Path(__file__).parents[2]
Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Attention:
    qkv: Any
    out: Any
    heads: int = dataclasses.field(default=2, metadata={"static": True})


@dataclasses.dataclass
class Block:
    attn: Attention
    scale: float
    note: str | None = None


def same(a: Any, b: Any) -> bool:
    """Whether two trees have one structure and leaves of one type and one pattern of bits."""
    xs, s = ts.tree.flatten(a)
    ys, t = ts.tree.flatten(b)
    return s == t and all(map(same_leaf, xs, ys))


def same_leaf(x: Any, y: Any) -> bool:
    if isinstance(x, ts.Tensor | np.ndarray):
        u, v = np.asarray(x), np.asarray(y)
        return (
            type(x) is type(y)
            and x.dtype == y.dtype
            and u.shape == v.shape
            and u.tobytes() == v.tobytes()
        )
    return type(x) is type(y) and repr(x) == repr(y)


def drawn(dtype: Any, shape: tuple[int, ...], seed: int = 0) -> Any:
    """A tensor of any bits that its dtype may have."""
    d = ts.core.dtype.as_dtype(dtype)
    rng = np.random.default_rng(seed)
    if d.name == "bool":
        return ts.tensor(rng.integers(0, 2, shape).astype(bool))
    if d.name == "i4":
        return ts.tensor(rng.integers(-8, 8, shape).astype(ml_dtypes.int4))
    raw = rng.integers(0, 256, (*shape, np.dtype(d.np).itemsize), dtype=np.uint8)
    x = ts.asarray(raw.reshape(-1).view(d.np).reshape(shape))
    return (
        x if x.dtype is d else ts.ir.graph.ir.holding(ts.core.types.TensorType(d, shape), x.storage)
    )


def model() -> dict[str, Any]:
    tied = drawn("f32", (4, 3))
    return {
        "embed": tied,
        "blocks": [
            Block(Attention(drawn("bf16", (3, 9)), drawn("f16", (3, 3))), 0.1, "first"),
            Block(Attention(drawn(ts.bf16 @ ts.stochastic_round, (3, 9)), None), float("-inf")),
        ],
        "head": tied,
        "state": Pair((ts.key(7), 3, True, 2**80, 1.5 - 2j), {"step": 4, 8: [], "": ()}),
        "dtype": ts.bf16 @ ts.saturate @ ts.loss_scale(8),
        "policies": [ts.accum(ts.f32), ts.stochastic_round, ts.loss_scale(0.5)],
        "array": np.arange(6, dtype=np.int16).reshape(2, 3),
    }


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 1), (0, 4)])
def test_every_dtype_comes_back_to_the_bit(tmp_path, name, shape):
    tree = {"x": drawn(name, shape), "y": drawn(name, (7,), 1)}
    ts.save(tmp_path / "a.safetensors", tree)
    assert same(ts.load(tmp_path / "a.safetensors"), tree)
    with safetensors.safe_open(tmp_path / "a.safetensors", "np") as f:
        assert set(f.keys()) == {"x", "y"}


def test_a_tree_comes_back_with_its_classes(tmp_path):
    tree = model()
    ts.save(tmp_path / "m.safetensors", tree)
    back = ts.load(tmp_path / "m.safetensors", like=tree)
    assert same(back, tree)
    assert type(back["blocks"][0]) is Block
    assert type(back["state"]) is Pair
    assert back["embed"] is back["head"], "a tensor that stands twice is saved once"


def test_without_like_a_tree_is_dicts_lists_and_tuples(tmp_path):
    tree = model()
    ts.save(tmp_path / "m.safetensors", tree)
    back = ts.load(tmp_path / "m.safetensors")
    assert same(back["blocks"][1]["attn"]["qkv"], tree["blocks"][1].attn.qkv)
    assert back["blocks"][0]["note"] == "first"
    assert back["state"]["left"][1:] == (3, True, 2**80, 1.5 - 2j)
    assert back["state"]["right"] == {"step": 4, 8: [], "": ()}
    assert back["dtype"] is tree["dtype"]
    assert back["policies"] == tree["policies"]


def test_tensors_have_the_names_that_people_expect(tmp_path):
    ts.save(tmp_path / "m.safetensors", model())
    names = set(ts.load(tmp_path / "m.safetensors", lazy=True))
    assert names == {
        "array", "blocks.0.attn.qkv", "blocks.0.attn.out", "blocks.1.attn.qkv", "embed", "state.left.0"
    }  # fmt: skip


def test_names_that_meet_stay_apart(tmp_path):
    tree = {"a": {"b": drawn("f32", (1,))}, "a.b": drawn("f32", (2,)), "__metadata__": drawn("i8", (3,)),
            "\ud800": drawn("i8", (4,))}  # fmt: skip
    ts.save(tmp_path / "a.safetensors", tree)
    assert same(ts.load(tmp_path / "a.safetensors", like=tree), tree)
    assert len(safetensors.numpy.load_file(tmp_path / "a.safetensors")) == 4


@pytest.mark.parametrize(
    "tree", [drawn("f32", (2,)), [], None, 3, {"a": {}}], ids=lambda t: type(t).__name__
)
def test_small_trees(tmp_path, tree):
    ts.save(tmp_path / "a.safetensors", tree)
    assert same(ts.load(tmp_path / "a.safetensors"), tree)


def test_a_file_of_the_package_is_a_dict_by_names(tmp_path):
    arrays = {
        "a.0.w": np.ones((2, 3), np.float32),
        "b": np.arange(4),
        "h": np.ones(3, ml_dtypes.bfloat16),
    }
    safetensors.numpy.save_file(arrays, tmp_path / "o.safetensors", {"format": "pt"})
    back = ts.load(tmp_path / "o.safetensors")
    assert same(back, {n: ts.tensor(x) for n, x in arrays.items()})
    like = {"a": [{"w": op.zeros((2, 3))}], "b": np.zeros(4, np.int64), "h": op.zeros((3,), "bf16")}
    assert same(ts.load(tmp_path / "o.safetensors", like=like)["a"][0]["w"], ts.ones((2, 3)))
    with pytest.raises(FileError, match=r"has h, which is not in like; take what you need"):
        ts.load(tmp_path / "o.safetensors", like={k: like[k] for k in ("a", "b")})


def test_an_array_of_the_package_equals_ours(tmp_path):
    ts.save(tmp_path / "m.safetensors", {"x": drawn("f64", (3, 4)), "y": drawn("u16", (5,))})
    read = safetensors.numpy.load_file(tmp_path / "m.safetensors")
    for name, x in ts.load(tmp_path / "m.safetensors").items():
        assert read[name].tobytes() == x.numpy().tobytes()


# Lazy and sharded -------------------------------------------------------------------------------


def test_a_lazy_file_reads_what_is_asked_for(tmp_path):
    ts.save(tmp_path / "m.safetensors", {"a": drawn("f32", (3,)), "b": [drawn("i32", (2, 2))]})
    w = ts.load(tmp_path / "m.safetensors", lazy=True)
    assert {n: str(t) for n, t in w.types.items()} == {"a": "f32[3]", "b.0": "i32[2,2]"}
    assert len(w) == 2
    assert "b.0" in w
    assert same(w["b.0"], drawn("i32", (2, 2)))
    assert w["a"] is w["a"]
    with pytest.raises(KeyError, match=r"has no tensor 'c'; it has a, b\.0"):
        w["c"]


@pytest.mark.parametrize("most", [1, 60, 10**6])
def test_shards_come_back_and_are_what_others_read(tmp_path, most):
    tree = model()
    ts.save(tmp_path / "model.safetensors", tree, shard_bytes=most)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    names = sorted(set(index["weight_map"].values()))
    assert names == [
        f"model-{i + 1:05d}-of-{len(names):05d}.safetensors" for i in range(len(names))
    ]
    assert (len(names) == 1) == (most == 10**6)
    for path in (
        tmp_path,
        tmp_path / "model.safetensors",
        tmp_path / "model.safetensors.index.json",
    ):
        assert same(ts.load(path, like=tree), tree)
    for name, file in index["weight_map"].items():
        assert name in safetensors.numpy.load_file(tmp_path / file)


def test_shards_of_others_are_read(tmp_path):
    for i, arrays in enumerate(({"a": np.ones(3)}, {"b": np.zeros(2)})):
        safetensors.numpy.save_file(arrays, tmp_path / f"model-0000{i + 1}-of-00002.safetensors")
    where = {n: f"model-0000{i + 1}-of-00002.safetensors" for i, n in enumerate("ab")}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 40}, "weight_map": where}))
    assert same(ts.load(tmp_path), {"a": ts.tensor(np.ones(3)), "b": ts.tensor(np.zeros(2))})
    index.write_text(
        json.dumps({"weight_map": where | {"b": "../model-00002-of-00002.safetensors"}})
    )
    with pytest.raises(
        FileError, match="expected the name of a safetensors file in the same folder"
    ):
        ts.load(tmp_path)


def test_shards_are_replaced_only_when_the_new_ones_are_whole(tmp_path):
    path = tmp_path / "m.safetensors"
    for seed in range(4):
        ts.save(
            path, {"a": drawn("f32", (9,), seed), "b": drawn("f32", (9,), seed + 9)}, shard_bytes=40
        )
        assert same(ts.load(path)["a"], drawn("f32", (9,), seed))
        assert len(list(tmp_path.iterdir())) == 3, "older shards are gone"


# What does not fit ------------------------------------------------------------------------------


def refuse(path: Path, like: Any) -> str:
    with pytest.raises(FileError) as e:
        ts.load(path, like=like)
    return e.value.message.replace(str(path), "FILE")


def test_a_like_that_does_not_fit(tmp_path):
    path = tmp_path / "a.safetensors"
    ts.save(path, {"a": [ts.ones((2,)), 3], "b": "text", "c": None})
    ok = {"a": [ts.zeros((2,)), 0], "b": "", "c": None}
    assert ts.load(path, like=ok)["b"] == "text"
    advice = "; give the structure that was saved"
    assert [
        refuse(path, ok | {"a": [ts.zeros((3,)), 0]}),
        refuse(path, ok | {"a": [ts.zeros((2,), "f64"), 0]}),
        refuse(path, ok | {"a": [0, 0]}),
        refuse(path, ok | {"a": [ts.zeros((2,)), ts.zeros(())]}),
        refuse(path, ok | {"a": [ts.zeros((2,))]}),
        refuse(path, ok | {"d": 1}),
        refuse(path, ok | {"c": [1]}),
        refuse(path, ok | {"b": None}),
        refuse(path, ok | {"b": 2}),
        refuse(path, [1]),
    ] == [
        "load: a.0 is f32[2] in FILE, but like has f32[3]; give a like of that type, or load without like "
        "and convert",
        "load: a.0 is f32[2] in FILE, but like has f64[2]; give a like of that type, or load without like "
        "and convert",
        "load: a.0 of like is int, but a tensor in FILE",
        "load: a.1 of like is f32[], but int 3 in FILE",
        f"load: FILE has a.1, which is not in like{advice}",
        f"load: like has d, which is not in FILE{advice}",
        f"load: c of like is list, but None in FILE{advice}",
        f"load: b of like is None, but str 'text' in FILE{advice}",
        "load: b of like is int, but str 'text' in FILE",
        f"load: like has 0, which is not in FILE{advice}",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["run", "run.ckpt", "run.pt"])
@pytest.mark.parametrize("shard_bytes", [None, 64])
def test_a_path_may_have_any_suffix(tmp_path, name, shard_bytes):
    tree = {"a": ts.arange(30), "b": [ts.ones(20), 2.5]}
    ts.save(tmp_path / name, tree, shard_bytes)
    back = ts.load(tmp_path / name)
    assert back["b"][1] == 2.5
    assert back["a"].numpy().tobytes() == tree["a"].numpy().tobytes()


def test_what_cannot_be_saved_is_named(tmp_path):
    path = tmp_path / "a.safetensors"
    for tree, text in (
        ({"a": [op.gelu]}, r"save: a\.0 is .*expected a tensor, a number, a string, a dtype or None; mark the field static"),  # noqa: E501
        ({(1, 2): 3}, r"save: the tree is a dict with the key tuple \(1, 2\), expected a string or a number"),
    ):  # fmt: skip
        with pytest.raises(FileError, match=text):
            ts.save(path, tree)
    with pytest.raises(
        OperandError, match="save: shard_bytes is 0, expected a positive number of bytes"
    ):
        ts.save(path, {}, shard_bytes=0)
    with pytest.raises(
        FileError, match=r"save: x is a traced value f32\[2\]; return it from the jitted function"
    ):
        ts.jit(lambda x: ts.save(path, {"x": x}))(ts.ones((2,)))
    with pytest.raises(FileError, match=r"save: cannot write .*No such file or directory"):
        ts.save(tmp_path / "none" / "a.safetensors", {})
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_there(tmp_path):
    with pytest.raises(MissingFileError, match="load: there is no file"):
        ts.load(tmp_path / "a.safetensors")
    with pytest.raises(FileNotFoundError, match="holds no safetensors file"):
        ts.load(tmp_path)
    ts.save(tmp_path / "a.safetensors", {})
    ts.save(tmp_path / "b.safetensors", {})
    with pytest.raises(
        FileError, match=r"holds 2 files: a\.safetensors, b\.safetensors; name one of them"
    ):
        ts.load(tmp_path)


def test_a_failed_save_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.safetensors"
    ts.save(path, {"a": 1})
    (tmp_path / ".a.safetensors.999999999.tmp").write_bytes(b"of a process that was killed")
    with pytest.raises(FileError):
        ts.save(path, {"a": print})
    assert ts.load(path) == {"a": 1}
    ts.save(path, {"a": 2})
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


# Training goes on, memory, kills ----------------------------------------------------------------


def test_training_goes_on_with_the_same_bits(tmp_path):
    opt = ts.optim.adamw(1e-2)

    @ts.jit
    def step(params, state, key):
        key, now = ts.split(key, 2)
        x = op.random.normal(now, (16, 3))
        grads = ts.grad(lambda p: op.mean(op.square(op.tanh(x @ p["w"]) @ p["v"] - 1)))(params)
        params, state = opt.update(grads, state, params)
        return params, state, key

    w = {"w": op.random.normal(ts.key(0), (3, 4)), "v": op.random.normal(ts.key(1), (4, 1))}
    whole = (w, opt.init(w), ts.key(2))
    for i in range(10):
        if i == 6:
            ts.save(tmp_path / "c.safetensors", whole)
            resumed = ts.load(tmp_path / "c.safetensors", like=whole)
            for _ in range(4):
                resumed = step(*resumed)
        whole = step(*whole)
    assert same(resumed, whole)


def test_loading_maps_the_file(tmp_path):
    """The peak of memory is what is used of a file, not its size."""
    script = """
import resource, sys, numpy as np, tessera as ts
w = ts.load(sys.argv[1], lazy=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
total = float(w["a"].numpy().sum())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
total = sum(float(x.numpy().sum()) for x in w.values())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    path = tmp_path / "large.safetensors"
    one = np.ones(1 << 20, np.float32)  # 4 MiB
    ts.save(path, {"a": one, **{f"b{i}": one + i for i in range(7)}})
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    part, whole = (int(n) / 1024 for n in done.stdout.split())
    assert part < 1.1 * 4 + 4
    assert whole < 1.1 * 32 + 4


LARGE = """
import resource, sys, numpy as np, tessera as ts
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
tree = ts.load(sys.argv[1])
used = np.asarray(tree["a"])[: 50 << 20]
total = float(used.sum()) + float(np.asarray(tree["b"])[:10].sum())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.deep
def test_two_gigabytes_are_mapped(tmp_path):
    """200 MiB of 2 GiB are used, and the peak is that of them."""
    size = 1 << 30
    entry = {"dtype": "F32", "shape": [size // 4]}
    table = {n: entry | {"data_offsets": [i * size, (i + 1) * size]} for i, n in enumerate("ab")}
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)
    path = tmp_path / "large.safetensors"
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        f.truncate(8 + len(text) + 2 * size)
    done = subprocess.run(
        [sys.executable, "-c", LARGE, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) / 1024 < 1.1 * 200


KILLS = """
import os, random, signal, sys, time, numpy as np, tessera as ts
folder, count, shards = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "shards"
path = folder + "/c.safetensors"
most = 100_000 if shards else None
def tree(n):
    return {"n": n, "a": np.full(20_000, n, np.int64), "b": [np.full((20_000,), n, np.float32)]}
start = time.time()
for n in range(3):
    ts.save(path, tree(n), shard_bytes=most)
takes = (time.time() - start) / 3
rng, seen = random.Random(5), set()
for k in range(count):
    done, told = os.pipe()
    child = os.fork()
    if child == 0:
        for n in range(10 * k, 10**9):
            ts.save(path, tree(n), shard_bytes=most)
            os.write(told, b".")
    os.close(told)
    for _ in range(rng.randrange(4)):  # of saves that are done, then a moment within the next
        os.read(done, 1)
    time.sleep(rng.uniform(0, takes))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(done)
    got = ts.load(path)
    assert all((x.numpy() == got["n"]).all() for x in (got["a"], *got["b"])), k
    seen.add(got["n"])
print(len(seen))
"""


def kills(folder: Path, count: int, shards: str) -> int:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", KILLS, str(folder), str(count), shards],
        cwd=ROOT,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout)


def test_a_killed_process_leaves_a_readable_file(tmp_path):
    assert kills(tmp_path, 20, "one") > 3, "saves happened between kills"


@pytest.mark.deep
@pytest.mark.parametrize("shards", ["one", "shards"])
def test_many_killed_processes_leave_a_readable_file(tmp_path, shards):
    assert kills(tmp_path, 200, shards) > 20


def test_equal_trees_are_equal_files(tmp_path):
    digests = set()
    for i in range(2):
        ts.save(tmp_path / f"{i}.safetensors", model())
        digests.add(hashlib.sha256((tmp_path / f"{i}.safetensors").read_bytes()).hexdigest())
    assert len(digests) == 1

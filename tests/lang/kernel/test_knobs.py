"""Every knob on every target: it changes the generated code and no bit, or is refused by both their names."""

import numpy as np
import pytest

import tessera as ts
from tessera import KTile, Schedule, block, f32, kernel, op, tile
from tessera.core.errors import OperandError, ScheduleError
from tessera.lang.kernel.hints import LACKS

A = np.random.default_rng(0).normal(size=(40, 40)).astype(np.float32)
BASE = Schedule(block=(16, 16), k=8)


def product(asks=False, **hints):
    ranges = {n: hints.pop(n) for n in ("range_prefetch", "range_stages") if n in hints}
    around = {n.removeprefix("range_"): x for n, x in ranges.items()}

    @kernel.schedule(BASE)
    def mm(a: KTile["M", "K"], b: KTile["K", "N"]):
        T = tile.context()
        acc = tile.zeros((T.m, T.n), f32)
        for kb in tile.range_k(a.shape, T.k, **around):
            if asks:
                tile.prefetch(b, kb, T.n)
            left = tile.load(a, rows=T.m, cols=kb, **hints)
            acc = tile.dot(left, tile.load(b, rows=kb, cols=T.n), acc)
        return acc

    return mm


# A knob by the name that errors have, and the kernel that has it.
KNOBS = {
    "block": ("block", lambda: product().with_schedule(block(32, 8))),
    "k": ("k", lambda: product().with_schedule(BASE.with_k(4))),
    "warps": ("warps", lambda: product().with_schedule(BASE.with_warps(8))),
    "stages": ("stages", lambda: product().with_schedule(BASE.with_stages(4))),
    "vector": ("vector", lambda: product().with_schedule(BASE.with_vector(2))),
    "swizzle": ("swizzle", lambda: product().with_schedule(BASE.with_swizzle("xor"))),
    "tma": ("tma", lambda: product().with_schedule(BASE.with_tma())),
    "registers": ("registers", lambda: product().with_schedule(BASE.with_registers(64))),
    "load stages": ("stages", lambda: product(stages=4)),
    "load vector": ("vector", lambda: product(vector=2)),
    "load swizzle": ("swizzle", lambda: product(swizzle="xor")),
    "load prefetch": ("prefetch", lambda: product(prefetch=2)),
    "range stages": ("stages", lambda: product(range_stages=4)),
    "range prefetch": ("prefetch", lambda: product(range_prefetch=2)),
    "tile.prefetch": ("tile.prefetch", lambda: product(asks=True)),
}
TEXT = {"numpy": "llvm", "cpu": "llvm", "cuda": "triton", "hip": "triton"}
REFUSED = {
    ("warps", "numpy"), ("warps", "cpu"), ("swizzle", "numpy"), ("swizzle", "cpu"), ("swizzle", "cuda"),
    ("swizzle", "hip"), ("tile.prefetch", "cuda"), ("tile.prefetch", "hip"),
    *((n, t) for n in ("tma", "registers") for t in ("numpy", "cpu", "hip")),
}  # fmt: skip


@pytest.fixture(scope="module")
def plain():
    f = product()
    lowered = f.lower(A, A)
    return {"llvm": lowered.llvm, "triton": lowered.triton, "bits": f(A, A).numpy().tobytes()}


@pytest.mark.parametrize("target", LACKS)
@pytest.mark.parametrize("knob", KNOBS)
def test_a_knob_changes_the_code_of_a_target_or_is_refused(knob, target, plain):
    name, make = KNOBS[knob]
    f = make()
    run = ts.jit(lambda a, b: f(a, b), target=f"{target}{_ARCHITECTURE.get(target, '')}")
    if (name, target) in REFUSED:
        with pytest.raises(ScheduleError, match=f"mm: {name} does nothing on {target}: "):
            run.lower(ts.tensor(A), ts.tensor(A))
        assert name in str(f.hints(A, A, target=target))
        return
    assert f.hints(A, A, target=target) == []
    if target in _ARCHITECTURE:
        shown = f.lower(A, A).triton
        assert shown != plain["triton"]
        if target == "hip":  # code for NVIDIA waits for the launch before it, too
            (text,) = run.lower(ts.tensor(A), ts.tensor(A)).target.values()
            assert text == shown.partition("\n")[2]
        return
    assert getattr(f.lower(A, A), TEXT[target]) != plain[TEXT[target]]
    for got in (f(A, A), run(ts.tensor(A), ts.tensor(A))):
        assert got.numpy().tobytes() == plain["bits"]


_ARCHITECTURE = {"cuda": ":sm_90", "hip": ":gfx942"}


def test_a_kernel_has_another_schedule_on_gpus():
    f = product().with_schedule(gpu=block(32, 32).warps(8).stages(3))
    assert f.hints(A, A) == f.hints(A, A, target="cuda") == []
    assert f.lower(A, A).triton.startswith("# num_warps=8, num_stages=3\n")
    assert f(A, A).numpy().tobytes() == product()(A, A).numpy().tobytes()
    assert (
        str(f) == "<kernel mm, block(16, 16).k(8), on GPUs block(32, 32).k(8).warps(8).stages(3)>"
    )
    again = f.with_schedule(block(8, 8))
    assert (again.schedule, again.on_gpu) == (
        Schedule(block=(8, 8), k=8), Schedule(block=(8, 8), k=8, warps=8, stages=3),
    )  # fmt: skip

    @kernel.schedule(block(8), gpu=block(32).warps(2))
    def doubled(x: KTile["N"]):
        return tile.load(x) * 2

    assert doubled(A[0]).numpy().tobytes() == (A[0] * 2).tobytes()
    assert "0, 32)" in doubled.lower(A[0]).triton


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int8, np.bool_])
def test_the_width_of_accesses_changes_no_result(dtype, width):
    @kernel.schedule(block(37))
    def chosen(x: KTile["M", "N"], y: KTile["M", "N"]):
        return tile.where(tile.load(x) == tile.load(y), tile.load(x), tile.load(y))

    x, y = (np.random.default_rng(i).integers(0, 2, (41, 19)).astype(dtype) for i in (0, 1))
    got = chosen.with_schedule(block(37).vector(width))(x, y).numpy()
    np.testing.assert_array_equal(got, np.where(x == y, x, y))


def test_a_width_that_no_access_has_is_refused():
    @kernel.schedule(block(8).vector(4))
    def picked(x: KTile["N"], ids: KTile["M", ts.i32]):
        return tile.load(x, rows=tile.load(ids, vector=4), vector=2)

    with pytest.raises(ts.TesseraError, match="picked: vector does nothing: x are read at places"):
        picked(A[0], np.arange(5, dtype=np.int32))


def test_a_space_is_searched_for_what_a_target_has(tmp_path):
    @kernel.autotune(space=block(m=[8, 16]).warps([2, 4]), budget_ms=1, cache=tmp_path)
    def doubled(x: KTile["N"]):
        return tile.load(x) * 2

    np.testing.assert_array_equal(doubled(A[0]).numpy(), A[0] * 2)
    (found,) = doubled.found.values()
    assert found.schedule.warps is None
    assert found.schedule.m in (8, 16)


@pytest.mark.parametrize("target", LACKS)
def test_the_tile_shape_of_a_product_acts_or_is_refused(target):
    def f(shape):
        return ts.jit(
            lambda a: op.matmul(a, a, tile_shape=shape),
            target=f"{target}{_ARCHITECTURE.get(target, '')}",
        )

    a = ts.tensor(np.random.default_rng(2).normal(size=(96, 96)).astype(np.float32))
    if target == "numpy":
        with pytest.raises(OperandError, match="matmul: tile_shape does nothing on numpy"):
            f((32, 32, 32))(a)
        return
    texts = [str(f(shape).lower(a).tile) for shape in (None, (32, 16, 32), (64, 32, 32))]
    assert len(set(texts)) == 3
    if target in _ARCHITECTURE:
        with pytest.raises(ScheduleError, match=r"tile_shape is \(7, 9, 11\), expected powers of"):
            f((7, 9, 11)).lower(a).tile  # noqa: B018


@pytest.mark.parametrize(("architecture", "target"),
    [("sm_90", "cuda"), ("gfx942", "hip"), ("gfx90a", "hip")])  # fmt: skip
def test_assembly_is_asked_for_the_target_of_its_architecture(architecture, target):
    lowered = KNOBS["swizzle"][1]().lower(A, A)
    with pytest.raises(ScheduleError, match=f"swizzle does nothing on {target}:"):
        lowered.assembly(architecture)


ROLES = BASE.with_tma().with_specialise()


def test_warps_have_roles_where_triton_gives_them():
    f = product().with_schedule(BASE, gpu=ROLES)
    shown = f.lower(A, A).triton
    assert "tl.make_tensor_descriptor(a, [40, 40], [40, 1], [16, 8])" in shown
    assert "warp_specialize=True" in shown
    for kind in ("numpy", "cpu", "hip"):
        with pytest.raises(ScheduleError, match=f"mm: specialise does nothing on {kind}: "):
            ts.jit(
                lambda a, b: product().with_schedule(BASE.with_specialise())(a, b),
                target=f"{kind}{_ARCHITECTURE.get(kind, '')}",
            ).lower(ts.tensor(A), ts.tensor(A))
    made = {}
    for arch in ("sm_90", "sm_100"):
        run = ts.jit(lambda a, b: f(a, b), target=f"cuda:{arch}")
        try:
            (made[arch],) = run.lower(ts.tensor(A), ts.tensor(A)).target.values()
        except ScheduleError as e:
            made[arch] = e.message
    assert made["sm_90"] == (
        "mm: specialise does nothing on cuda 90: Triton gives warps of loops roles from sm_100 on; leave it "
        "out"
    )
    assert "warp_specialize=True" in made["sm_100"]


@kernel.schedule(BASE, gpu=BASE.with_tma())
def sums(x: KTile["M", "N", f32]):
    return tile.load(x) + 1


def test_what_would_do_nothing_is_refused():
    with pytest.raises(
        ScheduleError, match="sums: tma does nothing: no factor of a product is loaded as a box"
    ):
        sums.lower(A).triton  # noqa: B018
    alone = product().with_schedule(BASE, gpu=BASE.with_specialise())
    with pytest.raises(
        ScheduleError, match=r"mm: specialise does nothing without tma: .* add .tma\(\)"
    ):
        alone.lower(A, A).triton  # noqa: B018
    odd = A[:39, :39].copy()
    with pytest.raises(ScheduleError, match="mm: tma does nothing"):
        product().with_schedule(BASE, gpu=BASE.with_tma()).lower(odd, odd).triton  # noqa: B018


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"tma": 1}, "tma is 1, expected True or False"),
        ({"specialise": "yes"}, "specialise is 'yes', expected True or False"),
        ({"registers": 100}, "registers is 100, expected a multiple of 8 from 16 to 248"),
        ({"registers": 0}, "registers is 0, expected a whole number of at least 1"),
    ],
)
def test_a_value_that_no_target_takes_is_an_error(said, text):
    with pytest.raises(ScheduleError, match=f"Schedule: {text}"):
        Schedule(**said)
    (name,) = said
    with pytest.raises(ScheduleError, match=f"Schedule: {text}"):
        getattr(block(16), name)(said[name])

"""The frames of kernels in Gluon: the roles of groups of threads, and how they wait for each other."""

HEAD = """import triton.language as tl
from triton.language.extra import libdevice
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

newer = hasattr(tma, "async_load")  # Triton changed the names
load_box = tma.async_load if newer else tma.async_copy_global_to_shared
store_box = tma.async_store if newer else tma.async_copy_shared_to_global
"""

PRODUCER = """
@gluon.jit
def fetch(memory, corner, ring, full, empty, turn):
    at = turn %% %(stages)d
    mbarrier.wait(empty.index(at), ((turn // %(stages)d) & 1) ^ 1)
    mbarrier.expect(full.index(at), %(bytes)d)
    load_box(memory, corner, full.index(at), ring.index(at))


@gluon.jit
def produce(%(parameters)s, %(shared)s):
    mbarrier.expect(tile_full, %(tile_bytes)d)
%(tiles)s
%(loops)s
"""

# A group may begin later than the first: it hands on what it does not need.
CONSUMER = """
@gluon.jit
def consume(which: gl.constexpr, %(parameters)s, %(shared)s):
    rows: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, %(depth)d, 16])
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, %(columns)d, 16])
    factor: gl.constexpr = gl.DotOperandLayout(0, sums, 2)
%(grid)s
    for i in range(turn):
        mbarrier.arrive(left_empty.index(i))
        mbarrier.arrive(right_empty.index(i))
%(prelude)s
%(begin)s
    own = tiles.index(which)
    nothing = gl.full((%(rows)d, %(depth)d), 0.0, gl.float32, rows)
    mbarrier.wait(tile_full, 0)
    mbarrier.wait(left_full.index(turn), 0)
    s = warpgroup_mma(own, left.index(turn).permute((1, 0)), nothing, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, deps=[s])
    mbarrier.arrive(left_empty.index(turn))
    %(first)s
    mbarrier.wait(right_full.index(turn), 0)
    p = gl.convert_layout(w.to(%(kind)s), factor, assert_trivial=True)
    turn += 1
%(loops)s    acc = acc * gl.convert_layout(again, sums)
    acc = warpgroup_mma(p, right.index((turn - 1) %% %(stages)d), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=[acc])
%(after)s
    tma.store_wait(0)
"""

# A wait is a branch, and the assembler moves no arithmetic over a branch: without the one for the
# second factor
# here it would wait for the second product first and compute the weights after it.
STEP = """    for i in range(%(range)s):
        at = turn %% %(stages)d
        phase = (turn // %(stages)d) & 1
        before = (turn - 1) %% %(stages)d
        mbarrier.wait(left_full.index(at), phase)
        s = warpgroup_mma(own, left.index(at).permute((1, 0)), nothing, use_acc=False, is_async=True)
        acc = acc * gl.convert_layout(again, sums)
        acc = warpgroup_mma(p, right.index(before), acc, is_async=True)
        s = warpgroup_mma_wait(1, deps=[s])
        mbarrier.arrive(left_empty.index(at))
        %(call)s
        mbarrier.wait(right_full.index(at), phase)
        acc, w = warpgroup_mma_wait(0, deps=[acc, w])
        mbarrier.arrive(right_empty.index(before))
        p = gl.convert_layout(w.to(%(kind)s), factor, assert_trivial=True)
        turn += 1
"""

# What a producer and groups of consumers wait for: tiles, and places of two rings that are full or empty.
_BARRIERS = """    tile_full = gl.allocate_shared_memory(gl.int64, [1], bar)
    left_full = gl.allocate_shared_memory(gl.int64, [%(stages)d, 1], bar)
    left_empty = gl.allocate_shared_memory(gl.int64, [%(stages)d, 1], bar)
    right_full = gl.allocate_shared_memory(gl.int64, [%(stages)d, 1], bar)
    right_empty = gl.allocate_shared_memory(gl.int64, [%(stages)d, 1], bar)
    mbarrier.init(tile_full, 1)
    for i in gl.static_range(%(stages)d):
        mbarrier.init(left_full.index(i), 1)
        mbarrier.init(right_full.index(i), 1)
        mbarrier.init(left_empty.index(i), %(groups)d)
        mbarrier.init(right_empty.index(i), %(groups)d)
    fence_async_shared()
"""

KERNEL = (
    """
@gluon.jit
def %(name)s(%(parameters)s):
    box: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    tiles = gl.allocate_shared_memory(%(kind)s, [%(groups)d, %(rows)d, %(columns)d], box)
    left = gl.allocate_shared_memory(%(kind)s, [%(stages)d, %(depth)d, %(columns)d], box)
    right = gl.allocate_shared_memory(%(kind)s, [%(stages)d, %(depth)d, %(columns)d], box)
    bar: gl.constexpr = mbarrier.MBarrierLayout()
"""
    + _BARRIERS
    + "%(roles)s\n"
)

STREAM = """
named = gl.constexpr(hasattr(gl.shared_memory_descriptor, "reinterpret"))
wait_for_all = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier


@gluon.jit
def parts_of(vector):
    line: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    if named:
        return vector.reinterpret(%(kind)s, [%(steps)d, %(depth)d], line)
    else:
        return vector._reinterpret(%(kind)s, [%(steps)d, %(depth)d], line)


@gluon.jit
def fetch(matrix, number, turn, ring, full):
    at = turn %% %(stages)d
    row = (number + turn // %(steps)d * %(instances)d) * %(columns)d
    mbarrier.expect(full.index(at), %(bytes)d)
%(fetch)s


@gluon.jit
def %(name)s(%(parameters)s):
%(layouts)s
    flat: gl.constexpr = gl.BlockedLayout([8], [32], [4], [0])
    box: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    line: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    bar: gl.constexpr = mbarrier.MBarrierLayout()
    %(number)s = gl.program_id(0)
    ring = gl.allocate_shared_memory(%(kind)s, [%(places)d, %(columns)d, %(depth)d], box)
    full = gl.allocate_shared_memory(gl.int64, [%(stages)d, 1], bar)
    for j in gl.static_range(%(stages)d):
        mbarrier.init(full.index(j), 1)
    fence_async_shared()
    count = (%(blocks)d - %(number)s + %(instances)d - 1) // %(instances)d * %(steps)d
%(first)s
    for j in gl.static_range(%(stages)d):
        if j < count:
            fetch(%(matrix)s, %(number)s, j, ring, full)
    vector = gl.allocate_shared_memory(%(kind)s, [%(length)d], line)
%(then)s
%(before)s
    wait_for_all()
    vectors = parts_of(vector)
%(fixed)s
    turn = 0
    for block in range(%(number)s, %(blocks)d, %(instances)d):
%(begin)s
        for i in range(%(steps)d):
            at = turn %% %(stages)d
%(part)s
            mbarrier.wait(full.index(at), (turn // %(stages)d) & 1)
%(take)s
            if turn + %(stages)d < count:
                wait_for_all()
                fetch(%(matrix)s, %(number)s, turn + %(stages)d, ring, full)
%(multiply)s
            turn += 1
%(after)s
"""

FETCH = """    load_box(matrix, [row + %(offset)d, turn %% %(steps)d * %(depth)d], full.index(at), ring.index(at * %(parts)d + %(p)d))"""  # noqa: E501

# How rows of the matrix and a part of the vector are multiplied; the sums are equal along one axis.
NARROW = {
    "equal": "0",
    "layouts": """    rows: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, %(columns)d, 16])
    factor: gl.constexpr = gl.DotOperandLayout(0, rows, 2)""",
    "zero": "    zero = gl.full((64, %(depth)d), 0, gl.int16, factor)",
    "begin": "        acc%(p)d = gl.full((64, %(columns)d), 0.0, gl.float32, rows)",
    "part": """            part = vectors.index(i).load(gl.SliceLayout(0, factor)).to(gl.int16, bitcast=True)
            part = (gl.expand_dims(part, 0) | zero).to(%(kind)s, bitcast=True)""",
    "take": """            acc%(p)d = warpgroup_mma(part, ring.index(at * %(parts)d + %(p)d).permute((1, 0)), acc%(p)d, is_async=True)
            acc%(p)d = warpgroup_mma_wait(0, deps=[acc%(p)d])""",  # noqa: E501
    "multiply": "",
}
WIDE = {
    "equal": "1",
    "layouts": """    rows: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8])
    left: gl.constexpr = gl.DotOperandLayout(0, rows, 2)
    factor: gl.constexpr = gl.DotOperandLayout(1, rows, 2)""",
    "zero": "    zero = gl.full((%(depth)d, 8), 0, gl.int16, factor)",
    "begin": "        acc%(p)d = gl.full((%(columns)d, 8), 0.0, gl.float32, rows)",
    "part": """            part = vectors.index(i).load(gl.SliceLayout(1, factor)).to(gl.int16, bitcast=True)
            part = (gl.expand_dims(part, 1) | zero).to(%(kind)s, bitcast=True)""",
    "take": "            rows%(p)d = ring.index(at * %(parts)d + %(p)d).load(left)",
    "multiply": "            acc%(p)d = mma_v2(rows%(p)d, part, acc%(p)d)",
}

DOUBLE_PRODUCER = """
@gluon.jit
def produce(%(parameters)s, %(shared)s):
    mbarrier.expect(tile_full, %(tile_bytes)d)
%(tiles)s
    turn = 0
    for i in range(%(range)s):
        at = turn %% %(stages)d
        phase = ((turn // %(stages)d) & 1) ^ 1
        mbarrier.wait(left_empty.index(at), phase)
        mbarrier.expect(left_full.index(at), %(left_bytes)d)
%(left)s
        mbarrier.wait(right_empty.index(at), phase)
        mbarrier.expect(right_full.index(at), %(right_bytes)d)
%(right)s
        turn += 1
"""

# A group may begin later than the first: it hands on what it does not need.
DOUBLE_CONSUMER = """
@gluon.jit
def consume(which: gl.constexpr, %(parameters)s, %(shared)s):
    rows: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, %(columns)d, 16])
    cols: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, %(depth)d, 16])
    factor: gl.constexpr = gl.DotOperandLayout(0, rows, 2)
%(grid)s
    turn = (%(start)s - begin) // %(depth)d
    for i in range(turn):
        mbarrier.arrive(left_empty.index(i))
        mbarrier.arrive(right_empty.index(i))
%(prelude)s
%(before)s
    one = first.index(which)
    two = second.index(which)
    nothing = gl.full((%(rows)d, %(depth)d), 0.0, gl.float32, cols)
    mbarrier.wait(tile_full, 0)
%(loops)s%(after)s
    tma.store_wait(0)
"""

DOUBLE_FIRST = """    mbarrier.wait(left_full.index(turn), 0)
    s = warpgroup_mma(one, left.index(turn).permute((1, 0)), nothing, use_acc=False, is_async=True)
    mbarrier.wait(right_full.index(turn), 0)
    d = warpgroup_mma(two, right.index(turn).permute((1, 0)), nothing, use_acc=False, is_async=True)
    s, d = warpgroup_mma_wait(0, deps=[s, d])
%(first)s
%(sum)s
    mbarrier.arrive(right_empty.index(turn))
    p = gl.convert_layout(x.to(%(kind)s), factor, assert_trivial=True)
    turn += 1
"""

DOUBLE_FIRST_SUM = """    u = gl.convert_layout(w.to(%(kind)s), factor, assert_trivial=True)
    %(acc1)s = warpgroup_mma(u, right.index(turn), %(acc1)s, is_async=True)
    %(acc1)s = warpgroup_mma_wait(0, deps=[%(acc1)s])"""

# The product of slopes is that of the step before.  With one sum there are registers for both
# products with tiles.
DOUBLE_ONE = """    for i in range(%(range)s):
        at = turn %% %(stages)d
        phase = (turn // %(stages)d) & 1
        before = (turn - 1) %% %(stages)d
        mbarrier.wait(left_full.index(at), phase)
        s = warpgroup_mma(one, left.index(at).permute((1, 0)), nothing, use_acc=False, is_async=True)
        %(acc0)s = warpgroup_mma(p, left.index(before), %(acc0)s, is_async=True)
        mbarrier.wait(right_full.index(at), phase)
        d = warpgroup_mma(two, right.index(at).permute((1, 0)), nothing, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(2, deps=[s])
%(weigh)s
        mbarrier.wait(right_full.index(at), phase)
        %(acc0)s, d, w = warpgroup_mma_wait(0, deps=[%(acc0)s, d, w])
        mbarrier.arrive(left_empty.index(before))
        mbarrier.arrive(right_empty.index(at))
%(numbers)s
%(slope)s
        p = gl.convert_layout(x.to(%(kind)s), factor, assert_trivial=True)
        turn += 1
"""

# With two sums, the second product follows when the registers of slopes are free.
DOUBLE_TWO = """    for i in range(%(range)s):
        at = turn %% %(stages)d
        phase = (turn // %(stages)d) & 1
        before = (turn - 1) %% %(stages)d
        mbarrier.wait(left_full.index(at), phase)
        s = warpgroup_mma(one, left.index(at).permute((1, 0)), nothing, use_acc=False, is_async=True)
        %(acc0)s = warpgroup_mma(p, left.index(before), %(acc0)s, is_async=True)
        s = warpgroup_mma_wait(1, deps=[s])
%(weigh)s
        u = gl.convert_layout(w.to(%(kind)s), factor, assert_trivial=True)
        mbarrier.wait(right_full.index(at), phase)
        %(acc0)s, w, u = warpgroup_mma_wait(0, deps=[%(acc0)s, w, u])
        mbarrier.arrive(left_empty.index(before))
        d = warpgroup_mma(two, right.index(at).permute((1, 0)), nothing, use_acc=False, is_async=True)
        %(acc1)s = warpgroup_mma(u, right.index(at), %(acc1)s, is_async=True)
        d = warpgroup_mma_wait(1, deps=[d])
%(numbers)s
%(slope)s
        p = gl.convert_layout(x.to(%(kind)s), factor, assert_trivial=True)
        %(acc1)s, p = warpgroup_mma_wait(0, deps=[%(acc1)s, p])
        mbarrier.arrive(right_empty.index(at))
        turn += 1
"""

DOUBLE_LAST = """    %(acc0)s = warpgroup_mma(p, left.index((turn - 1) %% %(stages)d), %(acc0)s, is_async=True)
    %(acc0)s = warpgroup_mma_wait(0, deps=[%(acc0)s])
"""  # noqa: E501

DOUBLE = (
    """
@gluon.jit
def %(name)s(%(parameters)s):
    box: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    flat: gl.constexpr = gl.NVMMASharedLayout(0, 32, 1)
    bar: gl.constexpr = mbarrier.MBarrierLayout()
    first = gl.allocate_shared_memory(%(kind)s, [%(groups)d, %(rows)d, %(columns)d], box)
    second = gl.allocate_shared_memory(%(kind)s, [%(groups)d, %(rows)d, %(columns)d], box)
    left = gl.allocate_shared_memory(%(kind)s, [%(stages)d, %(depth)d, %(columns)d], box)
    right = gl.allocate_shared_memory(%(kind)s, [%(stages)d, %(depth)d, %(columns)d], box)
%(rings)s
"""
    + _BARRIERS
    + "%(roles)s\n"
)

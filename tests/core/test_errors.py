"""Wrong programs: each gives its pinned message, at the user's line, without a compiler frame."""

import linecache
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, dist, op
from tessera.core import flags
from tessera.core.errors import (
    AnnotationError,
    AxisError,
    DeviceError,
    DTypeError,
    OperandError,
    PolicyError,
    RuleError,
    ShapeError,
    TesseraError,
    TraceError,
    TreeError,
)
from tessera.ir.graph.ir import bind
from tessera.ir.graph.op import Op
from tessera.ops.define import as_value


class Wrong(NamedTuple):
    """A program that must fail."""

    name: str
    run: Callable[[], Any]
    error: type[TesseraError]
    message: str
    line: str | None = None  # text of the line to blame, when it is not the program's own


def F(*shape: int) -> Tensor:
    return ts.tensor(np.ones(shape, np.float32))


def C(*shape: int) -> Tensor:
    return ts.tensor(np.ones(shape, np.complex64))


@ts.jit
def annotated(x: Tensor["B", "D", ts.f32], w: Tensor["D", "K", ts.f32]):
    return x @ w


@ts.jit
def fixed(x: Tensor["B", 4, ts.f32]):
    return x


@ts.jit
def added(x: Tensor["B", ts.f32], y: Tensor["C", ts.f32]):
    return x + y


def write(x):
    x[0] = 1
    return x


def leak(x):
    kept = []

    @ts.jit
    def f(y):
        kept.append(y * 2)
        return y

    f(x)
    return kept[0]


def sized(x: Tensor["B", 3, ts.f32]):
    return [x * i for i in range(x.shape[0])]


def prefetching(x):
    with ts.prefetch(x, into="moon"):
        return x


UNRULED = Op("test_unruled", "No rule.", signature="... -> ...", call="test", numpy=np.sin)


def unruled(x):
    return bind(UNRULED, as_value(x))


@ts.jit
def powered(x, n):
    return op.pow(x, n)


# fmt: off
WRONG = [
    # Shapes
    Wrong('matmul_inner', lambda: op.matmul(F(2, 3), F(4, 5)), ShapeError,
    "matmul: axis 'k' is 3 in operand 0 f32[2,3] but 4 in operand 1 f32[4,5]"),
    Wrong('matmul_transposed', lambda: op.matmul(F(2, 3), F(5, 3)), ShapeError,
    "matmul: axis 'k' is 3 in operand 0 f32[2,3] but 5 in operand 1 f32[5,3]; transpose operand 1 with .mT"),
    Wrong('matmul_scalar', lambda: op.matmul(F(), F(2, 2)), ShapeError,
    'matmul: operands f32[], f32[2,2]: a scalar is no matrix; use op.mul'),
    Wrong('matmul_batch', lambda: op.matmul(F(2, 4, 3), F(3, 3, 5)), ShapeError,
    'matmul: the axes before the last two of f32[2,4,3] and f32[3,3,5] do not broadcast; sizes must be '
    'equal or 1'),
    Wrong('matmul_operator', lambda: F(2, 3) @ F(2, 3), ShapeError,
    "matmul: axis 'k' is 3 in operand 0 f32[2,3] but 2 in operand 1 f32[2,3]; transpose operand 1 with .mT"),
    Wrong('tile_shape', lambda: op.matmul(F(2, 3), F(3, 4), tile_shape=(128, 128)), OperandError,
    'matmul: tile_shape is (128, 128), expected three positive sizes (m, n, k)'),
    Wrong('broadcast', lambda: F(2, 3) + F(4), ShapeError,
    'add: operands f32[2,3], f32[4] do not broadcast: axis -1 is 3 and 4; sizes must be equal or 1'),
    Wrong('broadcast_to', lambda: op.broadcast_to(F(3), (2, 4)), ShapeError,
    'broadcast_to: f32[3] does not broadcast to [2, 4]: 3 is neither 1 nor 4'),
    Wrong('broadcast_to_rank', lambda: op.broadcast_to(F(2, 3), (3,)), ShapeError,
    'broadcast_to: f32[2,3] has more axes than the shape [3]'),
    Wrong('reshape_count', lambda: op.reshape(F(2, 3), (4, 2)), ShapeError,
    'reshape: f32[2,3] has 6 elements but shape [4, 2] has 8'),
    Wrong('reshape_two_unknown', lambda: op.reshape(F(2, 3), (-1, -1)), ShapeError,
    'reshape: shape [-1, -1] has more than one -1'),
    Wrong('reshape_indivisible', lambda: op.reshape(F(2, 3), (4, -1)), ShapeError,
    'reshape: f32[2,3] has 6 elements, which shape [4, -1] cannot hold'),
    Wrong('reshape_negative', lambda: op.reshape(F(2, 3), (-2, 3)), OperandError,
    'reshape: size -2 in shape (-2, 3) is negative'),
    Wrong('transpose_of_rank_3', lambda: F(2, 3, 4).T, ShapeError,
    'T: f32[2,3,4] has 3 axes; use x.mT for the last two or op.transpose(x, axes)'),
    Wrong('transpose_missing_axis', lambda: op.transpose(F(2, 3), (0,)), AxisError,
    'transpose: axes (0,) leave out axes of f32[2,3]'),
    Wrong('squeeze', lambda: op.squeeze(F(2, 3), 0), ShapeError,
    'squeeze: axis 0 of f32[2,3] is 2, expected 1'),
    Wrong('concat_sizes', lambda: op.concat([F(2, 3), F(2, 4)], axis=0), ShapeError,
    'concat: axis 1 is 3 in operand 0 f32[2,3] but 4 in operand 1 f32[2,4]'),
    Wrong('concat_ranks', lambda: op.concat([F(2, 3), F(2)], axis=0), ShapeError,
    'concat: operand 1 is f32[2], expected rank 2 as f32[2,3]'),
    Wrong('concat_nothing', lambda: op.concat([]), ShapeError, 'concat: got no tensors'),
    Wrong('stack_nothing', lambda: op.stack([]), ShapeError, 'stack: got no tensors'),
    Wrong('split', lambda: op.split(F(5), 2), ShapeError,
    'split: axis 0 of f32[5] is 5, which 2 does not divide'),
    Wrong('split_sizes', lambda: op.split(F(5), (2, 2)), ShapeError,
    'split: parts [2, 2] add up to 4, not to 5'),
    Wrong('pad_width', lambda: op.pad(F(2, 3), ((1, 1),) * 3), ShapeError,
    'pad: width ((1, 1), (1, 1), (1, 1)) needs a (before, after) for each axis of f32[2,3], or one for all '
    'axes'),
    Wrong('einsum_operands', lambda: op.einsum("ij,jk->ik", F(2, 3)), OperandError,
    "einsum: 'ij,jk->ik' names 2 operands, got 1"),
    Wrong('einsum_rank', lambda: op.einsum("ijk->i", F(2, 3)), ShapeError,
    "einsum: 'ijk' in 'ijk->i' does not fit operand f32[2,3]"),
    Wrong('einsum_unknown', lambda: op.einsum("ij->k", F(2, 3)), OperandError,
    "einsum: 'ij->k' has 'k' in the result but in no operand"),
    Wrong('einsum_sizes', lambda: op.einsum("ij,jk->ik", F(2, 3), F(4, 5)), ShapeError,
    "einsum: axis 'j' is 3 in operand 0 f32[2,3] but 4 in operand 1 f32[4,5]"),
    Wrong('outer', lambda: op.outer(F(2, 2), F(3)), ShapeError,
    'outer: operands f32[2,2], f32[3] must be vectors'),
    Wrong('tensordot', lambda: op.tensordot(F(2, 3), F(4, 5), 1), ShapeError,
    "tensordot: axis 'a1' is 3 in operand 0 f32[2,3] but 4 in operand 1 f32[4,5]"),
    Wrong('max_of_nothing', lambda: op.max(F(0, 3), axis=0), ShapeError,
    'max: f32[0,3] has no elements along axis 0, and max has no identity'),
    Wrong('argmax_of_nothing', lambda: op.argmax(F(0)), ShapeError,
    'argmax: f32[0] has no elements along axis None'),
    Wrong('negative_size', lambda: op.zeros((2, -1)), OperandError,
    'zeros: size -1 in shape (2, -1) is negative'),
    Wrong('size_is_no_number', lambda: op.zeros((2, "a")), OperandError,
    "zeros: 'a' in shape (2, 'a') is not a size"),
    # Axes and indices
    Wrong('axis_range', lambda: op.sum(F(2, 3), axis=2), AxisError,
    'sum: axis 2 is out of range for rank 2; use -2 to 1'),
    Wrong('axis_of_scalar', lambda: op.sum(F(), axis=0), AxisError,
    'sum: axis 0 is out of range for rank 0; a scalar has no axes'),
    Wrong('axis_twice', lambda: op.sum(F(2, 3), axis=(0, -2)), AxisError,
    'sum: axis (0, -2) names an axis twice'),
    Wrong('axis_type', lambda: op.sum(F(2, 3), axis=1.5), AxisError, 'sum: axis 1.5 is not an integer'),
    Wrong('index_range', lambda: F(2, 3)[5], AxisError,
    'index: 5 is out of range for axis 0 of f32[2,3], which has size 2; use -2 to 1'),
    Wrong('too_many_indices', lambda: F(2, 3)[0, 0, 0], AxisError,
    'index: 3 indices for f32[2,3], which has rank 2'),
    Wrong('index_kind', lambda: F(2, 3)["a"], OperandError,
    "index: cannot take str 'a' as a tensor; pass a Tensor, a NumPy array or numbers"),
    # Dtypes and operands
    Wrong('float_bits', lambda: op.bitwise_and(F(2), F(2)), DTypeError,
    'bitwise_and: operand 0 is f32[2], expected bool or unsigned or integer; cast it with astype'),
    Wrong('logic_of_floats', lambda: op.logical_not(F(2)), DTypeError,
    'logical_not: operand 0 is f32[2], expected bool; cast it with astype'),
    Wrong('compare_complex', lambda: C(2) < C(2), DTypeError,
    'lt: operand 0 is c64[2], expected bool or unsigned or integer or float; cast it with astype'),
    Wrong('complex_to_real', lambda: C(2).astype(ts.f32), DTypeError,
    'cast: c64[2] to f32 would drop the imaginary part; take op.real or op.imag first'),
    Wrong('no_common_dtype', lambda: ts.tensor([1], dtype=ts.u64) + ts.tensor([1]), DTypeError,
    'add: u64 and i64 have no common dtype; cast one of them with astype'),
    Wrong('no_common_fp8', lambda: F(2).astype(ts.f8e4m3) + F(2).astype(ts.f8e5m2), DTypeError,
    'add: f8e4m3 and f8e5m2 have no common dtype; cast one of them with astype'),
    Wrong('scalar_out_of_range', lambda: ts.tensor([1], dtype=ts.i8) + 300, DTypeError,
    'add: the integer 300 does not fit i8; cast the tensor with astype'),
    Wrong('unknown_dtype', lambda: ts.tensor([1.0], dtype="float31"), DTypeError,
    "'float31' is not a dtype; dtypes are bool, i4, i8, i16, i32, i64, u8, u16, u32, u64, f8e4m3, f8e5m2, "
    "bf16, f16, f32, f64, c64, c128 and tf32"),
    Wrong('integer_negative_power', lambda: op.pow(ts.tensor([2]), ts.tensor([-1])), DTypeError,
    'pow: an integer to a negative power is no integer; cast to a float first'),
    Wrong('not_a_tensor', lambda: op.exp({1, 2}), OperandError,
    'exp: cannot take set {1, 2} as a tensor; pass a Tensor, a NumPy array or numbers'),
    Wrong('list_of_tensors', lambda: op.exp([F(2), F(2)]), OperandError,
    'exp: got a list of tensors; join them with op.stack(...)'),
    Wrong('ragged_list', lambda: ts.tensor([[1, 2], [3]]), OperandError,
    'tensor: nested sequences of different lengths are no tensor'),
    Wrong('text', lambda: ts.tensor(["a"]), OperandError, 'tensor: cannot take a list of <U1 as a tensor'),
    Wrong('full_of_text', lambda: op.full((2,), "a"), OperandError,
    'full: the value is str, expected one number'),
    # Policies
    Wrong('policy_mixed', lambda: F(2) + F(2).astype(ts.f32 @ ts.saturate), PolicyError,
    'add: f32 and f32 @ saturate carry different policies; cast one: x.astype(f32) or y.astype(f32 @ '
    'saturate)'),
    Wrong('policy_twice', lambda: ts.bf16 @ ts.saturate @ ts.saturate, PolicyError,
    'bf16 @ saturate @ saturate: the policy already says saturate; start from bf16'),
    Wrong('policy_narrow_accum', lambda: ts.f32 @ ts.accum(ts.bf16), PolicyError,
    'f32 @ accum(bf16): the accumulator must be of the same kind and at least as wide'),
    Wrong('policy_kind', lambda: ts.i8 @ ts.stochastic_round, PolicyError,
    'i8 @ stochastic_round: only floating-point dtypes take stochastic_round'),
    Wrong('policy_unknown', lambda: ts.bf16 @ "fast", PolicyError,
    "bf16 @ 'fast': expected a policy after '@': accum(dtype), stochastic_round, saturate or loss_scale(k)"),
    Wrong('policy_loss_scale', lambda: ts.bf16 @ ts.loss_scale(0), PolicyError,
    'loss_scale(0): expected a positive finite number'),
    Wrong('policy_of_policy', lambda: ts.bf16 @ ts.accum(ts.f32 @ ts.saturate), PolicyError,
    'accum(f32 @ saturate): expected a plain dtype such as f32'),
    Wrong('policy_of_bool', lambda: ts.bool_ @ ts.saturate, PolicyError,
    'bool @ saturate: only real numeric dtypes saturate'),
    # Devices
    Wrong('mixed_devices', lambda: F(2) + F(2).to("cpu:1"), DeviceError,
    "add: operand 0 f32[2] is on cpu:0 but operand 1 f32[2] is on cpu:1; move one with x.to('cpu:0')"),
    Wrong('no_device', lambda: F(2).to("cpu:7"), DeviceError,
    'there is no device cpu:7; devices are cpu:0, cpu:1'),
    Wrong('device_text', lambda: F(2).to("cpu:first"), DeviceError,
    "'cpu:first' is not a device; write a kind and a number, such as 'cpu:0'"),
    Wrong('device_type', lambda: F(2).to(3.5), DeviceError,
    "3.5 is not a device; write a kind and a number, such as 'cpu:0'"),
    # Annotations
    Wrong('annotation_size', lambda: Tensor["2*", ts.f32], AnnotationError,
    "'2*' is not a size; write a name, a number or a polynomial such as '2*S+1'"),
    Wrong('annotation_dtype_first', lambda: Tensor[ts.f32, "B"], AnnotationError,
    'Tensor[...]: the dtype f32 must come last'),
    Wrong('annotation_item', lambda: Tensor[None, ts.f32], AnnotationError,
    'Tensor[...]: None is neither a size nor a dtype'),
    Wrong('annotation_negative', lambda: Tensor[-1, ts.f32], AnnotationError,
    'Tensor[...]: size -1 is negative'),
    Wrong('annotated_rank', lambda: annotated(F(2), F(3, 4)), AnnotationError,
    "argument 'x' is f32[2] of rank 1, expected Tensor['B', 'D', f32]"),
    Wrong('annotated_dtype', lambda: annotated(F(2, 3).astype(ts.f64), F(3, 4)), AnnotationError,
    "argument 'x' is f64[2,3], expected dtype f32 as in Tensor['B', 'D', f32]; cast it: x.astype(f32)"),
    Wrong('annotated_sizes', lambda: annotated(F(2, 3), F(4, 4)), ShapeError,
    'axis 0 of w is 4, but D is 3 (D = 3 from axis 1 of x)'),
    Wrong('annotated_fixed', lambda: fixed(F(2, 5)), AnnotationError,
    "argument 'x' is f32[2,5]: axis 1 is 5, expected 4 as in Tensor['B', 4, f32]"),
    Wrong('annotated_tree', lambda: fixed({"a": F(2, 4)}), AnnotationError,
    "argument 'x' of fixed is {'a': *}, expected Tensor['B', 4, f32]"),
    Wrong('guard', lambda: added(F(2), F(3)), ShapeError,
    'add: axis -1 of operand 1: needs B == C, but B = 2 from axis 0 of x, C = 3 from axis 0 of y',
    'return x + y'),
    # jit and tracing
    Wrong('jit_unknown_static', lambda: ts.jit(lambda x: x, static_argnames=("y",)), OperandError,
    "jit: <lambda> has no parameter 'y'; it has x"),
    Wrong('jit_missing_argument', lambda: annotated(F(2, 3)), OperandError,
    "annotated: missing a required argument: 'w'"),
    Wrong('jit_unhashable', lambda: ts.jit(lambda x, *, n: x, static_argnames=("n",))(F(2), n=[1]),
    OperandError, "<lambda>: static argument 'n' is list, which cannot be hashed; pass a tuple or a frozen "
                  "value"),
    Wrong('jit_branch_on_value', lambda: ts.jit(lambda x: x if x.sum() > 0 else -x)(F(2)), TraceError,
    'bool: bool[] is traced and has no data; for if, while, and, or, in on values use op.where, ts.cond or '
    'ts.while_loop, or make what it depends on static with static_argnames'),
    Wrong('jit_float_of_traced', lambda: ts.jit(lambda x: float(x.sum()))(F(2)), TraceError,
    'float: f32[] is traced and has no data; keep it a tensor (x.astype), or return the tensor and convert '
    'the result outside of the function'),
    Wrong('jit_numpy_of_traced', lambda: ts.jit(lambda x: np.asarray(x))(F(2)), TraceError,
    'numpy.asarray: f32[2] is traced and has no data; compute with ops (np.sin is op.sin), call NumPy by '
    'ts.callback, or take the array outside of the function'),
    Wrong('jit_returns_text', lambda: ts.jit(lambda x: "a")(F(2)), TraceError,
    "<lambda> returned str 'a', expected tensors in tuples, lists or dicts"),
    Wrong('jit_writes', lambda: ts.jit(write)(F(2)), TraceError,
    'a traced tensor cannot be written to; use x = x.at[index].set(value)', 'x[0] = 1'),
    Wrong('jit_leak', lambda: leak(F(2)) + 1, TraceError,
    'add: a traced value f32[2] was used outside the function that it was traced in; return it from that '
    'function instead of storing it'),
    Wrong('symbolic_size_as_number', lambda: ts.jit(sized)(F(2, 3)), ShapeError,
    'size B is symbolic and has no number while tracing; keep it symbolic, or give the axis a number in the '
    'annotation', 'range(x.shape[0])'),
    Wrong('bool_of_many', lambda: bool(F(2) > 0), ShapeError,
    'bool: bool[2] is not a scalar; use op.any or op.all'),
    Wrong('index_of_float', lambda: range(F()), OperandError, 'index: f32[] is not an integer scalar'),
    Wrong('item_of_many', lambda: F(2).item(), ShapeError, 'item: f32[2] has 2 elements, expected 1'),
    Wrong('len_of_scalar', lambda: len(F()), ShapeError, 'len: f32[] is a scalar and has no length'),
    # Trees
    Wrong('tree_map', lambda: ts.tree.map(lambda a, b: a, {"x": 1}, {"y": 1}), TreeError,
    "tree.map: tree 1 is {'y': *}, expected {'x': *} as in tree 0"),
    Wrong('tree_leaves', lambda: ts.tree.unflatten(ts.tree.structure((1, 2)), [1]), TreeError,
    'tree.unflatten: got 1 leaves, expected 2 for (*, *)'),
    Wrong('jvp_tree', lambda: ts.jvp(op.sin, (F(2),), ((F(2), F(2)),)), TreeError,
    'jvp: tangents are ((*, *),), expected (*,) as the primals'),
    Wrong('vjp_tree', lambda: ts.vjp(op.sin, F(2))[1]((F(2), F(2))), TreeError,
    'vjp: the cotangent is (*, *), expected * as the result'),
    # Derivatives and rules
    Wrong('grad_of_vector', lambda: ts.grad(op.sin)(F(2)), ShapeError,
    'grad: sin returned f32[2], expected a scalar; reduce it with op.sum or op.mean'),
    Wrong('grad_of_integers', lambda: ts.grad(op.sum)(ts.tensor([1, 2])), DTypeError,
    'grad: argument 0 holds i64[2]; only floating-point tensors have gradients: cast it, or leave it out of '
    'argnums'),
    Wrong('grad_argnums', lambda: ts.grad(op.sum, argnums=1)(F(2)), OperandError,
    'grad: argnums 1 is out of range: sum got 1 positional arguments'),
    Wrong('grad_argnums_twice', lambda: ts.grad(op.matmul, argnums=(0, -2))(F(2), F(2)), OperandError,
    'grad: argnums (0, -2) names an argument twice'),
    Wrong('grad_argnums_name', lambda: ts.grad(op.sum, argnums='x')(F(2)), OperandError,
    "grad: argnums has 'x', expected positions of arguments"),
    Wrong('grad_of_nothing', lambda: ts.grad(lambda x: None)(F(2)), TreeError,
    'grad: <lambda> returned None, expected one scalar; for more results use has_aux=True'),
    Wrong('grad_of_tree', lambda: ts.grad(lambda x: (op.sum(x), x))(F(2)), TreeError,
    'grad: <lambda> returned (*, *), expected one scalar; for more results use has_aux=True'),
    Wrong('jvp_dtype', lambda: ts.jvp(op.sin, (F(2),), (F(2).astype(ts.f64),)), DTypeError,
    'jvp: tangent 0 is f64[2], expected f32[2] as its primal'),
    Wrong('vjp_shape', lambda: ts.vjp(op.sin, F(2))[1](F(3)), ShapeError,
    'vjp: cotangent 0 is f32[3], expected f32[2] as the result'),
    # Pipelines, meshes, movement
    Wrong('pipeline_nothing', lambda: op.pipeline([]), OperandError, 'pipeline: got no steps'),
    Wrong('pipeline_step', lambda: op.pipeline([F(2), 3]), OperandError,
    'pipeline: step 1 is int, expected a function'),
    Wrong('mesh_shape', lambda: dist.Mesh(axes=["dp"], devices=range(8), shape=(3,)), ShapeError,
    "Mesh: shape (3,) over axes ['dp'] needs 3 devices in 1 axes, got 8 devices"),
    Wrong('mesh_axis', lambda: dist.tensor((4, 4), dist.ShardSpec(("row",), ("tp",)),
    dist.Mesh(["dp"], devices=range(2))), OperandError, "mesh has no axis 'tp'; it has dp"),
    Wrong('shard_spec', lambda: dist.ShardSpec(("row", "col"), ("dp",)), OperandError,
    "ShardSpec: 2 axes ('row', 'col') but 1 mesh axes ('dp',); name one mesh axis for each"),
    Wrong('shard_label', lambda: dist.tensor((4, 4), dist.ShardSpec(("depth",), ("dp",)),
    dist.Mesh(["dp"], devices=range(2))), OperandError,
    "ShardSpec: 'depth' is no axis of a tensor of rank 2; write 'row', 'col' or an axis number"),
    Wrong('prefetch', lambda: prefetching(F(2)), OperandError,
    "prefetch: into is 'moon', expected one of smem, shared, register, l2, device, host",
    'with ts.prefetch(x'),
    Wrong("jit_numerics", lambda: ts.jit(op.sin, numerics="loose"), OperandError,
    "jit: numerics is 'loose', expected one of deterministic, fast, strict"),
    Wrong("jit_target", lambda: ts.jit(op.sin, target="abacus")(F(2)), OperandError,
    "jit: target is 'abacus', expected one of numpy, cpu, cuda, hip"),
    Wrong("rule_missing", lambda: ts.grad(lambda x: op.sum(unruled(x)))(F(2)), RuleError,
    "test_unruled has no derivative; wrap its operand in op.stop_gradient if none is wanted", 'bind(UNRULED'),
    Wrong("error_inside_compiled_code", lambda: powered(ts.tensor([2]), ts.tensor([-1])), DTypeError,
    "pow: an integer to a negative power is no integer; cast to a float first", 'return op.pow(x, n)'),
]
# fmt: on


@pytest.mark.parametrize("wrong", WRONG, ids=[w.name for w in WRONG])
def test_wrong_program_gives_its_message(wrong: Wrong):
    with flags.override(cpu_devices=2), pytest.raises(TesseraError) as caught:
        wrong.run()
    error = caught.value
    assert type(error) is wrong.error
    assert error.message == wrong.message
    assert error.location is not None
    assert error.location.file == __file__
    assert str(error).splitlines()[1].startswith(f"  at {__file__}:")
    if wrong.line is None:
        assert error.location.line == wrong.run.__code__.co_firstlineno
    else:
        assert wrong.line in linecache.getline(__file__, error.location.line)


def test_there_are_sixty_wrong_programs():
    assert len({w.name for w in WRONG}) == len(WRONG) >= 60


def test_errors_tell_where_traced_operands_came_from():
    def f(x, w):
        h = op.tanh(x)
        return h @ w

    with pytest.raises(ShapeError) as caught:
        ts.jit(f)(F(2, 3), F(4, 5))
    _, _, first, second = str(caught.value).splitlines()
    assert first.startswith(f"  operand 0 f32[2,3] is from tanh at {__file__}:")
    assert second == "  operand 1 f32[4,5] is from argument 'w'"


def test_a_failed_call_leaves_no_trace_open():
    with pytest.raises(ShapeError):
        ts.jit(lambda x: x @ x)(F(2, 3))
    assert (F(2) + 1).tolist() == [2.0, 2.0]

"""ONNX models: the cases of the onnx package, models as functions, damaged files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, cli, f32, op
from tessera.core.flags import override
from tessera.interop.onnx import carry
from tools import mutate_onnx
from tools import onnx_conformance as suite

onnx = pytest.importorskip("onnx")
helper, numpy_helper = onnx.helper, onnx.numpy_helper
TensorProto = onnx.TensorProto
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def model(nodes: list[Any], inputs: Any, outputs: Any, weights: Any = (), opset: int = 18) -> Any:
    """A model of nodes, with inputs and outputs by name, type and shape."""
    values = [[helper.make_tensor_value_info(*v) for v in part] for part in (inputs, outputs)]
    initialisers = [numpy_helper.from_array(a, name) for name, a in weights]
    graph = helper.make_graph(nodes, "g", *values, initialisers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def classifier(rng: np.random.Generator) -> Any:
    """A convolution, a pool, and a reshape whose shape is computed from the batch."""
    w, v = rng.standard_normal((4, 3, 3, 3)), rng.standard_normal((16, 5))
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MaxPool", ["b"], ["c"], kernel_shape=[4, 4], strides=[4, 4]),
        helper.make_node("Shape", ["c"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        helper.make_node("Concat", ["n", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["c", "shape"], ["d"]),
        helper.make_node("Gemm", ["d", "v"], ["y"]),
    ]
    weights = [
        ("w", w.astype(np.float32)), ("v", v.astype(np.float32)),
        ("zero", np.array([0])), ("rest", np.array([-1])),
    ]  # fmt: skip
    return model(nodes, [("x", FLOAT, ["N", 3, 8, 8])], [("y", FLOAT, ["N", 5])], weights)


def expected(x: Any, w: Any, v: Any) -> Any:
    """The classifier written with ops."""
    pooled = op.max_pool(op.relu(op.conv(x, w, padding=1)), 4)
    return op.reshape(pooled, (x.shape[0], -1)) @ v


# The cases of the package


def test_every_node_case_but_pools() -> None:
    """Rules by their NumPy references; `deep` runs every case compiled, and pools."""
    with override(target="numpy"):
        cases = [c for c in suite.node_cases(without=suite.SLOW) if not suite.is_expected(c.name)]
        faults = {c.name: found for c in cases if (found := suite.fault(c))}
    assert len(cases) > 1700
    assert faults == {}


def test_stored_cases_of_pools_and_control_flow() -> None:
    wanted = ("Pool1d", "Pool2d_stride", "sequence_model1", "expand_shape_model1", "PReLU_1d")
    with override(target="numpy"):
        cases = [
            c
            for c in suite.stored_cases("simple", "pytorch-converted")
            if any(w in c.name for w in wanted)
        ]
        assert len(cases) > 6
        assert {c.name: f for c in cases if (f := suite.fault(c))} == {}


@pytest.mark.deep
def test_all_node_cases() -> None:
    cases = suite.node_cases()
    faults = {c.name: f for c in cases if (f := suite.fault(c))}
    assert len(cases) - len(faults) >= 1850
    assert {n: f for n, f in faults.items() if not suite.is_expected(n)} == {}


@pytest.mark.deep
def test_all_stored_cases() -> None:
    cases = suite.stored_cases("simple", "pytorch-operator", "pytorch-converted")
    faults = {c.name: f for c in cases if (f := suite.fault(c))}
    assert {n for n in faults if "gradient_of" not in n} == set()


# A model is a function


def test_run_compiles_and_gives_tensors_in_the_order_of_outputs() -> None:
    rng = np.random.default_rng(0)
    m = ts.onnx.load(classifier(rng).SerializeToString())
    w, v = m.parameters["w"], m.parameters["v"]
    for n in (2, 2, 3):  # eager, compiled, and compiled for other sizes
        x = rng.standard_normal((n, 3, 8, 8)).astype(np.float32)
        out = m.run({"x": x})
        assert list(out) == ["y"]
        assert isinstance(out["y"], Tensor)
        np.testing.assert_allclose(out["y"], expected(ts.tensor(x), w, v), rtol=1e-5, atol=1e-5)
    assert m.signature == "(x: float32[N, 3, 8, 8]) -> (y: float32[N, 5])"


def test_a_model_runs_inside_jit_and_grad_and_can_be_trained() -> None:
    rng = np.random.default_rng(1)
    m = ts.onnx.load(classifier(rng))
    x = ts.tensor(rng.standard_normal((2, 3, 8, 8)).astype(np.float32))

    def loss(p: Any) -> Any:
        return op.mean(op.square(m.apply(p, x)))

    def same(p: Any) -> Any:
        return op.mean(op.square(expected(x, p["w"], p["v"])))

    p = m.parameters
    found, wanted = ts.jit(ts.grad(loss))(p), ts.jit(ts.grad(same))(p)
    for k in ("w", "v"):
        np.testing.assert_allclose(found[k], wanted[k], rtol=1e-4, atol=1e-5)
    before = float(loss(p))
    p = {k: p[k] - 1e-4 * found[k] for k in p}
    assert float(loss(p)) < before


def test_symbolic_sizes_pass_through_shape_arithmetic() -> None:
    m = ts.onnx.load(classifier(np.random.default_rng(2)))
    g = ts.trace(lambda x: m(x), Tensor["N", 3, 8, 8, f32])
    assert str(g.outputs[0].type) == "f32[N,5]"
    assert m.lower().graph.outputs[0].type.shape == (1, 5)


def positives() -> Any:
    """The elements of twice x that are positive: their number depends on data."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["a"]),
        helper.make_node("Greater", ["a", "zero"], ["p"]),
        helper.make_node("Compress", ["a", "p"], ["y"]),
    ]
    zero = [("zero", np.zeros((), np.float32))]
    return model(nodes, [("x", FLOAT, ["N"])], [("y", FLOAT, ["M"])], zero)


def test_what_data_decides_runs_after_the_program_and_not_inside_jit() -> None:
    m = ts.onnx.load(positives())
    x = np.array([1, -2, 3], np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(m.run({"x": x})["y"], [2, 6])
    with pytest.raises(ts.onnx.DataDependentError, match="outside of jit") as e:
        ts.jit(lambda x: m(x))(x)
    assert e.value.message == (
        "onnx: Compress: input 0 is computed from the inputs of the model and decides a shape; run the "
        "model outside of jit"
    )


def loop(condition_kept: bool) -> Any:
    """x doubled n times, in a Loop."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_out"]),
            helper.make_node("Add", ["s", "s"], ["s_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("go", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("s", FLOAT, [2]),
        ],
        [
            helper.make_tensor_value_info("go_out", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("s_out", FLOAT, [2]),
        ],
    )
    weights = [("n", np.array(3))] if condition_kept else []
    inputs = [("x", FLOAT, [2])] + ([] if condition_kept else [("n", INT64, [])])
    return model(
        [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)], inputs,
        [("y", FLOAT, [2])], weights,
    )  # fmt: skip


@pytest.mark.parametrize("known", [True, False])
def test_loops_are_scans_or_while_loops(known: bool) -> None:
    m = ts.onnx.load(loop(known))
    x = np.array([1, 2], np.float32)
    more = {} if known else {"n": np.array(3)}
    for _ in range(2):
        np.testing.assert_array_equal(m.run({"x": x, **more})["y"], 8 * x)


# What is wrong is said


def test_errors_name_the_input_and_the_node() -> None:
    m = ts.onnx.load(positives())
    with pytest.raises(ts.TesseraError) as e:
        m.run({"z": np.zeros(2, np.float32)})
    assert e.value.message == (
        "onnx: the model has no input 'z'; it is (x: float32[N]) -> (y: float32[M])"
    )
    with pytest.raises(ts.TesseraError) as e:
        m.run({})
    assert e.value.message == (
        "onnx: run lacks the inputs ['x']; the model is (x: float32[N]) -> (y: float32[M])"
    )
    with pytest.raises(ts.TesseraError) as e:
        m.run({"x": np.zeros(2)})
    assert e.value.message == (
        "onnx: input 'x' is f64[2], expected x: float32[N]; cast it with astype"
    )
    unknown = model([helper.make_node("Foo", ["x"], ["y"], name="f")], *[[("x", FLOAT, [1])]] * 2)
    unknown.graph.output[0].name = "y"
    with pytest.raises(ts.onnx.OnnxError) as e:
        ts.onnx.load(unknown).run({"x": np.zeros(1, np.float32)})
    assert e.value.message == "onnx: Foo 'f': there is no rule for this node type"
    with pytest.raises(ts.onnx.OnnxError, match="is not an ONNX model"):
        ts.onnx.load(b"nothing of the kind")


def with_external(folder: Path, location: str) -> Path:
    m = model(
        [helper.make_node("Add", ["x", "w"], ["y"])], [("x", FLOAT, [4])], [("y", FLOAT, [4])],
        [("w", np.arange(4, dtype=np.float32))],
    )  # fmt: skip
    t = m.graph.initializer[0]
    (folder / "w.bin").write_bytes(b"\0" * 8 + t.raw_data)
    t.ClearField("raw_data")
    t.data_location = onnx.TensorProto.EXTERNAL
    for k, v in (("location", location), ("offset", "8"), ("length", "16")):
        t.external_data.add(key=k, value=v)
    (folder / "m.onnx").write_bytes(m.SerializeToString())
    return folder / "m.onnx"


def test_external_data_takes_as_many_bytes_as_its_elements(tmp_path: Path) -> None:
    """Without an offset and a length, and with an odd number of elements of half a byte."""
    kinds = (TensorProto.FLOAT, TensorProto.INT4, TensorProto.UINT8)
    for count, kind in [(n, k) for n in (1, 5, 8) for k in kinds]:
        values = np.arange(count) % 7
        packed = onnx.helper.make_tensor("w", kind, [count], values)
        raw = packed.raw_data or onnx.numpy_helper.from_array(values.astype(np.float32)).raw_data
        if kind != TensorProto.FLOAT:
            half = [
                int(a) | int(b) << 4 for a, b in zip(values[::2], [*values[1::2], 0], strict=False)
            ]
            raw = bytes(half if kind == TensorProto.INT4 else values.astype(np.uint8))
        t = TensorProto(name="w", data_type=kind, dims=[count], data_location=TensorProto.EXTERNAL)
        t.external_data.add(key="location", value="w.bin")
        (tmp_path / "w.bin").write_bytes(raw + b"more")
        m = model(
            [helper.make_node("Cast", ["w"], ["y"], to=FLOAT)], [], [("y", FLOAT, [count])], []
        )
        m.graph.initializer.append(t)
        (tmp_path / "m.onnx").write_bytes(m.SerializeToString())
        got = ts.onnx.load(tmp_path / "m.onnx").run({})["y"]
        np.testing.assert_array_equal(np.asarray(got), values)


def test_external_data_is_mapped_and_stays_in_its_folder(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret").write_bytes(b"\0" * 64)
    m = ts.onnx.load(with_external(inside, "w.bin"))
    x = np.ones(4, np.float32)
    np.testing.assert_array_equal(m.run({"x": x})["y"], x + np.arange(4))
    assert isinstance(m.model.graph.initialisers["w"].base, np.memmap | np.ndarray)
    for location in ("../secret", str(tmp_path / "secret"), "missing"):
        with pytest.raises(ts.onnx.OnnxError, match="no file in the model's folder"):
            ts.onnx.load(with_external(inside, location))
    with pytest.raises(ts.onnx.OnnxError, match="load the model by its path"):
        ts.onnx.load((inside / "m.onnx").read_bytes())


def test_a_tensor_is_no_larger_than_its_bytes() -> None:
    m = model([helper.make_node("Identity", ["w"], ["y"])], [], [("y", FLOAT, [4])],
              [("w", np.zeros(4, np.float32))])  # fmt: skip
    m.graph.initializer[0].dims[0] = 1 << 40
    with pytest.raises(ts.onnx.OnnxError) as e:
        ts.onnx.load(m)
    assert e.value.message == (
        "onnx: tensor 'w' is float32[1099511627776], which takes 4398046511104 bytes, but has 16"
    )


def mutations(count: int, seed: int) -> None:
    """Load and run damaged models: the only way out is an error of Tessera."""
    rng = np.random.default_rng(seed)
    sources = [classifier(rng), positives(), loop(True), loop(False)]
    kept = [m.SerializeToString() for m in sources]
    inputs = {
        "x": [np.ones((2, 3, 8, 8), np.float32), np.ones(3, np.float32), np.ones(2, np.float32)],
    }
    ran = failed = 0
    for i in range(count):
        data = bytearray(kept[i % len(kept)])
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(len(data)))
            how = rng.integers(3)
            if how == 0:
                data[at] = rng.integers(256)
            elif how == 1:
                del data[at : at + int(rng.integers(1, 8))]
            else:
                data[at:at] = bytes(rng.integers(0, 256, 2, dtype=np.uint8))
        try:
            m = ts.onnx.load(bytes(data))
            given: dict[str, Any] = {k.name: inputs["x"][min(i % len(kept), 2)] for k in m.inputs}
            if "n" in given:
                given["n"] = np.array(2)
            if any(n.op == "Loop" for n in m.model.graph.nodes):
                continue  # a damaged trip count is a loop without end
            m.run(given)
            ran += 1
        except ts.TesseraError:
            failed += 1
    assert ran > 0
    assert failed > 0


def test_damaged_files_are_errors() -> None:
    with override(target="numpy"):
        mutations(500, 0)


@pytest.mark.deep
def test_many_damaged_files_are_errors() -> None:
    with override(target="numpy"):
        mutations(50_000, 1)


# The command line


def test_tessera_run_and_inspect_take_models(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(positives().SerializeToString())
    np.save(tmp_path / "x.npy", np.array([1, -1, 2], np.float32))
    out = tmp_path / "out"
    given = ["--input", str(tmp_path / "x.npy"), "--output", str(out)]
    assert cli.main(["run", str(path), *given]) == 0
    assert capsys.readouterr().out == "y: f32[2] [2., 4.]\n"
    np.testing.assert_array_equal(np.load(out / "0_y.npy"), [2, 4])
    assert cli.main(["inspect", str(path)]) == 0
    text = capsys.readouterr().out
    assert "nodes          Add 1, Greater 1, Compress 1\n" in text
    assert cli.main(["run", str(path)]) == 2
    assert "the model needs --input for x" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["../secret.bin", "/etc/passwd", "\0", "a" * 5000, "", "."])
def test_data_outside_of_the_folder_is_not_read(tmp_path: Path, place: str) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(24))
    folder = tmp_path / "models"
    folder.mkdir()
    made = mutate_onnx.external_model()
    made.graph.initializer[0].external_data[0].value = place
    (folder / "m.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(
        ts.TesseraError, match=r"tensor 'w' is in .*, which is no file in the model's folder"
    ):
        ts.onnx.load(folder / "m.onnx")


def test_damaged_files_are_refused_or_run(tmp_path: Path) -> None:
    files = mutate_onnx.Files(tmp_path, suite.one_of_each(suite.node_cases(without=suite.SLOW)))
    found = {mutate_onnx.attempt(files, 7, n).rpartition(" ")[2] for n in range(60)}
    assert found == {"ran", "refused"}


def test_the_command_line_says_what_a_model_is_made_of_and_which_rules_are_missing(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path, model = tmp_path / "model.onnx", classifier(np.random.default_rng(0))
    known = [n.op_type for n in model.graph.node]
    for first in (known[0], "NoSuchOp"):
        model.graph.node[0].op_type = first
        path.write_bytes(model.SerializeToString())
        assert cli.main(["inspect", str(path)]) == 0
        facts = {x[:14].strip(): x[15:] for x in capsys.readouterr().out.splitlines()}
        assert facts.get("no rule") == (None if first == known[0] else first)
        counts = Counter([first, *known[1:]])
        assert facts["nodes"] == ", ".join(f"{k} {v}" for k, v in counts.most_common())
        weights = [numpy_helper.to_array(t).nbytes for t in model.graph.initializer]
        assert (facts["initialisers"], facts["bytes"]) == (str(len(weights)), str(sum(weights)))


@pytest.mark.parametrize("shape", [(), (1,), (4,), (2, 3), (0, 2)])
def test_text_is_moved_as_its_codes_are(shape: tuple[int, ...]) -> None:
    words = ["a", "é", "", "a", "long word", "b"]
    text = np.array(words[: int(np.prod(shape))], object).reshape(shape)
    moves: list[Any] = [
        np.transpose,
        np.ravel,
        lambda x: np.stack([x, x]),
        lambda x: x[..., :1] if x.ndim else x,
    ]
    for move in moves:
        got = carry.apply(lambda call, x, move=move: move(x), None, [text])  # type: ignore[arg-type]
        assert np.shape(got) == move(text).shape
        assert np.asarray(got, object).tolist() == move(text).tolist()
    joined = carry.apply(
        lambda call, x, y: np.stack([x, y]), None, [text, text[..., ::-1] if shape else text]
    )  # type: ignore[arg-type]
    assert joined.tolist() == np.stack([text, text[..., ::-1] if shape else text]).tolist()


# Calls that are known


def chosen() -> Any:
    """Tiled as often as a number says, which decides a shape, and a last row: a program for each number."""
    nodes = [
        helper.make_node("Unsqueeze", ["k", "zero"], ["r"]),
        helper.make_node("Tile", ["x", "r"], ["t"]),
        helper.make_node("Mul", ["t", "w"], ["a"]),
        *(helper.make_node("Add", [p, "w"], [q]) for p,
        q in zip("abcdefghijklmnop", "bcdefghijklmnopy", strict=True)),
    ]  # fmt: skip
    weights = [("zero", np.array([0])), ("w", np.array([2.0], np.float32))]
    ins = [("x", FLOAT, ["N"]), ("k", INT64, [])]
    return model(nodes, ins, [("y", FLOAT, ["M"])], weights)


def test_calls_with_arrays_that_are_known_by_their_types_and_choices() -> None:
    m = ts.onnx.load(chosen())
    x = np.arange(3, dtype=np.float32)
    for _ in range(3):
        for k in (1, 2):
            for v in (x, np.concatenate([x, x]), x[::-1]):
                y = m.run({"x": v, "k": np.array(k)})["y"]
                np.testing.assert_array_equal(y, np.tile(v, k) * 2 + 32)
    assert len(m._direct) == 4
    with pytest.raises(ValueError, match=r"input .x. is f64.*expected x: float32"):
        m.run({"x": x.astype(np.float64), "k": np.array(1)})


def test_a_known_call_follows_the_flags_and_leaves_its_inputs_alone() -> None:
    m = ts.onnx.load(classifier(np.random.default_rng(1)))
    x = np.random.default_rng(2).standard_normal((2, 3, 8, 8)).astype(np.float32)
    first = m.run({"x": x})["y"].numpy()
    np.testing.assert_array_equal(m.run({"x": x})["y"].numpy(), first)
    with override(target="numpy"):
        np.testing.assert_allclose(m.run({"x": x})["y"].numpy(), first, rtol=1e-5, atol=1e-5)
    assert x.flags.writeable
    x *= 0
    np.testing.assert_array_equal(m.run({"x": x})["y"].numpy(), 0)

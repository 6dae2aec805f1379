"""ts.torch.import_module and custom_op: modules of PyTorch as functions of ours, functions of ours as ops
of PyTorch.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import tessera as ts
from tessera import f32, op
from tessera.core.errors import OperandError, ShapeError

torch = pytest.importorskip("torch")
from tests.support.cases import torch_models as models  # noqa: E402

pytestmark = pytest.mark.oracle
nn = torch.nn


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, of its own internals
        yield


def _network() -> tuple[object, object]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval(), torch.randn(3, 8)


def test_values_gradients_and_shared_parameters():
    model, x = _network()
    m = ts.torch.import_module(model, x)
    assert repr(m) == "<TorchModule Sequential(f32[3,8])>"
    f = ts.jit(lambda x: m(x))
    for scale in (1.0, 2.0):
        with torch.no_grad():
            model[0].weight.mul_(scale)  # the jitted function sees what PyTorch writes
        torch.testing.assert_close(ts.torch.to_torch(f(x.numpy())), model(x).detach())
    slopes = ts.grad(lambda p: op.sum(m.apply(p, x) ** 2))(m.parameters)
    (model(x) ** 2).sum().backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(ts.torch.to_torch(slopes[name]), p.grad, rtol=1e-4, atol=1e-5)


def test_sizes_that_change():
    model, x = _network()
    m = ts.torch.import_module(model, x, dynamic_shapes=({0: torch.export.Dim("b")},))

    def run(x: ts.Tensor["B", 8, f32]):
        return m(x)

    f = ts.jit(run)
    for rows in (2, 5, 9):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(ts.torch.to_torch(f(x)), model(x).detach())
    assert f.compiled == 1


@pytest.mark.deep
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "hf_vit"])
def test_language_models(name):
    model, inputs = models.language_model(name)
    model.eval()
    m = ts.torch.import_module(model, kwargs=inputs)
    with torch.no_grad():
        want = models.tensors_of(model(**inputs))
    got = ts.tree.leaves(
        ts.jit(lambda inputs: m(**inputs))({k: x.numpy() for k, x in inputs.items()})
    )
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_errors_name_what_is_wanted():
    model, x = _network()
    m = ts.torch.import_module(model, x)
    with pytest.raises(
        ShapeError, match=r"Sequential got f32\[2,8\], expected f32\[3,8\] as it was imported"
    ):
        m(torch.zeros(2, 8))
    with pytest.raises(
        OperandError, match=r"Sequential has no parameter 'w'; it has 0.weight, 0.bias, 2.weight"
    ):
        m.apply({"w": 1}, x)
    with pytest.raises(OperandError, match="torch: Sequential got arguments of the structure"):
        m(x, x)
    with pytest.raises(
        OperandError, match=r"import_module: got function, expected a torch.nn.Module"
    ):
        ts.torch.import_module(lambda x: x, x)
    training = nn.Sequential(nn.BatchNorm1d(8))
    text = r"Sequential writes to 0.num_batches_tracked, 0.running_mean, 0.running_var when it runs; call model.eval()"  # noqa: E501
    with pytest.raises(OperandError, match=re.escape(text)):
        ts.torch.import_module(training, x)


def test_a_module_or_its_tensor_is_no_silent_constant():
    model, x = _network()
    with pytest.raises(
        OperandError, match="argument 'm' is Sequential, which is no tensor, number, array or tree"
    ):
        ts.jit(lambda m, x: x)(model, x)
    f = ts.jit(lambda x: x + 1)
    for k in range(3):
        assert float(f(torch.tensor(float(k)))) == k + 1
    assert f.compiled == 1


def test_a_function_of_ours_is_an_op_of_pytorch():
    rms = ts.torch.custom_op("tessera_tests::rms", lambda x, gain: op.rmsnorm(x) * gain)
    x = torch.randn(4, 8, dtype=torch.float64, requires_grad=True)
    gain = torch.randn(8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(rms, (x, gain))
    torch.library.opcheck(rms.default, (x, gain))
    ts.torch.report(reset=True)

    def model(x, gain):
        return rms(x, gain).sin().sum()

    torch.compile(model, backend="tessera", fullgraph=True)(x, gain).backward()
    got, x.grad = x.grad, None
    model(x, gain).backward()
    torch.testing.assert_close(got, x.grad)
    told = ts.torch.report()
    assert told.translated["tessera_tests.rms_pullback.default"] == 1
    assert not told.fallbacks


def test_names_and_parameters_of_ops():
    with pytest.raises(OperandError, match="the name is 'rms', expected \"namespace::name\""):
        ts.torch.custom_op("rms", lambda x: x)
    with pytest.raises(
        OperandError, match="the function takes xs, expected tensors by position alone"
    ):
        ts.torch.custom_op("a::b", lambda *xs: xs)


def test_the_page_runs_and_prints_what_it_says(capsys):
    torch._dynamo.reset()
    page = (Path(__file__).parents[2] / "docs" / "torch.md").read_text()
    blocks = re.findall(r"```py\n(.*?)```\n\n```text\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, object] = {}
    for code, text in blocks:
        exec(compile(code, "torch.md", "exec"), names)
        assert capsys.readouterr().out == text


def test_attention_of_an_exported_module_has_a_derivative():
    class Attends(nn.Module):
        def forward(self, x):
            return nn.functional.scaled_dot_product_attention(x, x * 2, x + 1, is_causal=True)

    x = torch.randn(2, 3, 5, 8, requires_grad=True)
    ts.torch.report(reset=True)
    m = ts.torch.import_module(Attends(), x.detach())
    slope = ts.grad(lambda x: op.sum(m(x) ** 2))(ts.torch.from_torch(x))
    (Attends()(x) ** 2).sum().backward()
    torch.testing.assert_close(ts.torch.to_torch(slope), x.grad, rtol=1e-4, atol=1e-5)
    assert ts.torch.report().random == {}

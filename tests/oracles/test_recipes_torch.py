"""The recipes beside PyTorch's own layers and optimisers: the same weights, the same data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from examples.recipes import cnn, decoding, image_filters, lstm, mixed_precision, vit
from tessera import f16, f32, f64, op

torch = pytest.importorskip("torch")
F = torch.nn.functional
pytestmark = pytest.mark.oracle


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def wide(tree: Any) -> Any:
    return ts.tree.map(lambda x: x.astype(f64) if x.dtype is f32 else x, tree)


def theirs(tree: Any) -> Any:
    """The same tree with leaf tensors of PyTorch that want gradients."""

    def one(x: Any) -> Any:
        t = torch.tensor(np.asarray(x))
        return t.requires_grad_() if t.is_floating_point() else t

    return ts.tree.map(one, tree) if not isinstance(tree, ts.Tensor) else one(tree)


def agree(got: Any, want: Any, rtol: float = 1e-9, atol: float = 1e-10) -> None:
    np.testing.assert_allclose(np.asarray(got), want.detach().numpy(), rtol=rtol, atol=atol)


def same_gradients(got: Any, params: Any, rtol: float = 1e-8, atol: float = 1e-10) -> None:
    """Gradients as a tree of ours against those of the leaves of PyTorch's tree."""
    for g, p in zip(ts.tree.leaves(got), torch_leaves(params), strict=True):
        agree(g, p.grad, rtol, atol)


def torch_leaves(tree: Any) -> list[Any]:
    """Leaves in the order of ts.tree."""
    if isinstance(tree, dict):
        return [x for k in sorted(tree) for x in torch_leaves(tree[k])]
    if isinstance(tree, (list, tuple)):
        return [x for part in tree for x in torch_leaves(part)]
    return [tree]


def torch_tree(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {k: torch_tree(v) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [torch_tree(v) for v in tree]
    return theirs(tree)


def test_cnn_three_steps_of_batchnorm_and_adam():
    params, running = wide(cnn.init(ts.key(0)))
    draw = rng()
    batches = [cnn.digits(draw, 12) for _ in range(3)]
    p = torch_tree(params)
    stats = [[torch.tensor(np.asarray(r[k])) for k in ("mean", "var")] for r in running]
    optimizer = torch.optim.Adam(torch_leaves(p), lr=1e-2)
    state, step = cnn.optimizer.init(params), cnn.step
    for x, labels in batches:
        x = x.astype(np.float64)
        value, params, running, state = step(params, running, state, x, labels)
        h = torch.tensor(x)
        for block, (mean, var) in zip(p["blocks"], stats, strict=True):
            h = F.conv2d(h, block["kernel"], padding=1)
            h = F.batch_norm(h, mean, var, block["gain"], block["bias"], True, cnn.MOMENTUM)
            h = F.max_pool2d(F.relu(h), 2)
        scores = h.flatten(1) @ p["out"]["w"] + p["out"]["b"]
        loss = F.cross_entropy(scores, torch.tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        agree(value, loss)
    for got, want in zip(ts.tree.leaves(params), torch_leaves(p), strict=True):
        agree(got, want, rtol=1e-6, atol=1e-8)
    for r, (mean, var) in zip(running, stats, strict=True):
        agree(r["mean"], mean)
        agree(r["var"], var)


def test_lstm_is_torch_nn_lstm():
    params = wide(lstm.init(ts.key(0)))
    xs, targets = (a.astype(np.float64) for a in lstm.adding_problem(rng(), 5))
    value, grads = ts.value_and_grad(lstm.loss)(params, ts.tensor(xs), ts.tensor(targets))
    net = torch.nn.LSTM(2, lstm.HIDDEN).double()
    out = theirs(params["out"])
    with torch.no_grad():
        net.weight_ih_l0.copy_(torch.tensor(params["input"].numpy().T))
        net.weight_hh_l0.copy_(torch.tensor(params["hidden"].numpy().T))
        net.bias_ih_l0.copy_(torch.tensor(params["bias"].numpy()))
        net.bias_hh_l0.zero_()
    hidden, _ = net(torch.tensor(xs))
    loss = F.mse_loss((hidden[-1] @ out)[:, 0], torch.tensor(targets))
    loss.backward()
    agree(lstm.lstm(params, ts.tensor(xs)), hidden)
    agree(value, loss)
    agree(grads["input"].T, net.weight_ih_l0.grad)
    agree(grads["hidden"].T, net.weight_hh_l0.grad)
    agree(grads["bias"], net.bias_ih_l0.grad)
    agree(grads["out"], out.grad)


def test_vit_is_a_stack_of_torch_encoder_layers():
    params = wide(vit.init(ts.key(0)))
    x, labels = vit.digits(rng(), 6)
    x = x.astype(np.float64)
    width = vit.WIDTH
    value, grads = ts.value_and_grad(vit.loss)(params, ts.tensor(x), ts.tensor(labels))
    layers = []
    for p in params["blocks"]:
        layer = torch.nn.TransformerEncoderLayer(
            width, vit.HEADS, 2 * width, 0.0, "gelu", norm_first=True, batch_first=True
        ).double()
        with torch.no_grad():
            for bias in (n for n, _ in layer.named_parameters() if n.endswith("bias")):
                layer.get_parameter(bias).zero_()
            for name, ours in (
                ("self_attn.in_proj_weight", p["qkv"]), ("self_attn.out_proj.weight", p["mix"]),
                ("linear1.weight", p["up"]), ("linear2.weight", p["down"]),
            ):  # fmt: skip
                layer.get_parameter(name).copy_(torch.tensor(ours.numpy().T))
        layers.append(layer)
    rest = torch_tree({k: params[k] for k in ("patch", "class", "places", "out")})
    blocks = F.unfold(torch.tensor(x)[:, None], vit.PATCH, stride=vit.PATCH).mT
    first = rest["class"].expand(6, 1, width)
    h = torch.cat([first, blocks @ rest["patch"]], 1) + rest["places"]
    for layer in layers:
        h = layer(h)
    scores = F.layer_norm(h[:, 0], (width,)) @ rest["out"]
    loss = F.cross_entropy(scores, torch.tensor(labels), label_smoothing=0.05)
    loss.backward()
    agree(vit.forward(params, ts.tensor(x)), scores)
    agree(value, loss)
    for k in rest:
        agree(grads[k], rest[k].grad)
    for g, layer in zip(grads["blocks"], layers, strict=True):
        agree(g["qkv"].T, layer.self_attn.in_proj_weight.grad)
        agree(g["down"].T, layer.linear2.weight.grad)
        agree(g["norm1"]["gain"], layer.norm1.weight.grad)


def turned(x: Any, places: Any) -> Any:
    """Rotary positions, pairs of the two halves of a head."""
    half = x.shape[-1] // 2
    angles = places[:, None] * 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


def test_decoding_is_causal_attention_without_a_cache():
    params = wide(decoding.init(ts.key(0)))
    tokens = decoding.patterns(rng(), 3, 12)
    caches = [ts.tree.map(lambda x: x, c) for c in wide_caches(3)]
    scores, _ = decoding.forward(params, caches, ts.asarray(tokens))
    p = torch_tree(params)
    x, places = p["tokens"][torch.tensor(tokens)], torch.arange(12)
    norm = lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)  # noqa: E731
    for block in p["blocks"]:
        qkv = (norm(x) @ block["qkv"]).reshape(3, 12, 3, decoding.HEADS, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(turned(q, places), turned(k, places), v, is_causal=True)
        x = x + y.transpose(1, 2).reshape(3, 12, -1) @ block["mix"]
        x = x + F.gelu(norm(x) @ block["up"]) @ block["down"]
    agree(scores, norm(x) @ p["out"])


def wide_caches(batch: int) -> Any:
    width = decoding.WIDTH // decoding.HEADS
    return [
        ts.KVCache.empty(batch, decoding.HEADS, decoding.ROOM, width, f64)
        for _ in range(decoding.LAYERS)
    ]


def test_mixed_precision_gradients_are_those_of_torch_in_f16():
    params = mixed_precision.init(ts.key(0))
    x, y = mixed_precision.data(rng(), 32)
    optimizer = mixed_precision.optimizers["f16 with loss scale"]
    state = optimizer.init(params)
    _, grads = optimizer.value_and_grad(
        lambda p: mixed_precision.loss(p, ts.asarray(x), ts.asarray(y), f16)
    )(state, params)
    p = torch_tree(params)
    h = torch.tensor(x).half()
    for i, layer in enumerate(p):
        h = h @ layer["w"].half() + layer["b"].half()
        h = F.relu(h) if i + 1 < len(p) else h
    loss = F.mse_loss(1e-4 * h.float()[:, 0], torch.tensor(y))
    (loss * state["scale"].item()).backward()
    for g, want in zip(ts.tree.leaves(grads), torch_leaves(p), strict=True):
        scale = want.grad.abs().max().item()
        assert scale > 0
        np.testing.assert_allclose(g, want.grad.numpy(), rtol=0.02, atol=0.02 * scale)


def test_image_filters_are_torch_convolutions():
    image = image_filters.picture(40)
    g = torch.tensor(np.asarray(image_filters.gaussian()))
    kernel = torch.outer(g, g)[None, None]
    blurred = F.conv2d(torch.tensor(image)[None, None], kernel, padding=image_filters.RADIUS)[0, 0]
    for blur in (
        image_filters.blur_direct,
        image_filters.blur_separable,
        image_filters.blur_fourier,
    ):
        agree(blur(image), blurred, rtol=1e-5, atol=1e-6)
    full = torch.zeros(40, 40)
    k = 2 * image_filters.RADIUS + 1
    full[:k, :k] = kernel[0, 0]
    h = torch.fft.rfft2(full.roll((-image_filters.RADIUS,) * 2, (0, 1)))
    want = torch.fft.irfft2(torch.fft.rfft2(torch.tensor(image)) * h.conj() / (h.abs() ** 2 + 1e-3))
    agree(image_filters.wiener(image, 1e-3), want, rtol=1e-3, atol=1e-4)


def test_the_gradient_through_a_filter():
    image = image_filters.picture(24)
    weight = np.random.default_rng(1).normal(size=image.shape).astype(np.float32)
    ours = ts.grad(lambda x: op.sum(image_filters.edges(x) * weight))(ts.asarray(image + weight))
    x = torch.tensor(image + weight, requires_grad=True)
    sobel = torch.tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]])[None, None] / 8
    parts = [F.conv2d(x[None, None], s, padding=1)[0, 0] for s in (sobel, sobel.mT)]
    (torch.hypot(*parts) * torch.tensor(weight)).sum().backward()
    agree(ours, x.grad, rtol=1e-4, atol=1e-4)

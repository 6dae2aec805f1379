"""Sharded programs beside jax.sharding on 8 host devices: the same models in the same layouts, in f64."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tessera as ts
from tessera import dist, op

pytestmark = pytest.mark.oracle
ROOT = Path(__file__).parent.parent.parent
SPEC = dist.ShardSpec

JAX = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
jax.config.update("jax_enable_x64", True)
mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("dp", "tp"))
r = np.random.default_rng(0)
x, up, down = r.normal(size=(16, 8)), r.normal(size=(8, 12)), r.normal(size=(12, 8))
labels, q = r.integers(0, 8, 16), r.normal(size=(2, 4, 8, 4))
image, kernel = r.normal(size=(2, 3, 16, 8)), r.normal(size=(4, 3, 3, 3))
def put(v, *spec):
    return jax.device_put(v, NamedSharding(mesh, P(*spec)))
def loss(x, up, down, labels):
    y = jnp.tanh(x @ up) @ down
    return -jnp.mean(jax.nn.log_softmax(y)[jnp.arange(16), labels])
def attend(q):
    s = jnp.where(jnp.tril(jnp.ones((8, 8), bool)), q @ q.swapaxes(2, 3) / 2, -jnp.inf)
    return jnp.sum(jnp.sin(jax.nn.softmax(s) @ q))
def conv(x, w):
    return jnp.sum(jnp.sin(jax.lax.conv(x, w, (1, 1), "SAME")))
def scanned(x, up, down):
    return jnp.sum(jax.lax.scan(lambda c, r: (jnp.tanh(c @ up @ down + r), c), jnp.zeros(8), x)[1])
out = []
for f, args in (
    (loss, (put(x, "dp"), put(up, None, "tp"), put(down, "tp"), put(labels, "dp"))),
    (attend, (put(q, "dp", None, "tp"),)), (conv, (put(image, "dp", None, "tp"), put(kernel))),
    (scanned, (put(x, None, "tp"), put(up, None, "tp"), put(down, "tp"))),
    (lambda x: jnp.sum(jnp.abs(jnp.fft.fft2(x)) ** 2 * jnp.arange(8)), (put(x, "tp"),)),
):
    floats = tuple(i for i, a in enumerate(args) if a.dtype.kind == "f")
    value, grads = jax.jit(jax.value_and_grad(f, argnums=floats))(*args)
    out.append([float(value), [np.asarray(g).ravel().tolist() for g in grads]])
print(json.dumps(out))
"""


def models():
    mesh = dist.Mesh(["dp", "tp"], shape=(2, 4))
    r = np.random.default_rng(0)
    x, up, down = r.normal(size=(16, 8)), r.normal(size=(8, 12)), r.normal(size=(12, 8))
    labels, q = r.integers(0, 8, 16), r.normal(size=(2, 4, 8, 4))
    image, kernel = r.normal(size=(2, 3, 16, 8)), r.normal(size=(4, 3, 3, 3))

    def put(v, *names):
        cut = [(k, a) for k, a in enumerate(names) if a]
        return dist.tensor(v, SPEC(tuple(k for k, _ in cut), tuple(a for _, a in cut)), mesh)

    def loss(x, up, down, labels):
        return op.cross_entropy(op.tanh(x @ up) @ down, labels)

    def attend(q):
        return op.sum(op.sin(dist.attention(q, q, q, axis="tp", causal=True)))

    def conv(x, w):
        return op.sum(op.sin(op.conv2d(x, w, padding="same")))

    def scanned(x, up, down):
        start = op.zeros((8,), dtype="f64")
        return op.sum(op.scan(lambda c, r: (op.tanh(c @ up @ down + r), c), start, x)[1])

    def spectrum(x):
        return op.sum(op.square(op.abs(op.fft2(x))) * np.arange(8))

    return [
        (loss, (put(x, "dp"), put(up, None, "tp"), put(down, "tp"), put(labels, "dp"))),
        (attend, (put(q, "dp", None, "tp"),)), (conv, (put(image, "dp", None, "tp"), put(kernel))),
        (scanned, (put(x, None, "tp"), put(up, None, "tp"), put(down, "tp"))), (spectrum, (put(x, "tp"),)),
    ]  # fmt: skip


# jax 0.10.2 doubles the derivative by the kernel where a mesh axis cuts nothing: the image is cut by both.
def test_models_agree_with_jax_on_eight_devices():
    pytest.importorskip("jax")
    env = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, "-c", JAX],
        check=False,
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    with ts.core.flags.override(target="numpy"):
        for (f, args), (value, grads) in zip(models(), json.loads(done.stdout), strict=True):
            floats = tuple(i for i, a in enumerate(args) if a.dtype.kind == "f")
            found, ours = ts.jit(ts.value_and_grad(f, argnums=floats))(*args)
            np.testing.assert_allclose(float(found), value, rtol=1e-12)
            for a, b in zip(ours, grads, strict=True):
                np.testing.assert_allclose(a.numpy().ravel(), b, rtol=1e-9, atol=1e-11)

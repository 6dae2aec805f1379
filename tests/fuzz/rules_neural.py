"""Rules for layers, losses, attention, convolutions, pools and resampling."""

from __future__ import annotations

from tests.fuzz.draw import Drawer
from tests.fuzz.program import spelled
from tests.fuzz.rules import options, rule


@rule("softmax", "softmax_safe", "log_softmax", "softmin")
def softmax(d: Drawer, name: str) -> str:
    x = d.take("f", low=1)
    return f"op.{name}({x}, {d.axis(x)})"


@rule("glu", "swiglu", "geglu")
def gated(d: Drawer, name: str) -> str:
    x = d.take("f", low=1, fits=lambda s: s[-1] % 2 == 0)
    return f"op.{name}({x})"


@rule("layernorm", "layernorm_safe", "rmsnorm", "rmsnorm_safe")
def normed(d: Drawer, name: str) -> str:
    x = d.take("f", low=1)
    n = d.shape_of(x)[-1]
    more = ""
    if d.often(0.5):
        more += f", {d.new('f', (n,), dtype=d.spelled_dtype(x))}"
        if name.startswith("layer") and d.often(0.7):
            more += f", {d.new('f', (n,), dtype=d.spelled_dtype(x))}"
        return f"op.{name}({x}{more}, eps=0.1)"
    return f"op.{name}({x}, axis={d.axis(x)}, eps={d.pick((0.1, 1e-5))})"


@rule("batchnorm_train", "instancenorm")
def channels(d: Drawer, name: str) -> str:
    x = d.take("f", low=3 if name == "instancenorm" else 2)
    c = d.shape_of(x)[1]
    more = (
        "".join(f", {d.new('f', (c,), dtype=d.spelled_dtype(x))}" for _ in range(2))
        if d.often(0.5)
        else ""
    )
    return f"op.{name}({x}{more}, eps=0.1)"


@rule("batchnorm")
def batchnorm(d: Drawer, name: str) -> str:
    x = d.take("f", low=2)
    c, t = d.shape_of(x)[1], d.spelled_dtype(x)
    more = f", {d.new('f', (c,), dtype=t)}, {d.new('f', (c,), dtype=t)}" if d.often(0.5) else ""
    return f"op.batchnorm({x}, {d.new('f', (c,), dtype=t)}, {d.new('f', (c,), 0.5, 2.0, dtype=t)}{more})"


@rule("groupnorm")
def groupnorm(d: Drawer, name: str) -> str:
    x = d.take("f", low=3, fits=lambda s: s[1] > 0)
    groups = d.pick([k for k in (1, 2, 3, 4) if d.shape_of(x)[1] % k == 0])
    return f"op.groupnorm({x}, {groups}, eps=0.1)"


@rule("residual")
def residual(d: Drawer, name: str) -> str:
    x = d.take("f")
    more = f", dropout=0.5, key={key(d)}" if d.often(0.4) else ""
    return f"op.residual({x}, {d.same_shape(x, 'f')}{more})"


def key(d: Drawer) -> str:
    """A key of random numbers: an input, or one made from another."""
    keys = [x.name for x in d.inputs if x.dtype == "u32" and x.data.shape == (2,)]
    k = d.pick(keys) if keys and d.often(0.5) else d.new("u", (2,), 0, 2**32 - 1, "u32")
    return f"op.random.fold_in({k}, {d.int(0, 9)})" if d.often(0.3) else k


@rule("rope")
def rope(d: Drawer, name: str) -> str:
    x = d.take("f", low=2, fits=lambda s: s[-1] % 2 == 0)
    return f"op.rope({x}{options(d, 0.5, base=(100.0, 10000.0))})"


@rule("attention")
def attention(d: Drawer, name: str) -> str:
    t = d.pick(d.floats)
    heads = d.pick((1, 2))
    q, k, e, v = (d.pick((1, 2, 3, 4, 5, 8, 11, 16)) for _ in range(4))
    batch = d.pick(((), (), (2,)))
    shared = d.pick((heads, 1))
    qs = d.new("f", (*batch, heads, q, e), dtype=t)
    ks, vs = (
        d.new("f", (*batch, shared, k, e), dtype=t),
        d.new("f", (*batch, shared, k, v), dtype=t),
    )
    mask = f", mask={d.new('b', (q, k))}" if d.often(0.25) else ""
    return (
        f"op.attention({qs}, {ks}, {vs}{mask}{options(d, causal=(True, False), scale=(0.5, 1.0))})"
    )


# Losses

_PAIRS = {
    "mse": {}, "mae": {}, "l1_loss": {}, "hinge": {"margin": (0.5, 1.0)}, "huber": {"delta": (0.5, 1.0)},
    "smooth_l1": {"beta": (0.5, 1.0, 0.0)},
}  # fmt: skip
_REDUCTIONS = ("mean", "sum", "none")


@rule(*_PAIRS)
def loss(d: Drawer, name: str) -> str:
    x = d.take("f")
    return (
        f"op.{name}({x}, {d.same_shape(x, 'f')}{options(d, reduction=_REDUCTIONS, **_PAIRS[name])})"
    )


@rule("binary_cross_entropy")
def binary_cross_entropy(d: Drawer, name: str) -> str:
    x = d.take("f")
    y = d.within(d.same_shape(x, "f"), 0.05, 0.95)
    if d.often(0.4):
        return f"op.binary_cross_entropy(op.sigmoid({x}), {y}, logits=False{options(d, reduction=_REDUCTIONS)})"  # noqa: E501
    return f"op.binary_cross_entropy({x}, {y}{options(d, reduction=_REDUCTIONS)})"


@rule("kl_div")
def kl_div(d: Drawer, name: str) -> str:
    x = d.take("f", low=1)
    y = d.same_shape(x, "f")
    if d.often(0.5):
        return f"op.kl_div(op.log_softmax({x}), op.log_softmax({y}), log_target=True{options(d, reduction=_REDUCTIONS)})"  # noqa: E501
    return f"op.kl_div(op.log_softmax({x}), op.softmax({y}){options(d, reduction=_REDUCTIONS)})"


@rule("cross_entropy", "nll_loss")
def cross_entropy(d: Drawer, name: str) -> str:
    x = d.take("f", low=1, fits=lambda s: s[-1] > 0)
    *rows, n = d.shape_of(x)
    labels = d.indices(n, rows)
    more = options(d, reduction=_REDUCTIONS, ignore_index=(0, 1))
    if name == "nll_loss":
        return f"op.nll_loss(op.log_softmax({x}), {labels}{more})"
    return f"op.cross_entropy({x}, {labels}{more}{options(d, label_smoothing=(0.1,))})"


@rule("cosine_similarity")
def cosine_similarity(d: Drawer, name: str) -> str:
    x = d.take("f", low=1)
    return f"op.cosine_similarity({x}, {d.same_shape(x, 'f')}, axis={d.axis(x)})"


# Convolutions


@rule("conv", "conv1d", "conv2d", "conv3d")
def conv(d: Drawer, name: str) -> str:
    ndim = {"conv": d.pick((1, 1, 2))}.get(name) or int(name[-2])
    groups = d.pick((1, 1, 1, 2))
    x, c, t = picture(d, ndim, groups)
    o = groups * d.pick((1, 2, 3))
    window = [d.int(1, 3 if ndim < 3 else 2) for _ in range(ndim)]
    w = d.new(d.kind(x), (o, c // groups, *window), dtype=t)
    bias = f", {d.new(d.kind(x), (o,), dtype=t)}" if d.often(0.4) else ""
    more = options(d, 0.5, stride=(1, 2, 3), padding=(0, 1, 2), dilation=(1, 2))
    return f"op.{name}({x}, {w}{bias}{more}{f', groups={groups}' if groups > 1 else ''})"


def picture(d: Drawer, ndim: int, groups: int = 1) -> tuple[str, int, str]:
    """A batch of signals or pictures, its channels and dtype: a value of this rank, or a new one."""
    have = [
        n
        for n, v in d.values.items()
        if len(v.shape) == ndim + 2
        and v.dtype.kind == "f"
        and v.shape[1] % groups == 0
        and v.shape[1]
    ]
    if have and d.often(0.7):
        x = d.pick(have)
        return x, d.shape_of(x)[1], d.spelled_dtype(x)
    c, t = groups * d.pick((1, 2, 3)), d.pick(d.floats)
    space = [d.pick((1, 2, 3, 4, 5, 7, 8) if ndim < 3 else (2, 3, 4)) for _ in range(ndim)]
    return d.new("f", (d.pick((1, 2)), c, *space), dtype=t), c, t


@rule("conv_transpose", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv_transpose(d: Drawer, name: str) -> str:
    ndim = {"conv_transpose": d.pick((1, 2))}.get(name) or int(name[-2])
    groups = d.pick((1, 1, 1, 2))
    x, c, t = picture(d, ndim, groups)
    o = d.pick((1, 2, 3, 9))  # few channels, and enough for vectors along them
    w = d.new(d.kind(x), (c, o, *[d.int(1, 3 if ndim < 3 else 2) for _ in range(ndim)]), dtype=t)
    more = options(d, 0.5, stride=(1, 2, 3), padding=(0, 1), dilation=(1, 2), output_padding=(0, 1))
    return f"op.{name}({x}, {w}{more}{f', groups={groups}' if groups > 1 else ''})"


@rule("conv_input", "conv_weights")
def conv_adjoint(d: Drawer, name: str) -> str:
    n, c, o, k, stride = (
        d.pick((4, 5, 7)),
        d.pick((1, 2, 3, 9)),
        d.int(1, 3),
        d.int(1, 3),
        d.int(1, 3),
    )
    out = (n - k) // stride + 1
    t = d.pick(d.floats)
    ct = d.new("f", (2, o, out), dtype=t)
    if name == "conv_input":
        return f"op.conv_input({ct}, {d.new('f', (o, c, k), dtype=t)}, {n}, stride={stride})"
    return f"op.conv_weights({d.new('f', (2, c, n), dtype=t)}, {ct}, {k}, stride={stride})"


_POOLS = [f"{kind}_pool{n}" for kind in ("avg", "max") for n in ("", "1d", "2d", "3d")]


@rule(*_POOLS, "lp_pool")
def pool(d: Drawer, name: str) -> str:
    ndim = int(name[-2]) if name[-1] == "d" else d.pick((1, 2))
    x, _, _ = picture(d, ndim)
    size = d.int(1, 3)
    more = options(d, 0.4, stride=(1, 2, 3), ceil_mode=(True, False))
    if name == "lp_pool":
        return f"op.lp_pool(op.abs({x}) + 0.25, {size}{more}{options(d, p=(2.0, 3.0))})"
    if size > 1 and d.often(0.4):
        more += ", padding=1"
    if name.startswith("avg"):
        more += options(d, 0.3, count_include_pad=(False, True))
    elif d.often(0.3):
        more += f", dilation={d.int(1, 2)}"
    return f"op.{name}({x}, {size}{more})"


@rule("global_avg_pool", "global_max_pool")
def global_pool(d: Drawer, name: str) -> str:
    x, _, _ = picture(d, d.pick((1, 2)))
    return f"op.{name}({x}{options(d, 0.4, keepdims=(True, False))})"


@rule("adaptive_avg_pool", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive(d: Drawer, name: str) -> str:
    x, _, _ = picture(d, int(name[-2]) if name[-1] == "d" else d.pick((1, 2)))
    return f"op.{name}({x}, {d.int(1, 5)})"


@rule("resize", "interpolate")
def resize(d: Drawer, name: str) -> str:
    x, _, _ = picture(d, d.pick((1, 2)))
    to = f"size={d.int(1, 9)}" if d.often(0.5) else f"scale={d.pick((0.5, 1.7, 2.0))}"
    mode = d.pick(("nearest", "linear", "cubic"))
    return (
        f"op.{name}({x}, {to}, mode='{mode}'{options(d, 0.4, align_corners=(mode != 'nearest',))})"
    )


@rule("grid_sample")
def grid_sample(d: Drawer, name: str) -> str:
    x, _, _ = picture(d, d.pick((1, 2)))
    batch, _, *sizes = d.shape_of(x)
    grid = d.new("f", (batch, *sizes, len(sizes)), dtype=d.spelled_dtype(x))
    rest = options(d, 0.4, padding=("zeros", "border", "reflection"), align_corners=(True,))
    return f"op.grid_sample({x}, {grid}, mode='{d.pick(('nearest', 'linear'))}'{rest})"


@rule("affine_grid")
def affine_grid(d: Drawer, name: str) -> str:
    theta = d.new("f", (2, 2, 3))
    return f"op.affine_grid({theta}, (2, 1, {d.int(1, 4)}, {d.int(1, 4)}){options(d, 0.4, align_corners=(True,))})"  # noqa: E501


@rule("dropout")
def dropout(d: Drawer, name: str) -> str:
    return f"{spelled(name)}({key(d)}, {d.take('f')}{options(d, p=(0.0, 0.25, 0.9), training=(True, False))})"


# Random numbers


@rule(
    "uniform", "normal", "exponential", "laplace", "gumbel", "bits", "randint", "truncated_normal"
)
def random(d: Drawer, name: str) -> str:
    dtype = d.pick([t for t in d.floats if "@" not in t and t != "tf32"] or ["f32"])
    args = {
        "bits": f", dtype={d.pick(('u8', 'u16', 'u32', 'u64'))}", "randint": f", -3, {d.int(1, 9)}",
        "uniform": d.pick(("", ", -1.0, 2.0")) + f", dtype={dtype}",
        "normal": d.pick(("", ", 0.5, 2.0")) + f", dtype={dtype}",
    }.get(name, f", dtype={dtype}")  # fmt: skip
    if name == "truncated_normal":
        return f"op.random.truncated_normal({key(d)}, -1.0, 2.0, {d.shape()}{args})"
    return f"op.random.{name}({key(d)}, {d.shape()}{args})"


@rule("random_gamma.gamma", "loggamma", "poisson", "dirichlet", "beta")
def gamma(d: Drawer, name: str) -> str:
    a = d.within(d.take("f", low=1), 0.3, 3.0)
    more = f", {a}" if name == "beta" else ""
    return f"{spelled(name)}({key(d)}, {a}{more})"


@rule("bernoulli")
def bernoulli(d: Drawer, name: str) -> str:
    p = "0.3" if d.often(0.4) else d.within(d.take("f"), 0.0, 1.0)
    return f"op.random.bernoulli({key(d)}, {p}{f', shape={d.shape()}' if p == '0.3' else ''})"


@rule("categorical")
def categorical(d: Drawer, name: str) -> str:
    x = d.take("f", low=1, fits=lambda s: s[-1] > 0)
    return f"op.random.categorical({key(d)}, {x})"


@rule("permutation", "choice")
def permutation(d: Drawer, name: str) -> str:
    x = str(d.int(1, 7)) if d.often(0.4) else d.take("fib", low=1, fits=lambda s: s[0] > 0)
    more = "" if name == "permutation" else f", ({d.int(1, 3)},)"
    return f"op.random.{name}({key(d)}, {x}{more})"


@rule("random_bits.split", "fold_in", "key")
def keys(d: Drawer, name: str) -> str:
    if name == "key":
        return f"op.random.key({d.int(0, 99)})"
    return f"{spelled(name)}({key(d)}, {d.int(2, 4)})"

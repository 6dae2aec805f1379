"""ai.onnx.ml: encoders, linear models and trees."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.core.dtype import f32, i64
from tessera.interop.onnx.model import STRING, Array, OnnxError
from tessera.interop.onnx.rule import NodeCall, is_text, rule
from tessera.interop.onnx.rules.text import strings
from tessera.lang import op
from tessera.ops.define import as_value

_ML = "ai.onnx.ml"


@rule("ArrayFeatureExtractor", domain=_ML, moves=True)
def _extract(n: NodeCall, x: Any, indices: Any) -> Any:
    found = op.take(x, op.reshape(indices, (-1,)), -1)
    return op.reshape(found, (1, -1)) if len(x.shape) == 1 else found


@rule("Binarizer", domain=_ML)
def _binarize(n: NodeCall, x: Any) -> Any:
    x = as_value(x)
    return op.cast(op.gt(x, n.get("threshold", 0.0)), x.dtype)


@rule("Scaler", domain=_ML)
def _scale(n: NodeCall, x: Any) -> Any:
    offset, scale = (np.array(n.get(a, [d]), np.float32) for a, d in (("offset", 0), ("scale", 1)))
    return op.mul(op.sub(op.cast(x, f32), offset), scale)


@rule("Normalizer", domain=_ML)
def _normalize(n: NodeCall, x: Any) -> Any:
    wide = op.cast(x, f32)
    how = n.get("norm", "MAX")
    if how == "MAX":
        norm = op.max(wide, -1, True)
    elif how == "L1":
        norm = op.sum(op.abs(wide), -1, True)
    else:
        norm = op.sqrt(op.sum(op.square(wide), -1, True))
    return op.div(wide, op.where(op.eq(norm, 0), 1.0, norm))


@rule("Imputer", domain=_ML)
def _impute(n: NodeCall, x: Any) -> Any:
    x = as_value(x)
    floats = x.dtype.kind == "f"
    values = n.get("imputed_value_floats" if floats else "imputed_value_int64s")
    missing = n.get("replaced_value_float" if floats else "replaced_value_int64", 0)
    hole = op.isnan(x) if floats and np.isnan(missing) else op.eq(x, missing)
    return op.where(hole, op.cast(np.array(values), x.dtype), x)


@rule("FeatureVectorizer", domain=_ML)
def _join(n: NodeCall, *xs: Any) -> Any:
    return op.concat([op.cast(op.reshape(x, (x.shape[0], -1)), f32) for x in xs], 1)


@rule("OneHotEncoder", domain=_ML, host=True)
def _one_hot(n: NodeCall, x: Any) -> Any:
    words = n.get("cats_strings")
    cats = np.array(words, object) if words else np.array(n.get("cats_int64s"), np.int64)
    hot = x[..., None] == cats
    if not n.get("zeros", 1) and not hot.any(-1).all():
        raise OnnxError("an element is none of the categories")
    return hot.astype(np.float32)


@rule("LabelEncoder", domain=_ML, host=True)
def _encode(n: NodeCall, x: Any) -> Any:
    """Elements replaced by a table of keys and values."""
    names = ("keys_tensor", "keys_strings", "keys_int64s", "keys_floats")
    keys = next((n.get(k) for k in names if n.get(k) is not None), None)
    kind = next(
        (k for k in ("tensor", "strings", "int64s", "floats") if n.get(f"values_{k}") is not None),
        None,
    )
    if keys is None or kind is None:
        return _by_classes(n, x)
    values = n.get(f"values_{kind}")
    default, dtype = _default(n, kind)
    table = {_key(k): v for k, v in zip(list(keys), list(values), strict=False)}
    found = [table.get(_key(k), default) for k in x.reshape(-1)]
    if dtype == STRING:
        return strings([str(s) for s in found], x.shape)
    return np.array(found, dtype).reshape(x.shape)


def _key(k: Any) -> Any:
    """A key of a table; NaN is equal to itself."""
    value = k.item() if isinstance(k, np.generic) else k
    return "nan" if isinstance(value, float) and np.isnan(value) else value


def _default(n: NodeCall, kind: str) -> tuple[Any, Any]:
    if kind == "tensor":
        given = n.get("default_tensor")
        sample = np.asarray(n.get("values_tensor"))
        if given is None:
            return {"O": "_Unused", "f": -0.0}.get(sample.dtype.kind, -1), sample.dtype
        return given.reshape(-1)[0], sample.dtype
    if kind == "strings":
        return n.get("default_string", "_Unused"), STRING
    if kind == "int64s":
        return n.get("default_int64", -1), np.int64
    return n.get("default_float", -0.0), np.float32


def _by_classes(n: NodeCall, x: Any) -> Any:
    classes = n.need("classes_strings")
    if is_text(x):
        default, table = n.get("default_int64", -1), {c: i for i, c in enumerate(classes)}
        return np.array([table.get(s, default) for s in x.reshape(-1)], np.int64).reshape(x.shape)
    default = n.get("default_string", "_Unused")
    named = [classes[i] if 0 <= i < len(classes) else default for i in x.reshape(-1)]
    return strings(named, x.shape)


@rule("ZipMap", domain=_ML, host=True)
def _zip_map(n: NodeCall, x: Array) -> Any:
    """A dictionary for each row: what a classifier says of each class."""
    labels = n.get("classlabels_strings") or n.get("classlabels_int64s") or []
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    if rows.ndim != 2 or rows.shape[1] != len(labels):
        raise OnnxError(f"{len(labels)} labels for an input of shape {list(x.shape)}")
    return [dict(zip(labels, row.tolist(), strict=True)) for row in rows]


@rule("DictVectorizer", domain=_ML, fold=False)
def _vectorize(n: NodeCall, x: Any) -> Any:
    """A dictionary as a row, 0 where it has no entry."""
    if not isinstance(x, dict):
        raise OnnxError(f"input 0 is {type(x).__name__}, expected a dictionary")
    names = n.get("string_vocabulary") or n.get("int64_vocabulary") or []
    kinds = {type(v) for v in x.values()}
    if str in kinds:
        return strings([x.get(k, "") for k in names], (1, len(names)))
    return np.array([[x.get(k, 0) for k in names]], np.int64 if kinds == {int} else np.float32)


@rule("CastMap", domain=_ML, fold=False)
def _cast_map(n: NodeCall, x: Any) -> Any:
    """The values of a dictionary in the order of its keys, which are places where the map is sparse."""
    if not isinstance(x, dict):
        raise OnnxError(f"input 0 is {type(x).__name__}, expected a dictionary")
    found = sorted(x.items())
    if n.get("map_form", "DENSE") == "SPARSE":
        width = n.get("max_map", 1)
        if not 0 < width < 2**31 or any(not 0 <= k < width for k, _ in found):
            raise OnnxError(f"max_map is {width}, but the keys are {[k for k, _ in found][:8]}")
        found = [(k, x.get(k, 0)) for k in range(width)]
    row = [v for _, v in found]
    if n.get("cast_to", "TO_FLOAT") == "TO_STRING":
        return strings([str(v) for v in row], (1, len(row)))
    to = np.float32 if n.get("cast_to", "TO_FLOAT") == "TO_FLOAT" else np.int64
    return np.array([[float(v) for v in row]]).astype(to)


@rule("CategoryMapper", domain=_ML, host=True)
def _category(n: NodeCall, x: Array) -> Any:
    """Text as whole numbers, or the other way round."""
    names, codes = n.need("cats_strings"), n.need("cats_int64s")
    if len(names) != len(codes):
        raise OnnxError(f"{len(names)} names for {len(codes)} numbers")
    if is_text(x):
        table, default = dict(zip(names, codes, strict=True)), n.get("default_int64", -1)
        return np.array([table.get(s, default) for s in x.reshape(-1)], np.int64).reshape(x.shape)
    back, other = dict(zip(codes, names, strict=True)), n.get("default_string", "_Unused")
    return strings([back.get(int(i), other) for i in x.reshape(-1)], x.shape)


# Linear models --------------------------------------------------------------------------------


def _post(scores: Any, how: str) -> Any:
    if how == "NONE":
        return scores
    if how == "LOGISTIC":
        return op.sigmoid(scores)
    if how in ("SOFTMAX", "SOFTMAX_ZERO"):
        soft = op.softmax(scores, -1)
        if how == "SOFTMAX":
            return soft
        zero = op.eq(scores, 0)
        masked = op.where(zero, float("-inf"), scores)
        return op.where(zero, op.zeros_like(scores), op.softmax(masked, -1))
    if how == "PROBIT":
        return op.mul(op.erfinv(op.sub(op.mul(scores, 2.0), 1.0)), 2**0.5)
    raise OnnxError(f"post_transform is '{how}'")


@rule("LinearRegressor", domain=_ML)
def _linear_regressor(n: NodeCall, x: Any) -> Any:
    targets = n.get("targets", 1)
    w = np.array(n.need("coefficients"), np.float32).reshape(targets, -1)
    y = op.matmul(op.cast(x, f32), w.T)
    if n.get("intercepts"):
        y = op.add(y, np.array(n.get("intercepts"), np.float32))
    return _post(y, n.get("post_transform", "NONE"))


@rule("LinearClassifier", domain=_ML, fold=False)
def _linear_classifier(n: NodeCall, x: Any) -> Any:
    intercepts = np.array(n.get("intercepts", [0.0]), np.float32)
    # Coefficients past those of the columns that x has are not read, as in onnxruntime.
    columns = int(as_value(x).shape[-1])
    flat = np.array(n.need("coefficients"), np.float32)
    if flat.size < len(intercepts) * columns:
        raise OnnxError(
            f"{flat.size} coefficients for {len(intercepts)} classes and {columns} columns"
        )
    w = flat[: len(intercepts) * columns].reshape(len(intercepts), columns)
    scores = op.add(op.matmul(op.cast(x, f32), w.T), intercepts)
    labels = n.get("classlabels_strings") or n.get("classlabels_ints") or []
    return _classified(scores, labels, n.get("post_transform", "NONE"), binary_zero=0.0)


def _classified(scores: Any, labels: Any, how: str, binary_zero: float) -> tuple[Any, Any]:
    """The label of each row and its scores; one column of scores stands for two classes."""
    if int(scores.shape[1]) == 1 and len(labels) == 2:
        if how == "NONE":
            best = op.cast(op.gt(op.index(scores, (slice(None), 0)), binary_zero), i64)
            both = op.concat([op.neg(scores), scores], 1)
        else:
            made = _post(scores, how)
            best = op.cast(op.gt(op.index(made, (slice(None), 0)), 0.5), i64)
            both = op.concat([op.sub(1.0, made), made], 1)
        return named(best, labels), both
    best = op.argmax(scores, -1)
    return named(best, labels), _post(scores, how)


def named(best: Any, labels: Any) -> Any:
    """The labels at these places, text where labels are."""
    if labels and isinstance(labels[0], str):
        data: Array = np.asarray(best) if not isinstance(best, np.ndarray) else best
        return strings([labels[i] for i in data.reshape(-1)], data.shape)
    return op.take(np.array(labels, np.int64), best, 0) if labels else best

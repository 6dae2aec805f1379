"""Return annotations of jitted functions are checked when they are traced."""

import numpy as np
import pytest

import tessera as ts
from tessera import Operator, Tensor, f32, f64, op
from tessera.core.errors import AnnotationError

RUNS_ON = "numpy"


def F(*shape):
    return op.ones(shape)


@ts.jit
def turned(x: Tensor["B", "S", f32]) -> Tensor["B", "S", f32]:
    return x.T


@ts.jit
def turned_rightly(x: Tensor["B", "S", f32]) -> Tensor["S", "B", f32]:
    return x.T


@ts.jit
def widened(x: Tensor["B", f32]) -> Tensor["B", f32]:
    return x.astype(f64)


@ts.jit
def summed(x) -> Tensor["B", f32]:
    return op.sum(x)


@ts.jit
def square(x) -> Tensor["N", "N"]:
    return x


@ts.jit
def sized(x) -> Tensor[3, f32]:
    return x * 2


@ts.jit
def joined(x: Tensor["B", f32], y: Tensor["B", f32]) -> Tensor["2*B", f32]:
    return op.concat([x, y])


@ts.jit
def doubled(x: Tensor["B", f32]) -> Tensor["2*B", f32]:
    return x


@ts.jit
def pair(x: Tensor["B", f32]) -> tuple[Tensor["B", f32], Tensor[f32]]:
    return op.sum(x), x


@ts.jit
def plain_pair(x: Tensor["B", f32]) -> (Tensor["B", f32], Tensor[f32]):
    return x


@ts.jit
def listed(x: Tensor["B", f32]) -> list[Tensor["B", f32]]:
    return [x, x[:1]]


@ts.jit
def word(x) -> Tensor[f32]:
    return {"a": x}


@ts.jit
def matrix(x: Tensor["N", f32]) -> Operator["N", "N", f32]:
    return op.low_rank(op.reshape(x, (-1, 1)), op.ones((3, 1)))


@ts.jit
def diagonal(x: Tensor["N", f32]) -> Operator["N", "N", f32]:
    return op.diag(x)


@pytest.mark.parametrize(
    ("call", "text", "line"),
    [
        (lambda: turned(F(2, 3)), "turned: the result is f32[S,B]: axis 0 is S, expected B as in "
                                  "Tensor['B', 'S', f32]", "return x.T"),
        (lambda: turned(F(3, 3)), "turned: the result is f32[S,B]: axis 0 is S, expected B as in "
                                  "Tensor['B', 'S', f32]", "return x.T"),
        (lambda: widened(F(2)), "widened: the result is f64[B], expected dtype f32 as in Tensor['B', f32]; "
                                "cast it with astype", "return x.astype(f64)"),
        (lambda: summed(F(2)), "summed: the result is f32[] of rank 0, expected Tensor['B', f32]",
        "return op.sum(x)"),
        (lambda: square(F(2, 3)), "square: the result is f32[2,3]: axis 1 is 3, expected N = 2 as in "
                                  "Tensor['N', 'N']", "def square(x) -> Tensor[\"N\", \"N\"]:\n  it is "
                                                      "argument 'x'"),
        (lambda: sized(F(2)), "sized: the result is f32[2]: axis 0 is 2, expected 3 as in Tensor[3, f32]",
        "return x * 2"),
        (lambda: doubled(F(2)), "doubled: the result is f32[B]: axis 0 is B, expected 2*B as in "
                                "Tensor['2*B', f32]", "def doubled(x: Tensor[\"B\", f32]) -> "
                                                      "Tensor[\"2*B\", f32]:\n  it is argument 'x'"),
        (lambda: pair(F(2)), "pair: the result[0] is f32[] of rank 0, expected Tensor['B', f32]",
        "return op.sum(x), x"),
        (lambda: plain_pair(F(2)),
        "plain_pair: the result is Tensor, expected 2 as in (Tensor['B', f32], Tensor[f32])",
        "it is argument 'x'"),
        (lambda: listed(F(2)), "listed: the result[1] is f32[1]: axis 0 is 1, expected B as in Tensor['B', "
                               "f32]", "return [x, x[:1]]"),
        (lambda: word(F(2)), "word: the result is dict, expected Tensor[f32]", "def word(x) -> Tensor[f32]:"),
        (lambda: matrix(F(5)), "matrix: the result is",
        "def matrix(x: Tensor[\"N\", f32]) -> Operator[\"N\", \"N\", f32]:"),
    ],
)  # fmt: skip
def test_a_result_that_breaks_its_annotation_is_an_error(call, text, line):
    for _ in range(2):
        with pytest.raises(AnnotationError) as e:
            call()
        assert e.value.message.startswith(text)
        assert str(e.value).endswith(line)


def test_results_that_keep_their_annotation_pass():
    assert turned_rightly(F(2, 3)).shape == (3, 2)
    assert square(F(3, 3)).shape == (3, 3)
    assert sized(F(3)).tolist() == [2, 2, 2]
    assert joined(F(2), F(2)).shape == (4,)
    assert joined(F(0), F(0)).shape == (0,)
    np.testing.assert_array_equal(diagonal(F(3)).todense(), np.eye(3))


def test_inner_functions_are_checked_too():
    with pytest.raises(AnnotationError, match="turned: the result is"):
        ts.jit(lambda x: turned(x) + 1)(F(2, 3))
    with pytest.raises(AnnotationError, match="turned: the result is"):
        ts.grad(lambda x: op.sum(turned(x)))(F(2, 3))


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("wrong", [None, 0, -1])
def test_each_part_of_a_result_of_any_length_is_checked(count, wrong):
    def parts(x):
        out = [x] * count
        if wrong is not None:
            out[wrong] = op.sum(x)
        return out

    @ts.jit
    def listed(x: Tensor["B", f32]) -> list[Tensor["B", f32]]:
        return parts(x)

    @ts.jit
    def row(x: Tensor["B", f32]) -> tuple[Tensor["B", f32], ...]:
        return tuple(parts(x))

    @ts.jit
    def nested(x: Tensor["B", f32]) -> tuple[list[Tensor["B", f32]], ...]:
        return ([x], parts(x), [x])

    for f in (listed, row, nested):
        if wrong is None:
            assert len(f(F(2))) == (3 if f is nested else count)
            continue
        place = f"[1][{wrong % count}]" if f is nested else f"[{wrong % count}]"
        with pytest.raises(AnnotationError) as e:
            f(F(2))
        assert f"the result{place} is f32[] of rank 0" in e.value.message

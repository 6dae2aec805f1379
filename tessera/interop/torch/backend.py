"""torch.compile(model, backend="tessera"): graphs of TorchDynamo, through AOTAutograd, as
programs of ours.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any

from tessera.interop.torch.library import decompositions, part
from tessera.interop.torch.plan import plan_of
from tessera.interop.torch.program import TorchProgram
from tessera.interop.torch.report import COUNTS

# Ops that have a rule of their own, though PyTorch could take them apart.
_KEEP = frozenset(
    f"aten.{name}"
    for name in (
        "gelu.default", "silu.default", "embedding_dense_backward.default", "baddbmm.default",
        "upsample_bilinear2d.vec", "upsample_nearest2d.vec", "upsample_bilinear2d.default",
        "upsample_nearest2d.default", "masked_fill.Scalar", "masked_fill.Tensor", "logsumexp.default",
    )
)  # fmt: skip
# Ops that core ATen keeps whole and that have no rule.
_TAKE_APART = ("native_layer_norm_backward", "native_group_norm_backward")


def backend(graph_module: Any, example_inputs: Any, **options: Any) -> Any:
    """The compiled form of a graph that TorchDynamo has recorded."""
    ended = getattr(graph_module, "compile_subgraph_reason", None)
    if ended is not None and ended.graph_break:
        COUNTS.broke(ended.reason)
    return _compiler()(graph_module, example_inputs)


@cache
def table() -> dict[Any, Any]:
    """How PyTorch takes ops apart before rules see them."""
    return decompositions(_KEEP, _TAKE_APART)


@cache
def _compiler() -> Any:
    common = part("_dynamo.backends.common")
    partition = part("_functorch.partitioners").min_cut_rematerialization_partition
    return common.aot_autograd(
        fw_compiler=_forward,
        bw_compiler=_backward,
        inference_compiler=_inference,
        decompositions=table(),
        partition_fn=partition,
        keep_inference_input_mutations=False,
    )


def _forward(graph_module: Any, example_inputs: Any) -> Any:
    return _boxed(graph_module, "forward")


def _backward(graph_module: Any, example_inputs: Any) -> Any:
    return _boxed(graph_module, "backward")


def _inference(graph_module: Any, example_inputs: Any) -> Any:
    return _boxed(graph_module, "inference")


def _boxed(graph_module: Any, name: str) -> Any:
    """The program of a functional graph, which takes its arguments in a list and empties that."""
    program = TorchProgram(plan_of(graph_module), name)

    def run(args: list[Any]) -> list[Any]:
        given = list(args)
        args.clear()
        return program(*given)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def register() -> None:
    """Let torch.compile know the backend by its name, where the package is not installed.

    Of an installed one PyTorch loads the entry point, and refuses a name that this has given already.
    """
    if entry_points(group="torch_dynamo_backends", name="tessera"):
        return
    registry = part("_dynamo.backends.registry")
    if "tessera" not in registry._COMPILER_FNS:
        registry.register_backend(backend, name="tessera")

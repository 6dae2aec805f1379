"""Layers: modules that are trees of their parameters."""

from types import ModuleType
from typing import TYPE_CHECKING, Any

from tessera.core.counterparts import lacking
from tessera.core.errors import NoAttributeError, located
from tessera.core.modules import answer
from tessera.nn import init as init
from tessera.nn.activation import CELU as CELU
from tessera.nn.activation import ELU as ELU
from tessera.nn.activation import GELU as GELU
from tessera.nn.activation import GLU as GLU
from tessera.nn.activation import SELU as SELU
from tessera.nn.activation import Hardshrink as Hardshrink
from tessera.nn.activation import Hardsigmoid as Hardsigmoid
from tessera.nn.activation import Hardswish as Hardswish
from tessera.nn.activation import Hardtanh as Hardtanh
from tessera.nn.activation import LeakyReLU as LeakyReLU
from tessera.nn.activation import LogSigmoid as LogSigmoid
from tessera.nn.activation import LogSoftmax as LogSoftmax
from tessera.nn.activation import Mish as Mish
from tessera.nn.activation import PReLU as PReLU
from tessera.nn.activation import ReLU as ReLU
from tessera.nn.activation import ReLU6 as ReLU6
from tessera.nn.activation import Sigmoid as Sigmoid
from tessera.nn.activation import SiLU as SiLU
from tessera.nn.activation import Softmax as Softmax
from tessera.nn.activation import Softplus as Softplus
from tessera.nn.activation import Softshrink as Softshrink
from tessera.nn.activation import Softsign as Softsign
from tessera.nn.activation import Tanh as Tanh
from tessera.nn.activation import Tanhshrink as Tanhshrink
from tessera.nn.activation import Threshold as Threshold
from tessera.nn.attention import MultiHeadAttention as MultiHeadAttention
from tessera.nn.containers import Sequential as Sequential
from tessera.nn.convolution import Conv1d as Conv1d
from tessera.nn.convolution import Conv2d as Conv2d
from tessera.nn.convolution import Conv3d as Conv3d
from tessera.nn.convolution import ConvTranspose1d as ConvTranspose1d
from tessera.nn.convolution import ConvTranspose2d as ConvTranspose2d
from tessera.nn.convolution import ConvTranspose3d as ConvTranspose3d
from tessera.nn.feed_forward import MLP as MLP
from tessera.nn.feed_forward import MoE as MoE
from tessera.nn.feed_forward import SwiGLU as SwiGLU
from tessera.nn.linear import Activation as Activation
from tessera.nn.linear import Bilinear as Bilinear
from tessera.nn.linear import Dropout as Dropout
from tessera.nn.linear import Embedding as Embedding
from tessera.nn.linear import Flatten as Flatten
from tessera.nn.linear import Identity as Identity
from tessera.nn.linear import Linear as Linear
from tessera.nn.module import Module as Module
from tessera.nn.module import replace as replace
from tessera.nn.module import static as static
from tessera.nn.norm import GroupNorm as GroupNorm
from tessera.nn.norm import InstanceNorm as InstanceNorm
from tessera.nn.norm import LayerNorm as LayerNorm
from tessera.nn.norm import LocalResponseNorm as LocalResponseNorm
from tessera.nn.norm import RMSNorm as RMSNorm
from tessera.nn.pooling import AdaptiveAvgPool as AdaptiveAvgPool
from tessera.nn.pooling import AdaptiveMaxPool as AdaptiveMaxPool
from tessera.nn.pooling import AvgPool as AvgPool
from tessera.nn.pooling import GlobalAvgPool as GlobalAvgPool
from tessera.nn.pooling import LPPool as LPPool
from tessera.nn.pooling import MaxPool as MaxPool
from tessera.nn.pooling import PixelShuffle as PixelShuffle
from tessera.nn.pooling import Upsample as Upsample
from tessera.nn.recurrent import GRU as GRU
from tessera.nn.recurrent import LSTM as LSTM
from tessera.nn.recurrent import RNN as RNN
from tessera.nn.rope import Rope as Rope
from tessera.nn.state import load_state as load_state
from tessera.nn.state import state_dict as state_dict
from tessera.nn.stateful import BatchNorm as BatchNorm
from tessera.nn.stateful import with_state as with_state
from tessera.nn.summary import Summary as Summary
from tessera.nn.summary import summary as summary
from tessera.nn.walk import combine as combine
from tessera.nn.walk import get as get
from tessera.nn.walk import map_modules as map_modules
from tessera.nn.walk import modules as modules
from tessera.nn.walk import partition as partition

# Names of PyTorch whose layers have another name here: sizes come from x, and functions are ops.
_OTHERS = {
    **{f"{n}{d}d": f"nn.{n}" for n in ("BatchNorm", "InstanceNorm", "MaxPool", "AvgPool", "LPPool",
                                       "AdaptiveAvgPool", "AdaptiveMaxPool") for d in (1, 2, 3)},
    "MultiheadAttention": "nn.MultiHeadAttention", "ModuleList": "a list", "ModuleDict": "a dict",
    "Parameter": "a tensor as a field",
    "ParameterList": "a list", "CrossEntropyLoss": "op.cross_entropy", "MSELoss": "op.mse",
    "L1Loss": "op.l1_loss", "NLLLoss": "op.nll_loss",
    "BCELoss": "op.binary_cross_entropy(x, y, logits=False)", "BCEWithLogitsLoss": "op.binary_cross_entropy",
    "SmoothL1Loss": "op.smooth_l1",
    "HuberLoss": "op.huber", "KLDivLoss": "op.kl_div", "functional": "op",
    "Dropout2d": "nn.Dropout(p, whole_channels=True)",
    "CTCLoss": "op.ctc_loss", "CosineEmbeddingLoss": "op.cosine_embedding",
}  # fmt: skip


def __dir__() -> list[str]:
    return sorted(n for n, x in globals().items() if not n.startswith("_") and not _is_inner(x))


def _is_inner(x: Any) -> bool:
    """Whether a name stands for something that this module imports for itself."""
    module = x.__name__ if isinstance(x, ModuleType) else getattr(x, "__module__", "")
    return x is not init and (isinstance(x, ModuleType) or not str(module).startswith("tessera.nn"))


if not TYPE_CHECKING:  # for type checkers a name that is lacking is an error

    def __getattr__(name: str) -> Any:
        if name in _OTHERS:
            raise located(NoAttributeError(f"nn has no attribute '{name}'; write {_OTHERS[name]}"))
        raise lacking("nn", name, __dir__())


answer(__name__, "nn")

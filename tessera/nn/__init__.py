"""Layers: modules that are trees of their parameters."""

from tessera.nn import init as init
from tessera.nn.attention import MultiHeadAttention as MultiHeadAttention
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
from tessera.nn.rope import Rope as Rope

"""stdlib: kernels for common work, written in the kernel language; docs/stdlib.md says what each does."""

from tessera.core.modules import answer
from tessera.lang.op import conv as conv
from tessera.lang.op import fft as fft
from tessera.stdlib.adam import fused_adam as fused_adam
from tessera.stdlib.attention import flash_attention_2 as flash_attention_2
from tessera.stdlib.attention import flash_attention_varlen as flash_attention_varlen
from tessera.stdlib.loss import fused_cross_entropy as fused_cross_entropy
from tessera.stdlib.products import grouped_matmul as grouped_matmul
from tessera.stdlib.products import matmul as matmul
from tessera.stdlib.products import matmul_bias as matmul_bias
from tessera.stdlib.products import matmul_gelu as matmul_gelu
from tessera.stdlib.products import matmul_relu as matmul_relu
from tessera.stdlib.products import matmul_residual as matmul_residual
from tessera.stdlib.quantised import quantise as quantise
from tessera.stdlib.quantised import quantised_matmul as quantised_matmul
from tessera.stdlib.rotary import rotary_embedding as rotary_embedding
from tessera.stdlib.rotary import rotary_tables as rotary_tables
from tessera.stdlib.rows import efficient_layernorm as efficient_layernorm
from tessera.stdlib.rows import rmsnorm as rmsnorm
from tessera.stdlib.rows import stable_softmax as stable_softmax

__all__ = [
    "conv",
    "efficient_layernorm",
    "fft",
    "flash_attention_2",
    "flash_attention_varlen",
    "fused_adam",
    "fused_cross_entropy",
    "grouped_matmul",
    "matmul",
    "matmul_bias",
    "matmul_gelu",
    "matmul_relu",
    "matmul_residual",
    "quantise",
    "quantised_matmul",
    "rmsnorm",
    "rotary_embedding",
    "rotary_tables",
    "stable_softmax",
]

answer(__name__, "stdlib")

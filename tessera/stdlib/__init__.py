"""stdlib: kernels for common work, written in the kernel language; docs/stdlib.md says what each does."""

from tessera.stdlib.attention import flash_attention_2 as flash_attention_2
from tessera.stdlib.attention import flash_attention_varlen as flash_attention_varlen
from tessera.stdlib.rows import efficient_layernorm as efficient_layernorm
from tessera.stdlib.rows import rmsnorm as rmsnorm
from tessera.stdlib.rows import stable_softmax as stable_softmax

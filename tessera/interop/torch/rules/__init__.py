"""Rules of ATen ops, a file for each family."""

from tessera.interop.torch.rules import contraction as contraction
from tessera.interop.torch.rules import elementwise as elementwise
from tessera.interop.torch.rules import encoder as encoder
from tessera.interop.torch.rules import foreach as foreach
from tessera.interop.torch.rules import fourier as fourier
from tessera.interop.torch.rules import index as index
from tessera.interop.torch.rules import norm as norm
from tessera.interop.torch.rules import pool as pool
from tessera.interop.torch.rules import recurrent as recurrent
from tessera.interop.torch.rules import reduce as reduce
from tessera.interop.torch.rules import shape as shape

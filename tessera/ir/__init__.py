"""The four levels of the compiler: graph, schedule, tile and target."""

from tessera.ir.reader import parse as parse

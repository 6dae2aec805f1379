"""The error of what cannot be read."""

from tessera.core.errors import TesseraError


class JaxError(TesseraError, ValueError):
    """What the importer cannot read."""

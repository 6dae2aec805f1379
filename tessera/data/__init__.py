"""Data: batches by number, shuffled by a key, loaded ahead; augmentations as ops."""

from typing import TYPE_CHECKING

from tessera.core.counterparts import lacking
from tessera.core.modules import answer
from tessera.data.augment import (
    affine,
    brightness,
    contrast,
    crop,
    cutout,
    flip,
    normalize,
    saturation,
)
from tessera.data.loader import Loader
from tessera.data.order import Order

__all__ = [
    "Loader",
    "Order",
    "affine",
    "brightness",
    "contrast",
    "crop",
    "cutout",
    "flip",
    "normalize",
    "saturation",
]


if not TYPE_CHECKING:  # for type checkers a name that is lacking is an error

    def __getattr__(name: str) -> object:
        raise lacking("data", name, __all__)


answer(__name__, "data")

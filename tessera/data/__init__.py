"""Data: batches by number, shuffled by a key, loaded ahead; augmentations as ops."""

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

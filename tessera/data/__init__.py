"""Data: batches by number, shuffled by a key, loaded ahead; augmentations as ops."""

from tessera.data.augment import (
    affine as affine,
    brightness as brightness,
    contrast as contrast,
    crop as crop,
    cutout as cutout,
    flip as flip,
    normalize as normalize,
    saturation as saturation,
)
from tessera.data.loader import Loader as Loader
from tessera.data.order import Order as Order

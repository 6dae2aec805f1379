"""Every GGUF format is dequantised to the bits of the gguf package."""

import numpy as np
import pytest

from tessera.models.blocks import FORMATS, dequantise
from tests.support.cases.model_files import random_blocks

quants = pytest.importorskip("gguf.quants")

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("kind", FORMATS, ids=lambda k: FORMATS[k].name)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_dequantised_as_by_gguf(kind):
    f = FORMATS[kind]
    raw = random_blocks(f, 2000, kind)
    want = quants.dequantize(raw, quants.GGMLQuantizationType(kind)).reshape(-1)
    got = dequantise(f, raw)
    same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
    assert same.all()
    assert np.isfinite(want).any()

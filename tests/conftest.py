"""Every program of the tests is verified after every pass; hypothesis has the profiles ci and deep.

`ci` draws the same examples every time; `--hypothesis-profile=deep` searches.
"""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tessera.core.flags import override

settings.register_profile("ci", derandomize=True, deadline=None, database=None, max_examples=100)
settings.register_profile(
    "deep",
    deadline=None,
    max_examples=5000,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("ci")


@pytest.fixture(scope="session", autouse=True)
def verified() -> Iterator[None]:
    """Verify the IR of every level after every pass."""
    with override(verify=True):
        yield

"""Hypothesis profiles: `ci` draws the same examples every time; `--hypothesis-profile=deep` searches."""

from hypothesis import HealthCheck, settings

settings.register_profile("ci", derandomize=True, deadline=None, database=None, max_examples=100)
settings.register_profile(
    "deep",
    deadline=None,
    max_examples=5000,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("ci")

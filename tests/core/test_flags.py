"""Flags: every variable of the environment is typed, checked, and has a default."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import tessera as ts
from tessera.core.errors import FlagError
from tessera.core.flags import Flags, flags, override, read
from tessera.runtime.threads import thread_count


def test_an_empty_environment_gives_the_defaults():
    f = read({})
    assert (f.threads, f.target, f.numerics, f.log, f.verify, f.cpu_devices) == (
        0,
        "cpu",
        "deterministic",
        "off",
        False,
        1,
    )
    assert f.cache_dir.name == "tessera"


@pytest.mark.parametrize(
    ("name", "text", "want"),
    [
        ("cache_dir", "/tmp/x", Path("/tmp/x")), ("cache_limit", "0", 0), ("threads", "3", 3),
        ("threads", "", 0), ("memory", "12", 12),
        ("numerics", "strict", "strict"), ("target", "numpy", "numpy"), ("log", "debug", "debug"),
        ("verify", "1", True),
        ("verify", "ON", True), ("verify", "false", False), ("verify", "", False), ("cpu_devices", "4", 4),
        ("strict", "", False), ("strict", "1", True), ("matrix_units", "", True),
        ("matrix_units", "off", False),
    ],
)  # fmt: skip
def test_a_variable_sets_its_field(name, text, want):
    assert getattr(read({f"TESSERA_{name.upper()}": text}), name) == want


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("THREADS", "two", "TESSERA_THREADS is 'two', expected a whole number of at least 0"),
        ("THREADS", "-1", "TESSERA_THREADS is '-1', expected a whole number of at least 0"),
        ("MESH_DEVICE", "gpu",
         "TESSERA_MESH_DEVICE is 'gpu', expected cpu, cuda, hip or one GPU of these, such as cuda:0"),
        ("CPU_DEVICES", "0", "TESSERA_CPU_DEVICES is '0', expected a whole number of at least 1"),
        ("NUMERICS", "loose", "TESSERA_NUMERICS is 'loose', expected one of deterministic, fast, strict"),
        ("TARGET", "abacus", "TESSERA_TARGET is 'abacus', expected one of cpu, numpy"),
        ("LOG", "loud", "TESSERA_LOG is 'loud', expected one of off, info, debug"),
        ("VERIFY", "maybe", "TESSERA_VERIFY is 'maybe', expected 0 or 1"),
    ],
)  # fmt: skip
def test_a_wrong_value_says_what_it_may_be(name, text, message):
    with pytest.raises(FlagError) as e:
        read({f"TESSERA_{name}": text})
    assert e.value.message == message


def test_every_field_is_read_from_a_variable():
    """Reading under an environment that sets all of them changes every field."""
    values = {
        "cache_dir": "/elsewhere", "cache_limit": "5", "threads": "7", "memory": "9", "target": "numpy",
        "numerics": "fast", "log": "info", "verify": "1",
        "strict": "1", "cpu_devices": "2", "matrix_units": "0", "checked": "1", "watchdog": "7",
        "update_golden": "1",
        "gather_limit": "3", "mesh_device": "cuda:1",
    }  # fmt: skip
    assert set(values) == {f.name for f in fields(Flags)}
    changed = read({f"TESSERA_{k.upper()}": v for k, v in values.items()})
    for f in fields(Flags):
        assert getattr(changed, f.name) != getattr(read({}), f.name)


def test_override_lasts_as_long_as_its_block():
    before = flags()
    with override(threads=9, verify=True) as inside:
        assert flags() is inside
        assert (inside.threads, inside.verify) == (9, True)
        with override(threads=1):
            assert (flags().threads, flags().verify) == (1, True)
        assert flags().threads == 9
    assert flags() is before


def test_override_ends_with_an_error_too():
    before = flags()
    with pytest.raises(ZeroDivisionError), override(threads=9):
        raise ZeroDivisionError
    assert flags() is before


def test_an_unknown_flag_says_so():
    with (
        pytest.raises(FlagError, match="no flag is named thread, verifi"),
        override(thread=1, verifi=0),
    ):
        raise AssertionError("not reached")


def test_a_wrong_choice_is_refused_by_override_too():
    with pytest.raises(FlagError) as e, override(target="abacus"):
        raise AssertionError("not reached")
    assert e.value.message == "target is 'abacus', expected one of cpu, numpy"


def test_a_wrong_variable_does_not_break_the_import():
    env = {**os.environ, "TESSERA_THREADS": "many"}
    code = "import tessera, tessera.core.flags as f\ntry: f.flags()\nexcept f.FlagError as e: print(e.message)"  # noqa: E501
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("TESSERA_THREADS is 'many'")


def test_threads_of_a_block_and_of_flags_do_not_stand_in_for_each_other():
    with override(threads=3):
        assert thread_count() == 3
        with override(threads=2):
            assert thread_count() == 2
            with ts.threads(5), override(numerics="fast", threads=1):
                assert thread_count() == 5
            assert thread_count() == 2
        assert thread_count() == 3


def test_flags_that_are_not_set_have_these_values_and_take_their_least():
    plain = read({})
    assert (plain.threads, plain.memory, plain.cpu_devices, plain.watchdog) == (0, 0, 1, 300)
    assert (plain.cache_limit, plain.gather_limit) == (2 << 30, 256 << 20)
    assert (plain.target, plain.numerics, plain.log) == ("cpu", "deterministic", "off")
    assert (plain.verify, plain.strict, plain.checked, plain.update_golden) == (False,) * 4
    assert (plain.matrix_units, plain.mesh_device) == (True, "")
    least = {
        "THREADS": 0,
        "MEMORY": 0,
        "CACHE_LIMIT": 0,
        "GATHER_LIMIT": 0,
        "CPU_DEVICES": 1,
        "WATCHDOG": 1,
    }
    for name, low in least.items():
        found = read({f"TESSERA_{name}": str(low)})
        assert getattr(found, name.lower()) == low
        with pytest.raises(FlagError, match=f"at least {low}"):
            read({f"TESSERA_{name}": str(low - 1)})

"""ts.train: runs that are killed go on to the bit; metrics files hold each step once."""

import csv
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tessera as ts
from tessera import data, op, train
from tessera.core.errors import FileError, OperandError
from tessera.train import tensorboard

RUNS_ON = "numpy"
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "train_resume.py"


def step(state, batch, key):
    """Least squares with noise, and a count."""
    w = state["w"]
    x = batch["x"] + 0.1 * op.random.normal(key, batch["x"].shape)
    error = x @ w - batch["y"]
    return {"w": w - 0.1 * (x.T @ error) / 8, "n": state["n"] + 1}, {
        "loss": op.mean(op.square(error))
    }


def start():
    return {"w": op.zeros((3,)), "n": 0}


def loader(**options):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    return data.Loader(
        {"x": x, "y": x @ np.float32([1, 2, 3])}, 8, **({"key": ts.key(1)} | options)
    )


def bits(result) -> bytes:
    return result.state["w"].numpy().tobytes()


def cut_short(n: int):
    """The step, which fails at its n-th call."""
    calls = iter(range(10**9))

    def run(*args):
        if next(calls) == n:
            raise KeyboardInterrupt
        return step(*args)

    return run


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_was_cut_goes_on_to_the_bit(tmp_path, workers):
    whole = train.fit(step, start(), loader(), 30, key=ts.key(4))
    logs = [
        train.CSV(tmp_path / "a.csv"),
        train.JSONLines(tmp_path / "a.jsonl"),
        train.TensorBoard(tmp_path),
    ]
    for n in (3, 12, 9, None):
        kept = train.Checkpoints(tmp_path / "c", every=5, keep=2)
        try:
            end = train.fit(step if n is None else cut_short(n), start(), loader(workers=workers), 30,
                key=ts.key(4),
                            checkpoints=kept, loggers=logs)  # fmt: skip
        except KeyboardInterrupt:
            continue
    assert end.step == end.state["n"] == 30
    assert bits(end) == bits(whole)
    assert kept.steps() == [25, 30]
    rows = list(csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text())))
    assert [int(r["step"]) for r in rows] == list(range(1, 31))
    lines = [json.loads(x) for x in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [(x["step"], x["loss"]) for x in lines] == [
        (int(r["step"]), float(r["loss"])) for r in rows
    ]
    events = list(tensorboard.records((tmp_path / "events.out.tfevents.0.tessera").read_bytes()))
    assert [tensorboard.step_of(e) for e in events] == list(range(31))


def test_a_run_that_is_done_stays_done(tmp_path):
    kept = train.Checkpoints(tmp_path, every=10)
    first = train.fit(step, start(), loader(), 12, checkpoints=kept)
    again = train.fit(cut_short(0), start(), loader(), 12, checkpoints=kept)
    assert again.step == 12
    assert bits(again) == bits(first)
    further = train.fit(step, start(), loader(), 15, checkpoints=kept)
    assert bits(further) == bits(train.fit(step, start(), loader(), 15))


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    kept = train.Checkpoints(tmp_path, every=5)
    train.fit(step, start(), loader(), 10, checkpoints=kept)
    path = kept.path(10)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(RuntimeWarning, match="it is truncated; an older checkpoint is used"):
        end = train.fit(step, start(), loader(), 12, checkpoints=kept)
    assert bits(end) == bits(train.fit(step, start(), loader(), 12))


def test_checkpoints_by_time(tmp_path):
    kept = train.Checkpoints(tmp_path, seconds=0.02)

    def slow(*args):
        time.sleep(0.011)
        return step(*args)

    train.fit(slow, start(), loader(), 8, checkpoints=kept)
    assert kept.steps()[-1] == 8
    assert len(kept.steps()) == 3


def test_other_data_or_another_key_is_refused(tmp_path):
    kept = train.Checkpoints(tmp_path, every=5)
    train.fit(step, start(), loader(), 5, checkpoints=kept)
    with pytest.raises(
        FileError,
        match=r"fit: the checkpoint is of a run on \{'count': 40, 'batch': 8, 'key': \[1, 0\]\}",
    ):
        train.fit(step, start(), loader(key=ts.key(2)), 9, checkpoints=kept)
    with pytest.raises(FileError, match="fit: the checkpoint is of a run with another key"):
        train.fit(step, start(), loader(), 9, key=ts.key(3), checkpoints=kept)
    with pytest.raises(FileError, match=r"state\.w is f32\[3\] in .*, but like has f32\[4\]"):
        train.fit(step, {"w": op.zeros((4,)), "n": 0}, loader(), 9, checkpoints=kept)


def test_early_stop_counts_over_a_restart(tmp_path):
    values = [5.0, 4.0, 4.5, 4.2, 4.1, 3.0]

    def told(state, batch, key):
        return state + 1, {"loss": values[state]}

    def run(steps, **options):
        return train.fit(
            told, 0, lambda s: None, steps, stop=train.EarlyStop("loss", patience=3), **options
        )

    assert run(6).step == 5
    assert run(6).stopped
    kept = train.Checkpoints(tmp_path, every=1)
    assert run(4, checkpoints=kept).step == 4
    end = run(6, checkpoints=kept)
    assert (end.step, end.stopped) == (5, True)
    assert run(6, checkpoints=kept).stopped, "a run that stopped stays so"


def test_evaluation_and_sparse_logs(tmp_path):
    log = train.JSONLines(tmp_path / "a.jsonl")
    train.fit(
        step,
        start(),
        loader(),
        6,
        loggers=[log],
        log_every=2,
        evaluate=lambda s: {"n": s["n"]},
        evaluate_every=3,
    )
    rows = [json.loads(x) for x in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [(r["step"], sorted(set(r) - {"step"})) for r in rows] == [
        (2, ["loss"]), (3, ["n"]), (4, ["loss"]), (6, ["loss", "n"])
    ]  # fmt: skip


def test_wrong_runs(tmp_path):
    with pytest.raises(
        OperandError, match=r"fit: the step returned dict, expected \(state, metrics\)"
    ):
        train.fit(lambda s, b, k: {}, 0, lambda s: None, 1)
    with pytest.raises(
        OperandError, match=r"fit: the metrics of a step are float 1\.0, expected a dict of numbers"
    ):
        train.fit(lambda s, b, k: (s, 1.0), 0, lambda s: None, 1)
    with pytest.raises(
        OperandError, match="fit: give both of evaluate and evaluate_every, or none"
    ):
        train.fit(step, 0, lambda s: None, 1, evaluate_every=3)
    with pytest.raises(OperandError, match="Checkpoints: keep is 0, expected a positive number"):
        train.Checkpoints(tmp_path, keep=0)
    with pytest.raises(OperandError, match="EarlyStop: mode is 'least', expected 'min' or 'max'"):
        train.EarlyStop("loss", 3, mode="least")
    log = train.CSV(tmp_path / "a.csv")
    with pytest.raises(
        FileError,
        match="CSV: metric 'b' at step 2 is none of the columns a; log the same names each",
    ):
        train.fit(lambda s, b, k: (s + 1, {"ab"[s]: 1.0}), 0, lambda s: None, 2, loggers=[log])


def test_the_bar_is_shown_where_it_is_wanted(capsys):
    train.fit(step, start(), loader(), 3, progress=True)
    assert "3/3" in capsys.readouterr().err
    train.fit(step, start(), loader(), 3)
    assert capsys.readouterr().err == ""


# TensorBoard's format ---------------------------------------------------------------------------


def test_the_checksum_is_castagnolis():
    assert tensorboard.crc32c(b"123456789") == 0xE3069283
    assert tensorboard.crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4


def test_events_are_protocol_buffers():
    protobuf = pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    assert protobuf is not None
    file = descriptor_pb2.FileDescriptorProto(name="event_of_test.proto", syntax="proto3")
    kinds = {"double": 1, "float": 2, "int64": 3, "string": 9, "message": 11}
    for name, fields in {
        "Value": [("tag", 1, "string", ""), ("simple_value", 2, "float", "")],
        "Summary": [("value", 1, "message", "Value")],
        "Event": [("wall_time", 1, "double", ""), ("step", 2, "int64", ""), ("file_version", 3, "string", ""),
                  ("summary", 5, "message", "Summary")],
    }.items():  # fmt: skip
        m = file.message_type.add(name=name)
        for field, number, kind, cls in fields:
            repeated = 3 if field == "value" else 1
            f = m.field.add(name=field, number=number, type=kinds[kind], label=repeated)
            if cls:
                f.type_name = f".{cls}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    event = message_factory.GetMessageClass(pool.FindMessageTypeByName("Event"))
    e = event.FromString(tensorboard.event(12.5, 300, {"loss": 0.25, "a/b": -1.0}))
    assert (e.wall_time, e.step) == (12.5, 300)
    assert [(v.tag, v.simple_value) for v in e.summary.value] == [("a/b", -1.0), ("loss", 0.25)]
    assert event.FromString(tensorboard.event(1.0, 0)).file_version == "brain.Event:2"


def test_records_end_where_a_file_is_damaged():
    data = b"".join(map(tensorboard.record, (b"one", b"", b"three" * 50)))
    assert list(tensorboard.records(data)) == [b"one", b"", b"three" * 50]
    assert list(tensorboard.records(data[:-1])) == [b"one", b""]
    damaged = data[:14] + bytes([data[14] ^ 1]) + data[15:]
    assert list(tensorboard.records(damaged)) == []


# The example, killed ----------------------------------------------------------------------------


def example(folder: Path, steps: int) -> subprocess.Popen:
    command = [sys.executable, str(EXAMPLE), "--folder", str(folder), "--steps", str(steps)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process: subprocess.Popen) -> str:
    out, err = process.communicate()
    assert process.returncode == 0, err[-2000:]
    return out.split()[-1]


def killed(folder: Path, moments: tuple[int, ...], steps: int) -> None:
    """Kill the example soon after each of these steps, and compare how it ends with a run that was not
    killed.
    """
    want = ended(example(folder / "whole", steps))
    rng, kept = random.Random(3), train.Checkpoints(folder / "killed")
    for at in moments:
        process = example(folder / "killed", steps)
        while process.poll() is None and (kept.steps() or [0])[-1] < at:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.03))
        assert process.poll() is None, "it was killed before its end"
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert ended(example(folder / "killed", steps)) == want
    rows = [(folder / name / "loss.csv").read_text() for name in ("whole", "killed")]
    assert rows[0] == rows[1]


def test_a_run_that_was_killed_ends_with_the_digest_of_one_that_was_not(tmp_path):
    killed(tmp_path, (20,), 100)


@pytest.mark.deep
def test_a_run_killed_three_times_ends_with_the_digest_of_one_that_was_not(tmp_path):
    killed(tmp_path, (20, 70, 140), 200)

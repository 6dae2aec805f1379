"""tessera serve: a language model behind an OpenAI-compatible interface."""

from __future__ import annotations

import argparse
import ipaddress
from pathlib import Path

from tessera.cli.cache import size_of
from tessera.cli.show import Failure, UsageError
from tessera.models.encoder import TextEncoder
from tessera.models.loading import load
from tessera.models.writer import Writer
from tessera.serve.engine import Refused, ServeLimits
from tessera.serve.run import listen, serve, server
from tessera.serve.service import Options, Service

LOCAL = ("localhost", "127.0.0.1", "::1")
SPARE = 64  # connections beyond those whose replies run or wait: pages, metrics, refusals


def serve_model(args: argparse.Namespace) -> int:
    """Load a model and serve it until a signal."""
    limits, options = _limits(args), _options(args)
    try:
        socket = listen(args.host, args.port)
    except OverflowError:
        raise UsageError(f"--port is {args.port}, expected 0 to 65535") from None
    except OSError as e:
        raise Failure(
            f"{args.host}:{args.port} cannot be listened on ({e.strerror or e})"
        ) from None
    with socket:
        model = load(args.model)
        if not isinstance(model, Writer | TextEncoder):
            raise Failure(f"{args.model} is a model that neither writes nor embeds text")
        _ = model.tokenizer  # text needs one
        name = args.name or model.name
        try:
            made = server(
                Service(model, name, limits, options),
                args.drain,
                limits.waiting + limits.batch + SPARE,
            )
        except Refused as e:
            raise Failure(f"{e.message}; raise --memory") from None
        where = f"[{args.host}]" if ":" in args.host else args.host
        print(f"serving {name} at http://{where}:{socket.getsockname()[1]}/ and /v1", flush=True)
        serve(made, socket)
    return 0


def _limits(args: argparse.Namespace) -> ServeLimits:
    for name, v, high in (
        ("--max-batch", args.max_batch, 1 << 12),
        ("--max-waiting", args.max_waiting, 1 << 20),
    ):
        if not 1 <= v <= high:
            raise UsageError(f"{name} is {v}, expected 1 to {high}")
    if min(args.timeout, args.drain) <= 0:
        raise UsageError("--timeout and --drain are expected to be more than 0 seconds")
    return ServeLimits(size_of(args.memory, "--memory"), args.max_batch, args.max_waiting)


def _options(args: argparse.Namespace) -> Options:
    keys = tuple(args.api_key) + (_keys(args.api_key_file) if args.api_key_file else ())
    local = _is_local(args.host)
    if not local and not keys and not args.without_key:
        raise UsageError(
            f"{args.host} is open to other machines; give --api-key-file, or --without-key if "
            "you mean it"
        )
    body = size_of(args.max_body, "--max-body")
    return Options(keys, LOCAL if local else (), body, args.timeout, warm=True)


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _keys(path: str) -> tuple[str, ...]:
    try:
        found = tuple(line.strip() for line in Path(path).read_text().splitlines() if line.strip())
    except (OSError, ValueError) as e:
        raise Failure(f"--api-key-file: {path} cannot be read ({e})") from None
    if not found:
        raise Failure(f"--api-key-file: {path} has no key")
    return found

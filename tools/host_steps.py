"""Tells which ops programs for CPUs leave to the host, and records them (tests/support/host_steps.py).

python tools/host_steps.py             what the record does not say
python tools/host_steps.py --update    write the record anew
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support import host_steps


def main() -> int:
    """Compare the catalogue with the record, or write it."""
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    p.add_argument("--update", action="store_true", help="write the record")
    given = p.parse_args()
    kept = host_steps.recorded() if host_steps.FILE.exists() else {}
    found = host_steps.survey()
    grown = 0
    for dtype, ops in found.items():
        before = set(kept.get(dtype, ()))
        more, fewer = sorted(set(ops) - before), sorted(before - set(ops))
        grown += len(more)
        print(
            f"{dtype}: {len(ops)} ops; new {', '.join(more) or 'none'}; gone {', '.join(fewer) or 'none'}"
        )
    if given.update:
        host_steps.write(found)
    return 0 if given.update else int(grown > 0)


if __name__ == "__main__":
    sys.exit(main())

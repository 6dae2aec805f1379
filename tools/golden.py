"""Tells what a change does to the generated code of a fixed corpus (tests/golden), and records it.

    python tools/golden.py             which programs have other code, plans or counts than the record says
    python tools/golden.py --update    write the record anew, and say what changed

The record is of processors and GPUs that are fixed, so that it is the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.golden import record


def main() -> int:
    """Compare the corpus with the record, or write it."""
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    p.add_argument("--update", action="store_true", help="write the record")
    p.add_argument(
        "--only",
        default="",
        help="programs whose kind and name, as in 'checks: copy', have this in them",
    )
    given = p.parse_args()
    kept = {where: record.recorded(where) for where, _ in record.cases()}
    found: dict[str, dict[str, record.Record]] = {where: {} for where in kept}
    changed = 0
    for where, name in record.cases():
        if given.only not in f"{where}: {name}":
            continue
        found[where][name] = record.made(where, name)
        parts = record.differences(kept[where].get(name), found[where][name])
        if parts:
            changed += 1
            print(f"{where}: {name}: {', '.join(parts)}")
    for where, rows in found.items() if given.update else ():
        whole = {**kept[where], **rows} if given.only else rows
        lines = ",\n".join(f"{json.dumps(n)}: {json.dumps(r)}" for n, r in whole.items())
        (record.FOLDER / f"{where}.json").write_text(f"{{\n{lines}\n}}\n")
    print(f"{sum(map(len, found.values()))} programs, {changed} changed")
    return 0 if given.update else int(changed > 0)


if __name__ == "__main__":
    sys.exit(main())

"""Tells what a change does to the counts of 60 programs (tests/golden/counts.py), and records them.

python tools/counts.py             which counts are others than the record says
python tools/counts.py --update    write the record anew
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.golden import counts
from tests.golden.programs import PROGRAMS


def main() -> int:
    """Compare the programs with the record, or write it."""
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    p.add_argument("--update", action="store_true", help="write the record")
    given = p.parse_args()
    kept = counts.recorded() if counts.FILE.exists() else {}
    found = {n: counts.counts_of(PROGRAMS[n]) for n in counts.NAMES}
    worse = 0
    for name, now in found.items():
        before = kept.get(name, {})
        parts = [
            f"{k} {before.get(k, 0):.0f} -> {x:.0f}" for k, x in now.items() if before.get(k) != x
        ]
        worse += bool(before and counts.grown(before, now))
        if parts:
            print(f"{name}: {', '.join(parts)}")
    if given.update:
        counts.write(found)
    print(f"{len(found)} programs, {worse} with a count that grew")
    return 0 if given.update else int(worse > 0)


if __name__ == "__main__":
    sys.exit(main())

"""``python -m tests.withstand``: every part at its full size, and the counts; ``--help`` says how."""

import argparse
import sys
import time

from . import absent, parts


def main(argv: list[str] | None = None) -> int:
    """Run the parts and print the counts; 1 if anything did not hold."""
    known = parts()
    parser = argparse.ArgumentParser(
        prog="python -m tests.withstand",
        description="Kill, damage, race and misuse the lab, and count what does not hold.",
        epilog="parts: " + "; ".join(f"{name} ({part.TITLE})" for name, part in known.items()),
    )
    parser.add_argument("--part", action="append", choices=list(known), help="only this part; may be repeated")
    parser.add_argument("--size", type=int, metavar="N", help="how often (default: each part's full size)")
    parser.add_argument("--seed", type=int, default=2026, metavar="S", help="what is drawn (default: %(default)s)")
    given = parser.parse_args(argv)
    faults = 0
    for name in given.part or known:
        if why := absent(known[name]):
            print(f"{name}: skipped: {why}", flush=True)
            continue
        start = time.perf_counter()
        counts = known[name].run(given.size or known[name].FULL, given.seed)
        faults += len(counts.faults)
        tried = ", ".join(f"{n:,} {what}" for what, n in counts.tried.items())
        print(f"{name}: {tried}; {len(counts.faults)} faults, {time.perf_counter() - start:.0f} s", flush=True)
        for fault in counts.faults[:20]:
            print(f"  {fault}", flush=True)
    print(f"{faults} faults with seed {given.seed}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

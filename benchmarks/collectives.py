"""All-reduce over 4,096 simulated ranks of 2^20 elements, in seconds."""

from __future__ import annotations

import numpy as np

from .timing import seconds, sized, table

RANKS, ELEMENTS = sized((4096, 2**20), (16, 2**10))


def main() -> None:
    """Each line: one algorithm and wire, 4.3e9 additions; values are made as they are needed."""
    from fplab.parallel.collectives import Wire, reduce_fast

    raw = np.random.Philox(key=0).random_raw(ELEMENTS + RANKS).astype(np.float32) * np.float32(2.0**-64)
    noise, of_rank = raw[:ELEMENTS], raw[ELEMENTS:]

    def values(rank: np.ndarray) -> np.ndarray:
        return np.asarray(noise * of_rank[rank])

    rows = []
    for algorithm in ("ring", "tree"):
        for wire in (Wire(), Wire("bf16"), Wire("bf16", add="wire"), Wire("e4m3")):
            took = seconds(lambda a=algorithm, w=wire: reduce_fast(values, ELEMENTS, RANKS, a, w))
            way = f"{wire.format}, added in {wire.format if wire.add == 'wire' else 'fp32'}"
            rows.append((algorithm, way, f"{took:.1f} s", f"{took / RANKS * 1e3:.2f} ms"))
    print(table(f"{RANKS:,} ranks, {ELEMENTS:,} elements", ("algorithm", "wire", "all ranks", "a rank"), rows))

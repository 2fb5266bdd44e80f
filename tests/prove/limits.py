"""Part ``bounds``: no error of any unit is above its worst-case bound, on very many rows of every kind."""

import numpy as np

from fplab import bounds
from fplab.tensorcore import classes, units

from .shares import Difference, Part, Share

MODELS = [group[0] for group in classes() if group[0].output != "int32"]
ROWS, SHARES = 20_000, 6


def below(number: int, share: int, rows: int) -> int:
    """Rows on which variants of a unit part, and normal numbers, of several lengths: none errs by more."""
    model, rng = MODELS[number], np.random.default_rng([number, share])
    k = (1 + share % 4) * max(model.k, model.length) + share
    drawn = units.of(model).draw(model, k, rows // 2, rng)
    drawn["c"] = np.clip(drawn["c"], -model.result.max, model.result.max)
    a, b = rng.standard_normal((2, rows - rows // 2, k)) * np.exp2(rng.integers(-6, 6, (2, rows - rows // 2, k)))
    usual = {"a": a, "b": b, "c": rng.standard_normal(len(a)) * np.exp2(rng.integers(-10, 10, len(a)))}
    for given in (drawn, usual):
        found = bounds.dot(gpu=model, **given)
        if (over := np.flatnonzero(~(found.measured <= found.worst))).size:
            error, bound = found.measured[over[0]], found.worst[over[0]]
            raise Difference(f"{model.name}, K = {k}, row {over[0]}: {error!r} above {bound!r}; {over.size:,} rows are")
    return rows


def shares(quick: bool) -> list[Share]:
    """120,000 rows of each unit; quick: few of every eighth."""
    rows, parts = (100, 1) if quick else (ROWS, SHARES)
    return [Share(f"{MODELS[n].name}: worst case", "exact sums", below, (n, share, rows))
            for n in range(0, len(MODELS), 8 if quick else 1) for share in range(parts)]  # fmt: skip


PART = Part("bounds", "worst-case bounds of every unit", shares)

"""An estimate as a table and as JSON, and which GPUs hold it."""

from __future__ import annotations

import dataclasses
import json
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ..errors import LabError
from .stages import KINDS
from .units import GB, gb, gib, shown

if TYPE_CHECKING:
    from .calculator import Estimate, Rank

GPUS = (24, 40, 80, 141)  # GB as the label says, taken as decimal: the driver's share comes out of the difference
NAMES = {"master": "master weights", "states": "optimizer states", "kv cache": "keys and values"}
BAR = 40  # characters


def table(e: Estimate) -> str:
    """The estimate as text: bytes by kind on the fullest rank, every stage, communication, what fits."""
    rank = e.fullest
    shared = [_title(e), "", *_kinds(rank)]
    if len(e.stages) > 1:
        shared += ["", *_stages(e)]
    if rank.traffic:
        shared += ["", *_traffic(rank)]
    return "\n".join([*shared, "", *_fits(e)])


def _title(e: Estimate) -> str:
    o = e.options
    parts = [e.model.name] if e.configuration is None else [e.model.name, f"{e.parameters:,} parameters"]
    if o.inference is not None:
        parts.append(f"inference in {o.inference}")
    else:
        parts += [str(getattr(getattr(o, name), "name", getattr(o, name))) for name in ("precision", "optimizer")]
        parts += [f"ZeRO-{o.zero}"] * bool(o.zero)
        parts += [f"offloading {o.offload}"] * (o.offload != "none")
        parts += [f"recomputation {o.recompute}"] * (o.recompute != "none")
    if e.configuration is not None:
        tokens = o.sequence or e.configuration.sequence
        parts.append(f"{o.micro_batch} x {tokens:,} tokens" + (f" x {o.micro_batches}" if o.micro_batches > 1 else ""))
    degrees = [f"{name} {n}" for name, n in (("data", o.data), ("tensor", o.tensor), ("pipeline", o.pipeline)) if n > 1]
    parts.append(f"{o.gpus} GPU{'s' * (o.gpus > 1)}" + (f" ({', '.join(degrees)})" if degrees else ""))
    return ", ".join(parts)


def _kinds(rank: Rank) -> list[str]:
    """A line for each kind of bytes of a rank, and its temporaries below.

    The bars on the right stand one behind the other, a stacked bar of the rank's bytes cut into its lines.
    """
    rows = [(NAMES.get(kind, kind), rank.device.get(kind, 0), rank.host.get(kind, 0)) for kind in KINDS]
    rows = [row for row in rows if row[1] or row[2]]
    wide = max(len(name) for name, _, _ in [*rows, ("fullest rank", 0, 0)]) + 2
    host = any(there for _, _, there in rows)
    head = f"{'on the fullest rank':<{wide}}{'bytes':>19}{'GB':>11}{'GiB':>11}" + f"{'CPU memory, GB':>17}" * host
    head += "  who takes what"

    def line(name: str, here: int, there: int) -> str:
        text = f"{name:<{wide}}{here:>19,}{gb(here):>11.2f}{gib(here):>11.2f}"
        return text + (f"{gb(there):>17.2f}" if host else "")

    before = accumulate((here for _, here, _ in rows), initial=0)
    bars = [_bar(start, here, rank.total) for start, (_, here, _) in zip(before, rows, strict=False)]
    out = [head, *(f"{line(*row)}  {bar}".rstrip() for row, bar in zip(rows, bars, strict=True))]
    out.append(line("total", rank.total, sum(rank.host.values())))
    details = [f"{name} {shown(size)}" for name, size in rank.temporary.items()]
    return [*out, *([f"temporary: {'; '.join(details)}"] if details else [])]


def _bar(before: int, size: int, whole: int) -> str:
    """A part of a bar of 40 characters, behind what comes before it; a thin line where it is too short for one.

    >>> _bar(30, 10, 40).count("█"), _bar(30, 10, 40).count(" ")
    (10, 30)
    """
    if not size:
        return ""
    start, end = ((BAR * n + whole // 2) // whole for n in (before, before + size))
    return " " * min(start, BAR - 1) + ("█" * (end - start) or "▏")


def _stages(e: Estimate) -> list[str]:
    out = [f"{'stage':<8}{'layers':>7}{'model states, GB':>18}{'activations, GB':>17}{'total, GB':>11}"]
    for r in e.stages:
        saved = r.device.get("activations", r.device.get("kv cache", 0))
        out.append(f"{r.stage:<8}{r.layers:>7}{gb(r.states):>18.2f}{gb(saved):>17.2f}{gb(r.total):>11.2f}")
    return out


def _traffic(rank: Rank) -> list[str]:
    rows = [
        (one.what, f"{one.collective} of {shown(one.message)}" + (f", {one.times} times" if one.times > 1 else ""), one)
        for one in rank.traffic
    ]
    wide, middle = (max(len(row[i]) for row in rows) + 2 for i in (0, 1))  # type: ignore[arg-type]
    return ["sent by one rank in a step:", *(f"  {a:<{wide}}{b:<{middle}}{shown(one.sent):>9}" for a, b, one in rows)]


# --- what fits --------------------------------------------------------------------------------------------------


def fitting(e: Estimate) -> dict[int, int | None]:
    """For each size of GPU in GB, the fewest of them that hold the model, or None.

    In training ZeRO's data parallelism grows (a single GPU is tried without it); in inference, tensor parallelism,
    through the degrees that divide the heads.
    """
    return {size: fewest(e, size * GB) for size in GPUS}


def fewest(e: Estimate, capacity: int) -> int | None:
    """The fewest GPUs of ``capacity`` bytes that hold the model, otherwise run as it is; None where no number does."""
    from .calculator import estimate, smallest

    o = e.options
    changes = {f.name: getattr(o, f.name) for f in dataclasses.fields(o)}
    if e.activations is not None:  # a traced module: its activations do not depend on the number of ranks
        return o.gpus if e.total <= capacity else None
    model: Any = e.configuration or e.model
    if o.inference is None:
        found = smallest(model, capacity, **changes)
        return None if found is None else found.options.gpus
    for tensor in range(1, (e.configuration.keys if e.configuration else 1) + 1):
        try:
            one = estimate(model, **changes | {"tensor": tensor, "gpus": tensor * o.pipeline})
        except LabError:
            continue
        if one.total <= capacity:
            return tensor * o.pipeline
    return None


def _fits(e: Estimate) -> list[str]:
    o = e.options
    rows = []
    for size, count in fitting(e).items():
        here = "fits" if e.total <= size * GB else f"needs {gb(e.total) / size:.1f} times that"
        if count is None:
            least = "no number is enough"
        else:
            least = f"at least {count} GPU{'s' * (count > 1)}" + (f" = {count * size:,} GB" if count > 1 else "")
        rows.append(f"{f'{size} GB':<8}{here:<26}{least}")
    if o.inference is not None:
        how = "tensor parallelism, by degrees that divide the heads"
    elif o.zero:
        how = f"more data-parallel ranks under ZeRO-{o.zero}"
    else:
        how = "without ZeRO more GPUs hold the same; --zero 1 to 3 divides"
    return [f"{'GPU':<8}{f'{o.gpus} of them' if o.gpus > 1 else 'one of them':<26}fewest ({how})", *rows]


# --- JSON -------------------------------------------------------------------------------------------------------


def as_dict(e: Estimate) -> dict[str, Any]:
    """The estimate as plain values; bytes are integers."""
    options = {f.name: getattr(e.options, f.name) for f in dataclasses.fields(e.options)}
    options |= {name: getattr(options[name], "name", options[name]) for name in ("precision", "optimizer")}
    return {
        "model": e.model.name,
        "parameters": e.parameters,
        "options": options,
        "data": e.options.data,
        "stages": [
            {
                "stage": r.stage,
                "layers": r.layers,
                "ranks": r.ranks,
                "parameters": r.elements,
                "device": dict(r.device),
                "host": dict(r.host),
                "temporary": dict(r.temporary),
                "total": r.total,
                "sent": [{**dataclasses.asdict(t), "message": t.message, "sent": t.sent} for t in r.traffic],
            }
            for r in e.stages
        ],
        "fullest": e.fullest.stage,
        "total": e.total,
        "fewest": {f"{size} GB": count for size, count in fitting(e).items()},
    }


def as_json(e: Estimate) -> str:
    """The estimate as JSON text."""
    return json.dumps(as_dict(e), indent=2, allow_nan=False)


# --- the figure's data ------------------------------------------------------------------------------------------


def bars(e: Estimate) -> tuple[str, dict[str, dict[str, int]], tuple[int, ...]]:
    """A title, bytes by kind for each bar, and the GPU sizes in GB to compare with.

    The bars are the stages of a pipeline; otherwise the estimate among its neighbours: ZeRO's stages where there are
    several ranks, formats in inference, recomputations on a single GPU.
    """
    from .calculator import estimate

    o, c = e.options, e.configuration
    if len(e.stages) > 1:
        return _title(e), {f"stage {r.stage}": dict(r.device) for r in e.stages}, GPUS
    values: tuple[Any, ...]
    if o.inference is not None:
        name, values, text = "inference", ("fp16", "int8", "int4"), "{}"
    elif o.data > 1 and o.offload != "chunks":
        name, values, text = "zero", (0, 1, 2, 3), "ZeRO-{}"
    elif c is not None:
        name, values, text = "recompute", ("none", "selective", "full"), "recomputation\n{}"
    else:
        return _title(e), {e.model.name: dict(e.fullest.device)}, GPUS
    own: Any = getattr(o, name)
    values = values if own in values else (own, *values)
    changes = {f.name: getattr(o, f.name) for f in dataclasses.fields(o)}
    found = {}
    for value in values:
        one = e if value == own else estimate(c or e.model, **changes | {name: value})
        label = "DDP" if name == "zero" and value == 0 else text.format(value)
        found[f"{label}{' (chosen)' if value == own else ''}"] = dict(one.fullest.device)
        if e.activations is not None and value != own:
            found[label]["activations"] = e.activations
    return _title(e), found, GPUS

"""An estimate as a table and as JSON, and which GPUs hold it."""

import dataclasses
import json
from fractions import Fraction
from itertools import accumulate
from typing import Any

from ..columns import REPORT, folded, padded, width_of
from ..errors import LabError
from ..words import CLAUSE, LIST, NOTHING, Text, joined, say
from . import words
from .communication import Traffic
from .library import beyond
from .models import Transformer
from .options import Options, check_transformer
from .ranks import Counted, Rank, with_fewest, with_options
from .stages import KINDS
from .units import GB, gb, gib, rounded, shown

GPUS = (24, 40, 80, 141)  # GB as the label says, taken as decimal: the driver's share comes out of the difference
BAR = 40  # characters


def table(e: Counted, columns: int | None = None) -> str:
    """The estimate as text in the chosen language: bytes by kind on the fullest rank, stages, messages, what fits.

    ``columns``: of a terminal (None: 100); the bars take what the numbers leave, or go.
    """
    rank, columns = e.fullest, columns or REPORT
    shared = [*folded([str(_title(e))], columns), "", *_kinds(rank, columns)]
    if (lacking := uncounted(e)) is not None:
        shared += folded([str(lacking)], columns)
    if len(e.stages) > 1:
        shared += ["", *_stages(e)]
    if rank.traffic:
        shared += ["", *_traffic(rank)]
    return "\n".join([*shared, "", *_fits(e, columns)])


def _title(e: Counted) -> Text:
    o = e.options
    parts: list[Text | str] = [words.model(e.model.name)]
    if e.configuration is not None:
        parts.append(say("{n:,} parameters", n=e.parameters))
    if o.inference is not None:
        parts.append(say("inference in {format}", format=o.inference))
    else:
        parts += [str(getattr(getattr(o, name), "name", getattr(o, name))) for name in ("precision", "optimizer")]
        parts += [getattr(o.recipe, "name", str(o.recipe))] * (o.recipe is not None)
        parts += [f"ZeRO-{o.zero}"] * bool(o.zero)
        parts += [say("offloading {what}", what=o.offload)] * (o.offload != "none")
        parts += [say("recomputation {how}", how=o.recompute)] * (o.recompute != "none")
    if e.configuration is not None:
        tokens = o.sequence or e.configuration.sequence
        more = f" x {o.micro_batches:,}" if o.micro_batches > 1 else ""
        parts.append(say("{batch:,} x {tokens:,} tokens{more}", batch=o.micro_batch, tokens=tokens, more=more))
    sizes = (say("data {n}"), o.data), (say("tensor {n}"), o.tensor), (say("pipeline {n}"), o.pipeline)
    degrees = [text.fill(n=n) for text, n in sizes if n > 1]
    inside = say(" ({inside})", inside=joined(degrees, LIST)) if degrees else NOTHING
    return joined([*parts, say("{n} GPU{s}{degrees}", n=o.gpus, s="s" * (o.gpus > 1), degrees=inside)], LIST)


def uncounted(e: Counted) -> Text | None:
    """What is not counted, and what would have to be given for it; None where all is counted."""
    if e.configuration is not None:
        return None if e.options.inference is not None else _beyond(e.configuration, e.options)
    if e.traced is not None:
        left_out = say(
            "not counted: the loss and the whole backward pass, such as the gradients of logits; give loss=, a "
            "function from the module's output to the loss"
        )
        return None if e.traced.loss else left_out
    if e.model.states_only:
        return say("not counted: activations; they follow from the layers, not from a number of parameters")
    return say("not counted: activations; give inputs=, the arguments of a module's forward pass, and they are traced")


def _beyond(c: Transformer, o: Options) -> Text:
    """What an implementation that people use holds beyond the papers' terms."""
    kinds = beyond(c, o)
    if kinds is None:
        return say("not counted: what an implementation keeps beyond the papers' terms, such as FP32 copies in norms")
    details = [say("{name} {size}", name=words.term(name), size=signed(size)) for name, size in kinds.items()]
    return say(
        "not counted: the papers' terms are Megatron's; the transformers library's module adds {size} at the peak: "
        "{details}",
        size=signed(sum(kinds.values())), details=joined(details, CLAUSE),
    )  # fmt: skip


def signed(size: int) -> str:
    return f"-{shown(-size)}" if size < 0 else shown(size)


def _kinds(rank: Rank, columns: int) -> list[str]:
    """A line for each kind of bytes of a rank, and its temporaries below.

    The bars on the right stand one behind the other, a stacked bar of the rank's bytes cut into its lines.
    """
    rows = [(str(words.KINDS[kind]), rank.device.get(kind, 0), rank.host.get(kind, 0)) for kind in KINDS]
    rows = [row for row in rows if row[1] or row[2]]
    totals = [*rows, (str(say("total")), rank.total, sum(rank.host.values()))]
    wide = max(12, *(width_of(name) for name, _, _ in rows)) + 2
    host = any(there for _, _, there in rows)

    def cells(here: int, there: int) -> list[str]:
        return [f"{here:,}", f"{gb(here):.2f}", f"{gib(here):.2f}"] + [f"{gb(there):.2f}"] * host

    texts = [cells(here, there) for _, here, there in totals]
    heads = [str(say("bytes")), "GB", "GiB"] + [str(say("CPU memory, GB"))] * host
    widths = [
        max(least, 1 + max(len(text[i]) for text in texts)) for i, least in enumerate((19, 11, 11, 17)[: len(heads)])
    ]

    def line(name: str, texts: list[str]) -> str:
        return padded(name, wide) + "".join(flushed(text, width) for text, width in zip(texts, widths, strict=True))

    out = [line(name, text) for (name, _, _), text in zip(totals, texts, strict=True)]
    head = line(str(say("on the fullest rank")), heads)
    room = min(BAR, columns - width_of(head) - 2)
    if room >= width_of(who := str(say("who takes what"))):
        before = accumulate((here for _, here, _ in rows), initial=0)
        for i, (start, (_, here, _)) in enumerate(zip(before, rows, strict=False)):
            out[i] = f"{out[i]}  {_bar(start, here, rank.total, room)}".rstrip()
        head += f"  {who}"
    details = [say("{name} {size}", name=words.term(name), size=shown(size)) for name, size in rank.temporary.items()]
    below = [str(say("temporary: {details}", details=joined(details, CLAUSE)))] if details else []
    return [head, *out, *folded(below, columns)]


def flushed(text: str, width: int) -> str:
    return " " * max(0, width - width_of(text)) + text


def _bar(before: int, size: int, whole: int, room: int = BAR) -> str:
    """A part of a bar of ``room`` characters, behind what comes before it; a thin line where it is too short for one.

    >>> _bar(30, 10, 40).count("█"), _bar(30, 10, 40).count(" ")
    (10, 30)
    """
    if not size:
        return ""
    start, end = ((room * n + whole // 2) // whole for n in (before, before + size))
    return " " * min(start, room - 1) + ("█" * (end - start) or "▏")


def _stages(e: Counted) -> list[str]:
    columns = say("stage"), say("layers"), say("model states, GB"), say("activations, GB"), say("total, GB")
    first, *heads = map(str, columns)
    out = [padded(first, 8) + "".join(map(flushed, heads, (7, 18, 17, 11)))]
    for r in e.stages:
        saved = r.device.get("activations", r.device.get("kv cache", 0))
        out.append(f"{r.stage:<8}{r.layers:>7}{gb(r.states):>18.2f}{gb(saved):>17.2f}{gb(r.total):>11.2f}")
    return out


def _traffic(rank: Rank) -> list[str]:
    rows = [(str(words.term(message.what)), _message(message), shown(message.sent)) for message in rank.traffic]
    wide, middle = (max(width_of(row[i]) for row in rows) + 2 for i in (0, 1))
    head = str(say("sent by one rank in a step:"))
    return [head, *(f"  {padded(a, wide)}{padded(b, middle)}{sent:>9}" for a, b, sent in rows)]


def _message(message: Traffic) -> str:
    """One kind of message, and how often it is sent."""
    repeated = say(", {n} times", n=message.times) if message.times > 1 else ""
    sent = say("{collective} of {size}", collective=words.term(message.collective), size=shown(message.message))
    return f"{sent}{repeated}"


# --- what fits --------------------------------------------------------------------------------------------------
def fitting(e: Counted) -> dict[int, int | None]:
    """For each size of GPU in GB, the fewest of them that hold the model, or None.

    In training ZeRO's data parallelism grows (a single GPU is tried without it); in inference, tensor parallelism,
    through the degrees that divide the heads.
    """
    return {size: fewest(e, size * GB) for size in GPUS}


def fewest(e: Counted, capacity: int) -> int | None:
    """The fewest GPUs of ``capacity`` bytes that hold the model, otherwise run as it is; None where no number does."""
    o, c = e.options, e.configuration
    if o.inference is None:
        smallest = with_fewest(e, capacity, o.tensor * o.pipeline)
        return None if smallest is None else smallest.options.gpus
    assert c is not None
    for tensor in range(1, c.keys + 1):
        size: dict[str, Any] = {"tensor": tensor, "gpus": tensor * o.pipeline}
        try:
            check_transformer(c, dataclasses.replace(o, **size))
        except LabError:
            continue
        if with_options(e, **size).total <= capacity:
            return tensor * o.pipeline
    return None


def _fits(e: Counted, columns: int) -> list[str]:
    o = e.options
    rows = []
    for size, count in fitting(e).items():
        over = say("does not fit: {times} times")
        here = say("fits") if e.total <= size * GB else over.fill(times=times(e.total, size * GB))
        least = say("no number is enough")
        if count is not None:
            together = say(" = {size:,} GB", size=count * size) if count > 1 else NOTHING
            least = say("at least {n} GPU{s}{all}", n=count, s="s" * (count > 1), all=together)
        rows.append((f"{size} GB", str(here), str(least)))
    if o.inference is not None:
        how = say("tensor parallelism, by degrees that divide the heads")
    elif o.zero:
        how = say("more data-parallel ranks under ZeRO-{stage}", stage=o.zero)
    elif o.offload == "chunks":
        how = say("more data-parallel ranks, which share the chunks")
    else:
        how = say("without ZeRO more GPUs hold the same; --zero 1 to 3 divides")
    present = say("{n} of them", n=o.gpus) if o.gpus > 1 else say("one of them")
    rows.insert(0, ("GPU", str(present), str(say("fewest ({how})", how=how))))
    wide = max(26, *(2 + width_of(here) for _, here, _ in rows))
    lines = (f"{size:<8}{padded(here, wide)}{least}" for size, here, least in rows)
    return folded(lines, columns, " " * (8 + wide))


def times(total: int, capacity: int) -> str:
    """How many times a capacity a larger total is: to one decimal, to more where that would read as 1.

    >>> times(176, 80), times(10_000_001, 10_000_000)
    ('2.2', '1.0000001')
    """
    ratio, digits = Fraction(total, capacity), 1
    while Fraction(text := rounded(ratio, digits)) <= 1:
        digits += 1
    return text


# --- JSON -------------------------------------------------------------------------------------------------------
def as_dict(e: Counted) -> dict[str, Any]:
    """The estimate as plain values; bytes are integers."""
    options = {f.name: getattr(e.options, f.name) for f in dataclasses.fields(e.options)}
    options |= {name: getattr(options[name], "name", options[name]) for name in ("precision", "optimizer", "recipe")}
    return {
        "model": e.model.name,
        "parameters": e.parameters,
        "options": options,
        "data": e.options.data,
        "stages": [{"stage": r.stage,
                    "layers": r.layers,
                    "ranks": r.ranks,
                    "parameters": r.elements,
                    "device": dict(r.device),
                    "host": dict(r.host),
                    "temporary": dict(r.temporary),
                    "total": r.total,
                    "sent": [{**dataclasses.asdict(t), "message": t.message, "sent": t.sent} for t in r.traffic]}
                   for r in e.stages],
        "fullest": e.fullest.stage,
        "total": e.total,
        "activations": _counted(e),
        "beyond": beyond(e.configuration, e.options) if e.configuration is not None else None,
        "fewest": {f"{size} GB": count for size, count in fitting(e).items()},
    }  # fmt: skip


def _counted(e: Counted) -> str:
    """How activations were counted."""
    if e.traced is not None:
        return "traced" if e.traced.loss else "traced, without a loss"
    return "formula" if e.configuration is not None else "not counted"


def as_json(e: Counted) -> str:
    return json.dumps(as_dict(e), indent=2, allow_nan=False)


# --- the figure's data ------------------------------------------------------------------------------------------
def bars(e: Counted) -> tuple[str, dict[str, dict[str, int]], tuple[int, ...]]:
    """A title, bytes by kind for each bar, and the GPU sizes in GB to compare with.

    The bars are the stages of a pipeline; otherwise the estimate among its neighbours: ZeRO's stages where there are
    several ranks, formats in inference, recomputations on a single GPU.
    """
    o, c = e.options, e.configuration
    if len(e.stages) > 1:
        return _title(e).en, {f"stage {r.stage}": dict(r.device) for r in e.stages}, GPUS
    values: tuple[Any, ...]
    if o.inference is not None:
        name, values, text = "inference", ("fp16", "int8", "int4"), "{}"
    elif o.data > 1 and o.offload != "chunks":
        name, values, text = "zero", (0, 1, 2, 3), "ZeRO-{}"
    elif c is not None:
        name, values, text = "recompute", ("none", "selective", "full"), "recomputation\n{}"
    else:
        return _title(e).en, {e.model.name: dict(e.fullest.device)}, GPUS
    own: Any = getattr(o, name)
    values = values if own in values else (own, *values)
    by_label = {}
    for value in values:
        estimate = e if value == own else with_options(e, **{name: value})
        label = "DDP" if name == "zero" and value == 0 else text.format(value)
        by_label[f"{label}{' (chosen)' if value == own else ''}"] = dict(estimate.fullest.device)
    return _title(e).en, by_label, GPUS

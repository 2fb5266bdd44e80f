"""The experiment's claims."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from ... import codebooks
from ...codebooks import BOOKS, rules, tree
from ...hardware.cases import Arrays
from ..base import Evidence, Outcome, absent, failed, passed, verdict
from ..legacy import Check
from ..statistics import both, superior
from .data import (
    BLOCKS,
    DRAWN,
    DRAWS,
    KINDS,
    NORMAL,
    STATE_PAIRS,
    WHOLE,
    Params,
    book_of,
    errors,
    names_of,
    normal,
    sizes_of,
    update_of,
)

MOST = 1 << 15  # elements of each kind that vectorised checks take
# Mean absolute, mean relative and root mean square error by block size, as printed, computed independently of this lab.
PUBLISHED = {
    "dynamic": {64: ".007535 .0142 .00952", 256: ".00854 .01539 .010838", 2048: ".009702 .01665 .012474",
                WHOLE: ".011943 .01882 .015942"},
    "linear": {64: ".005042 .02728 .005944", 256: ".005984 .03128 .006974", 2048: ".007133 .03623 .00827",
               WHOLE: ".009833 .04739 .011355"},
}  # fmt: skip


def at(arrays: Arrays, kind: str, book: str, block: int) -> np.ndarray:
    """The four errors of one kind of data, codebook and block size."""
    place = (*BLOCKS, WHOLE).index(block)
    found: np.ndarray = arrays["errors"][KINDS.index(kind), names_of(kind).index(book), place]
    return found


def check_published(arrays: Arrays, params: Params) -> Outcome:
    """The errors on normal data to every digit that is known."""
    if params.normal != NORMAL:
        return absent(f"the published table is of {NORMAL:,} samples")
    done = 0
    for book, rows in PUBLISHED.items():
        for block, text in rows.items():
            for printed, value in zip(text.split(), at(arrays, "normal", book, block)[:3], strict=True):
                if round(float(value), len(printed) - 1) != float(printed):
                    return failed(f"{book}, block {block or 'whole'}: {value:.8f}, printed {printed}")
                done += 1
    return passed(f"{done} numbers, every printed digit")


def searched(x: np.ndarray, values: np.ndarray, block: int, sizes: list[int]) -> np.ndarray:
    """Elements at their nearest values by NumPy's search among the midpoints, in float64, block by block."""
    out, values = np.zeros(x.size), values.astype(np.float64)
    ends = np.cumsum(sizes or [x.size]).tolist()
    for low, high in zip([0, *ends[:-1]], ends, strict=True):
        part = x[low:high].astype(np.float64)
        size = block or part.size
        rows = np.pad(part, (0, -part.size % size)).reshape(-1, size)
        most = np.abs(rows).max(1, keepdims=True)
        near = values[np.searchsorted((values[1:] + values[:-1]) / 2, rows / np.where(most == 0, 1, most))] * most
        out[low:high] = near.ravel()[: part.size]
    return out


def check_drawn(arrays: Arrays, params: Params) -> Outcome:
    """Of every kind of data and codebook, and of every pair of states, one block size, each in its turn."""
    blocks, done = (*BLOCKS, WHOLE), 0
    for k, kind in enumerate(KINDS):
        x, sizes = arrays[kind], sizes_of(kind, arrays)
        for b, name in enumerate(names_of(kind)):
            block = blocks[(k + b) % len(blocks)]
            back = searched(x, book_of(name, x, block or None, sizes).values, block, sizes)
            error, there = np.abs(back - x), x != 0
            want = error.mean(), (error[there] / np.abs(x[there])).mean(), np.sqrt((error**2).mean())
            if not np.allclose(at(arrays, kind, name, block)[:3], want, rtol=1e-5, atol=0):
                return failed(f"{kind}, {name}, blocks of {block}: {at(arrays, kind, name, block)[:3]}, not {want}")
            done += 3
    m, v, sizes = arrays["m"], arrays["v"], sizes_of("m", arrays)
    right = update_of(m, v)
    for i, names in enumerate(STATE_PAIRS):
        block = blocks[i]
        near = (searched(x, book_of(n, x, block or None, sizes).values, block, sizes).astype(np.float32)
                for n, x in zip(names, (m, v), strict=True))  # fmt: skip
        error = np.abs(update_of(*near) - right)[right != 0] / np.abs(right[right != 0])
        if not np.isclose(arrays["update_errors"][i, i, 1], np.median(error), rtol=1e-3):
            return failed(f"{names}, blocks of {block}: {arrays['update_errors'][i, i, 1]}, not {np.median(error)}")
        done += 1
    return passed(f"{done} errors")


def check_torch(arrays: Arrays, params: Params) -> Outcome:
    """bitsandbytes' torch backend is a scaling and ``torch.bucketize``; its codes are our rule's."""
    try:
        import torch
    except ImportError as error:
        return absent(f"{error.name} is not installed")
    done = 0
    for kind in KINDS:
        book = BOOKS["dynamic unsigned" if kind == "v" else "dynamic"]
        x = torch.from_numpy(arrays[kind][: min(MOST, arrays[kind].size // 2048 * 2048)].copy()).reshape(-1, 2048)
        values = torch.from_numpy(book.values.copy())
        scaled = (x * (1 / x.abs().amax(1, keepdim=True).clamp(1e-38))).clamp(-1, 1)
        theirs = torch.bucketize(scaled, (values[:-1] + values[1:]) / 2).numpy()
        ours = codebooks.quantize_blockwise(x.numpy(), book, 2048, rules.TORCH).codes
        if not np.array_equal(ours, theirs):
            return failed(f"{kind}: {int((ours != theirs).sum())} of {ours.size} codes differ")
        done += ours.size
    return passed(f"{done:,} codes")


def check_gaps(arrays: Arrays, params: Params) -> Outcome:
    """No scaled element is farther from its value than half the gap that it lies in."""
    done = 0
    for kind in KINDS:
        for book in (book_of(name, arrays[kind]) for name in names_of(kind)):
            x = arrays[kind][:MOST]
            q = codebooks.quantize_blockwise(x, book, None)
            with np.errstate(divide="ignore"):
                scaled = (x / q.absmax[0]).astype(np.float64)
            values = book.values.astype(np.float64)
            got = book.table[q.codes].astype(np.float64)
            place = np.clip(np.searchsorted(values, scaled), 1, len(book) - 1)
            gap = values[place] - values[place - 1]
            outside = np.maximum(np.maximum(values[0] - scaled, scaled - values[-1]), 0)
            if (np.abs(got - scaled) > np.maximum(gap / 2, outside)).any():
                return failed(f"{kind}, {book.name}: an element is not at its nearest value")
            done += x.size
    return passed(f"{done:,} elements")


def check_confined(arrays: Arrays, params: Params) -> Outcome:
    """Outside its block an outlier changes no error; with one scale for all the mean error grows.

    The margin of the growth: one octave, which no draw of 65,536 normal numbers moves its maximum by.
    """
    reach = arrays["outlier"]
    for i, first in ((0, 20 * 8 + 2), (1, 20 * 8)):  # in 256s: the outlier's block of 256, and of 2048
        elsewhere = np.delete(reach[:, i], np.arange(first, first + (1, 8)[i]), axis=2)
        if not np.array_equal(elsewhere[:, 0], elsewhere[:, 1]):
            return failed("an error outside the outlier's block changes")
    whole = np.log2(reach[:, 2].mean(axis=2))
    grows = 2 ** (whole[:, 1] - whole[:, 0]).mean()
    text = f"outside its block no error changes; with one scale the mean error grows {grows:.1f} times"
    return superior(whole[:, 1], whole[:, 0], 1.0, text)


def check_maximum(arrays: Arrays, params: Params) -> Outcome:
    """Every finite FP16 magnitude as a block's maximum, with either sign (dynamic map)."""
    top = np.arange(1, 0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    back = [codebooks.dequantize_blockwise(codebooks.quantize_blockwise(s * top, BOOKS["dynamic"], 1)) for s in (1, -1)]
    short = 1 + back[1].astype(np.float64) / top
    holds = np.array_equal(back[0], top) and np.allclose(short, 1 - 0.992968738079071, rtol=0, atol=1e-7)
    return verdict(holds, f"{top.size:,} positive maxima exact, as many negative ones 0.703% short")


def draws(name: str) -> np.ndarray:
    """Mean absolute and mean relative error of a codebook on independent draws of normal data, (draw, 2), octaves."""
    book = BOOKS[name]
    return np.log2([errors(normal(DRAWN, 1000 + seed), book, 2048)[:2] for seed in range(DRAWS)])


def check_trade(arrays: Arrays, params: Params) -> Outcome:
    """On normal data linear has the smaller absolute error, and the larger relative one.

    The margin: a quarter of an octave, about a fifth; less would be no ground to choose by.
    """
    linear, dynamic = draws("linear"), draws("dynamic")
    absolute = superior(dynamic[:, 0], linear[:, 0], 0.25, "absolute error, octaves of dynamic above linear")
    return both(
        absolute, superior(linear[:, 1], dynamic[:, 1], 0.25, "relative error, octaves of linear above dynamic")
    )


def check_states(arrays: Arrays, params: Params) -> Outcome:
    """Of a network's second moments, linear makes zeros of what dynamic keeps: the update divides by their root.

    The margin: one element in a hundred.
    """
    linear, dynamic = arrays["lost"].T
    text = f"linear unsigned: {linear.mean():.2%} become 0, dynamic unsigned: {dynamic.mean():.2%} become 0"
    return superior(linear, dynamic, 0.01, text)


def check_tree(arrays: Arrays, params: Params) -> Outcome:
    """Codes that read as 0, and values that lie in a decade below their own, of all there are."""
    fields = [tree.fields(code) for code in range(128)]
    zeros = sum(f.value == 0 for f in fields)
    overlaps = sum(0 < f.value <= Fraction(1, 10 ** (f.zeros + 1)) for f in fields)
    tops = [int((BOOKS[name].values > np.float32(0.1)).sum()) for name in ("tree", "dynamic")]
    text = (
        f"{zeros} of 128 codes read as 0, {overlaps} values lie in a decade below their own: from 0.1 to 1 {tops[0]} "
        f"values are left, of the dynamic map's {tops[1]}"
    )
    return verdict((zeros, overlaps) == (7, 10), text)


def check_worse(arrays: Arrays, params: Params) -> Outcome:
    """What the literal tree costs on normal data, in octaves; the margin is 5%, 0.07 octaves."""
    apart = draws("tree") - draws("dynamic")
    zero = np.zeros(DRAWS)
    return both(superior(apart[:, 0], zero, 0.07, "absolute error, octaves of the tree above dynamic"),
                superior(apart[:, 1], zero, 0.07, "relative error, octaves of the tree above dynamic"))  # fmt: skip


PROVED, LIBRARY, MEASURED = Evidence.PROVED, Evidence.LIBRARY, Evidence.MEASURED
CHECKS = (
    Check("No element is farther from its value than half the gap it lies in", PROVED, check_gaps),
    Check("Errors on 2^20 normal samples are the published ones", LIBRARY, check_published),
    Check("The errors drawn are those of the nearest values that NumPy finds", LIBRARY, check_drawn),
    Check("torch.bucketize gives the codes of the rule named after it", LIBRARY, check_torch),
    Check("A block confines an outlier, which with one scale for all costs every element", MEASURED, check_confined),
    Check("A block's maximum is exact if positive, 0.7% short if negative", PROVED, check_maximum),
    Check("On normal data linear wins on absolute error, dynamic on relative error", MEASURED, check_trade),
    Check("Linear makes zeros of second moments that the unsigned dynamic map keeps", MEASURED, check_states),
    Check("The literal tree has 7 zeros and 10 overlapping values", PROVED, check_tree),
    Check("On normal data the literal tree's errors are larger than the dynamic map's", MEASURED, check_worse),
)

"""The experiment's claims."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from ... import codebooks
from ...codebooks import BOOKS, oracle, rules, tree
from ...hardware.cases import Arrays
from ..base import Check, Evidence, Outcome, absent, failed, passed, verdict
from .data import BLOCKS, KINDS, WHOLE, Params, book_of, names_of, outlier_data

EXACT, LIBRARY = Evidence.EXACT, Evidence.LIBRARY
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
    done = 0
    for book, rows in PUBLISHED.items():
        for block, text in rows.items():
            for printed, value in zip(text.split(), at(arrays, "normal", book, block)[:3], strict=True):
                if round(float(value), len(printed) - 1) != float(printed):
                    return failed(f"{book}, block {block or 'whole'}: {value:.8f}, printed {printed}")
                done += 1
    return passed(f"{done} numbers, every printed digit")


def sampled(x: np.ndarray, n: int) -> np.ndarray:
    """The ``n`` first elements, and as many around the largest."""
    top = int(np.argmax(np.abs(x)))
    return np.concatenate([x[: n // 2], x[max(top - n // 2, 0) :][: n // 2]])


def check_oracle(arrays: Arrays, params: Params) -> Outcome:
    """Codes and values on every kind of data against fractions."""
    done = 0
    for kind in KINDS:
        for book in (book_of(name, arrays[kind]) for name in names_of(kind)):
            x = sampled(arrays[kind], params.sample)
            q = codebooks.quantize_blockwise(x, book, 256)
            codes, scales = oracle.quantize(x, book, 256)
            back = oracle.dequantize(codes, scales, book, 256)
            if not np.array_equal(q.codes, codes) or not np.array_equal(codebooks.dequantize_blockwise(q), back):
                return failed(f"{kind}, {book.name}: differs from the oracle")
            done += x.size
    return passed(f"{done:,} elements, every code and every value")


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
            x = sampled(arrays[kind], MOST)
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
    """Outside its block, an outlier changes no code; with one scale for all it changes most."""
    plain, spoiled = outlier_data(params.outlier)
    book = BOOKS["dynamic"]
    a, b = (codebooks.quantize_blockwise(x, book, 2048).codes.reshape(-1, 2048) for x in (plain, spoiled))
    changed = np.flatnonzero((a != b).any(1)).tolist()
    whole = [codebooks.quantize_blockwise(x, book, None).codes for x in (plain, spoiled)]
    share = float((whole[0] != whole[1]).mean())
    return verdict(
        changed == [20] and share > 0.9, f"blocks changed: {changed}; with one scale {share:.1%} of the codes"
    )


def check_maximum(arrays: Arrays, params: Params) -> Outcome:
    """A block's maximum is exact where it is positive and 0.703% short where it is negative (dynamic map)."""
    x = arrays["normal"].reshape(-1, 2048)
    back = codebooks.dequantize_blockwise(codebooks.quantize_blockwise(x, BOOKS["dynamic"])).astype(np.float64)
    top = np.abs(x).argmax(1)[:, None]
    original, returned = np.take_along_axis(x, top, 1).astype(np.float64), np.take_along_axis(back, top, 1)
    short = 1 - returned / original
    positive = original > 0
    holds = (short[positive] == 0).all() and np.allclose(short[~positive], 1 - 0.992968738079071, rtol=0, atol=1e-7)
    return verdict(bool(holds), f"{positive.sum()} positive maxima exact, {(~positive).sum()} negative 0.703% short")


def check_trade(arrays: Arrays, params: Params) -> Outcome:
    """On normal data linear has the smaller absolute error and about twice the relative error."""
    ratios = [at(arrays, "normal", "linear", b)[:2] / at(arrays, "normal", "dynamic", b)[:2] for b in (*BLOCKS, WHOLE)]
    low, high = np.min(ratios, 0), np.max(ratios, 0)
    text = f"linear / dynamic: absolute {low[0]:.2f} to {high[0]:.2f}, relative {low[1]:.2f} to {high[1]:.2f}"
    return verdict(bool(high[0] < 1 and low[1] > 1.8), text)


def check_states(arrays: Arrays, params: Params) -> Outcome:
    """Of a real second moment, linear makes zeros of what dynamic keeps: the update divides by its root."""
    lost = {name: float(at(arrays, "v", name, 2048)[3]) for name in ("linear unsigned", "dynamic unsigned")}
    text = ", ".join(f"{name}: {share:.2%} become 0" for name, share in lost.items())
    return verdict(lost["linear unsigned"] > 10 * lost["dynamic unsigned"], text)


def check_tree(arrays: Arrays, params: Params) -> Outcome:
    """What the literal tree costs: codes that read as 0, values that lie in a decade below their own, and errors."""
    fields = [tree.fields(code) for code in range(128)]
    zeros = sum(f.value == 0 for f in fields)
    overlaps = sum(0 < f.value <= Fraction(1, 10 ** (f.zeros + 1)) for f in fields)
    tops = [int((BOOKS[name].values > np.float32(0.1)).sum()) for name in ("tree", "dynamic")]
    ratios = np.array([at(arrays, "normal", "tree", b)[:2] / at(arrays, "normal", "dynamic", b)[:2]
                       for b in (*BLOCKS, WHOLE)])  # fmt: skip
    text = (
        f"{zeros} of 128 codes read as 0, {overlaps} values lie in a decade below their own: from 0.1 to 1 {tops[0]} "
        f"values are left, of the dynamic map's {tops[1]}. On normal data its errors are {ratios[:, 0].min():.2f} to "
        f"{ratios[:, 0].max():.2f} (absolute) and {ratios[:, 1].min():.2f} to {ratios[:, 1].max():.2f} (relative) of "
        "the map's"
    )
    return verdict((zeros, overlaps) == (7, 10) and bool((ratios > 1.05).all()), text)


CHECKS = (
    Check("Every code is the nearest value's, on every kind of data", EXACT, check_oracle),
    Check("No element is farther from its value than half the gap it lies in", EXACT, check_gaps),
    Check("Errors on 2^20 normal samples are the published ones", LIBRARY, check_published),
    Check("torch.bucketize gives the codes of the rule named after it", LIBRARY, check_torch),
    Check("A block confines an outlier: no code outside it changes", EXACT, check_confined),
    Check("A block's maximum is exact if positive, 0.7% short if negative", EXACT, check_maximum),
    Check("On normal data linear wins on absolute error, dynamic on relative error", EXACT, check_trade),
    Check("Linear makes zeros of second moments that the unsigned dynamic map keeps", EXACT, check_states),
    Check(
        "The literal tree has 7 zeros and 10 overlapping values, and is worse than the dynamic map", EXACT, check_tree
    ),
)

"""Claims about INT8 and INT4, calibration, and the storage of 8-bit optimizers."""

import functools
from collections.abc import Iterator
from fractions import Fraction
from statistics import NormalDist

import numpy as np

from .. import codebooks, integers, memory, seeds
from ..codebooks import tree
from ..tensorcore import models
from ..words import say, verbatim
from .base import Part, beside, equal, part, tries, untried
from .training import rows_of

BILLION = 10**9

# Milliseconds a token of BLOOM-176B as Hugging Face's page on its integration of bitsandbytes prints them, at batch
# sizes 1, 8 and 32: BF16 on 8 A100 of 80 GB and LLM.int8() on 4; BF16 on 14 A100 of 40 GB and LLM.int8() on 5.
BLOOM_TIMES = (((239, 32, 9.9), (282, 37.5, 10.2)), ((285, 36.5, 10.4), (367, 46.4)))


@functools.cache
def normal(size: int = 1 << 16) -> np.ndarray:
    """Normal numbers, float32, the same every time."""
    words = seeds.bits(2 * size, 2026)
    u, w = ((words[i::2] >> np.uint64(11)) * 2.0**-53 + 2.0**-54 for i in (0, 1))
    return np.asarray(np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * w), np.float32)


@tries("llm-int8-slower")
def llm_int8_slower() -> Iterator[Part]:
    slower = [int8 / bf16 - 1 for pair in BLOOM_TIMES for bf16, int8 in zip(*pair, strict=False)]
    inside = [0.15 <= s <= 0.23 for s in slower]
    speeds = ", ".join(f"{s:.0%}" for s in slower)
    yield part(say("by the published times, slower by"), "15% … 23%", speeds, all(inside), any(inside))
    yield untried(say("on a GPU of yours"), "15% … 23%")


@tries("int4-on-turing")
def int4_on_turing() -> Iterator[Part]:
    """Accuracy of a calibrated network in INT4; whether the lab has a record of INT4 products."""
    native = [m.gpu for m in models.TABLE if m.a == "int4"]
    rows = [r for r in rows_of("calibration") if r["bits"] == "4"]
    instructions = say("no model of INT4 instructions here") if not native else verbatim(native[0])
    yield untried(say("native in Turing's Tensor Cores, and faster"), say("yes"), instructions)
    if not rows:
        yield untried(say("accuracy lost"), "1%")
        return
    lost = [100 * (float(r["right_fp32"]) - float(r["right"])) for r in rows]
    loss = say("{n:.1f} to {n2:.0f} points, by the rule of calibration", n=min(lost), n2=max(lost))
    typical = float(np.median(lost))
    yield part(say("accuracy lost, digits, {n} ways to calibrate", n=len(rows)), say("about 1 point"), loss,
               max(lost) < 1.5, typical < 1.5)  # fmt: skip
    yield beside(say("the same, median, points"), f"{typical:.1f}")


@tries("percentile-calibration")
def percentile_calibration() -> Iterator[Part]:
    """The 99.999th percentile of a large tensor with outliers, and of a small one; and the other rules there are."""
    large = np.append(normal(1 << 18), np.full(2, 40, np.float32))
    clipped = [integers.Histogram().collect(x) for x in (large, normal()[:10_000])]
    (big, small), ends = [h.percentile(99.999) for h in clipped], [h.max() for h in clipped]
    cuts = [got < end * (1 - 2 / integers.calibration.BINS) for got, end in zip((big, small), ends, strict=True)]
    this = sum(rule.percentile == 99.999 for rule in integers.CALIBRATORS if rule.rule == "percentile")
    yield part(say("range, maximum: 262,146 values, two of them 40; 10,000 values"), say("outliers are cut off"),
               f"{big:.2f} : {ends[0]:.0f}; {small:.2f} : {ends[1]:.2f}", all(cuts), any(cuts))  # fmt: skip
    yield part(say("rules to calibrate by, those of this percentile"), "1, 1", f"{len(integers.CALIBRATORS)}, {this}",
               (len(integers.CALIBRATORS), this) == (1, 1), this == 1)  # fmt: skip


@tries("straight-through")
def straight_through() -> Iterator[Part]:
    """The gradient that passes fake quantisation; and the accuracy that one epoch brought back, where it was drawn."""
    import torch

    from ..nn import fake_quantize

    x = torch.tensor([-9.0, -0.3, 0.2, 0.9, 9.0], requires_grad=True)
    fake_quantize(x, 1 / 7, grid="int4").sum().backward()
    assert x.grad is not None
    yield part(say("gradient inside and outside of the range"), "0 1 1 1 0", " ".join(f"{g:g}" for g in x.grad),
               x.grad.tolist() == [0, 1, 1, 1, 0])  # fmt: skip


# --- 8-bit optimizers -------------------------------------------------------------------------------------------
@tries("eight-bit-step")
def eight_bit_step() -> Iterator[Part]:
    """The first two steps of 8-bit Adam's momentum, by hand."""
    import torch

    from ..training import Adam8bit

    g, p = normal(4096), torch.nn.Parameter(torch.zeros(4096))
    optimizer, book = Adam8bit([p], block=2048), codebooks.dynamic()
    beta, tenth, state = np.float32(0.9), 1 - np.float32(0.9), np.zeros(4096, np.float32)
    for _ in range(2):
        p.grad = torch.from_numpy(g.copy())
        optimizer.step()
        quantised = codebooks.quantize_blockwise(state * beta + tenth * g, book, 2048, codebooks.rules.SIGN)
        state = codebooks.dequantize_blockwise(quantised)
    same = bool((optimizer.state[p]["state1"].numpy() == quantised.codes).all())
    bytes_ = sum(s.nbytes for name, s in optimizer.state[p].items() if name.startswith("state"))
    yield part(say("dequantise, 32-bit update, quantise: 4,096 codes after two steps"), say("the optimizer's"),
               say("every bit") if same else say("others"), same)  # fmt: skip
    yield equal(say("bytes of the codes, two states of 4,096"), 2 * 4096, bytes_)


@tries("three-quarters")
def three_quarters() -> Iterator[Part]:
    """Bytes of Adam's states for a billion parameters."""
    wide = memory.estimate(BILLION, precision="fp32", optimizer="adam").fullest.device["states"]
    narrow = memory.estimate(BILLION, precision="fp32", optimizer="adamw8bit", block=2048).fullest.device["states"]
    saved = 1 - narrow / wide
    yield equal(say("GB of two FP32 states"), 8, wide // BILLION)
    yield part(say("removed by 8 bits, blocks of 2048"), "75%", f"{saved:.2%}", f"{saved:.0%}" == "75%")


@tries("eight-bit-as-good")
def eight_bit_as_good() -> Iterator[Part]:
    """The runs of the experiment eight_bit_adam: where 8 bits end against 32, seed by seed, and where they diverge."""
    from ..experiments.eight_bit_adam import UNSTABLE
    from ..experiments.outcomes import Status
    from ..experiments.statistics import equivalent

    ended: dict[str, list[float]] = {}
    for row in rows_of("eight_bit_adam"):
        loss = float(row["final_loss"] or "inf") if row["unstable"] == "false" else float("inf")
        ended.setdefault(row["states"], []).append(loss)
    about = say("a transformer's loss: 8 bits in dynamic blocks against 32, over seeds")
    wide, blocks, linear = (np.array(ended.get(n, ())) for n in ("32-bit", "dynamic + blocks", "linear"))
    if wide.size < 2:
        yield untried(about, say("the same"), say("fewer than 2 runs drawn here"))
        return
    alike = equivalent(blocks, wide, UNSTABLE / 5, about).status is Status.PASS
    yield part(about, say("the same"), f"{blocks.mean():.3f} : {wide.mean():.3f}", alike)
    yield part(say("8 bits with linear codes and one scale: runs that diverge"), "0",
               f"{np.isinf(linear).sum()} / {linear.size}", bool(np.isfinite(linear).all()), alike)  # fmt: skip


@tries("blockwise")
def blockwise() -> Iterator[Part]:
    """Blocks of 2048, an outlier in one of them, and what becomes of each block's maximum."""
    x, book = normal(), codebooks.dynamic()
    plain = codebooks.quantize_blockwise(x, book)
    y = x.copy()
    y[5] = 1000
    second = slice(2048, 4096)
    alone = bool((codebooks.quantize_blockwise(x[second], book).codes == plain.codes[second]).all())
    changed = np.flatnonzero(codebooks.quantize_blockwise(y, book).codes != plain.codes)
    whole = codebooks.quantize_blockwise(y, book, None)
    error = [
        float(np.abs(codebooks.dequantize_blockwise(q) - y)[2048:].mean())
        for q in (codebooks.quantize_blockwise(y, book), whole)
    ]
    yield equal(say("elements of a block"), 2048, plain.block)
    yield part(say("large values: beyond 3 standard deviations"), "< 1%", f"{2 * NormalDist().cdf(-3):.2%}",
               2 * NormalDist().cdf(-3) < 0.01)  # fmt: skip
    yield part(
        say("codes that an outlier changes lie in"), say("its block"), f"0 … {changed.max()}", int(changed.max()) < 2048
    )
    yield part(say("mean error elsewhere: blocks, one scale"), say("blocks smaller"),
               f"{error[0]:.2g} : {error[1]:.2g}", error[0] < error[1] / 2)  # fmt: skip
    yield part(say("blocks in parallel: codes of a block quantised alone"), say("the same"),
               say("2,048 the same") if alone else say("others"), alone)  # fmt: skip


@tries("block-maximum")
def block_maximum() -> Iterator[Part]:
    """A block whose maximum is positive, and one whose maximum is negative."""
    scales = [
        float(codebooks.dequantize_blockwise(codebooks.quantize_blockwise([0.1, m], codebooks.dynamic()))[1])
        for m in (3, -3)
    ]
    yield part(say("maximum 3 comes back as"), "3", f"{scales[0]:g}", scales[0] == 3)
    yield part(say("maximum −3 comes back as"), "−3", f"−{-scales[1]:.4f}", scales[1] == -3, abs(scales[1] + 3) < 0.03)


@tries("tree")
def dynamic_tree() -> Iterator[Part]:
    """A code of the dynamic tree, bit by bit."""
    code = 0b0_001_1001
    seen = tree.fields(code)
    zero = sum(tree.decode(c) == 0 for c in range(256))
    yield equal(say("0 001 1001: zeros before the indicator"), 2, seen.zeros)
    yield part(say("its last four bits 1001"), "9/15", f"{seen.fraction}/{2**seen.width - 1}",
               (seen.fraction, seen.width) == (9, 4))  # fmt: skip
    yield equal(say("its value"), Fraction(9, 15) / 100, seen.value)
    yield beside(say("codes that read as 0"), f"{zero} / 256")


@tries("dynamic-map")
def dynamic_map() -> Iterator[Part]:
    """How far Adam's states reach after a short training; how many values of each map lie in each decade, and signs."""
    spans = [decades_of(state) for state in states()]
    signed, unsigned = (by_decade(codebooks.dynamic(signed=s)) for s in (True, False))
    negative = int((codebooks.dynamic(signed=False).values < 0).sum())
    one_more = all(u == 2 * s for u, s in zip(unsigned, signed, strict=True))
    yield part(say("decades that the states of a transformer span here: first, second"), "3 … 5",
               ", ".join(f"{whole:.0f}" for whole, _ in spans), all(3 <= whole <= 5 for whole, _ in spans),
               all(3 <= most <= 5 for _, most in spans))  # fmt: skip
    yield beside(say("nine in ten of their values: first, second"), ", ".join(f"{most:.1f}" for _, most in spans))
    yield part(say("values in each decade from 1 down, second state"), say("the same number of fraction bits in all"),
               ", ".join(map(str, unsigned)), len(set(unsigned)) == 1, one_more)  # fmt: skip
    yield part(say("second state: negative values"), say("no sign"), str(negative), negative == 0)


@functools.cache
def states() -> tuple[np.ndarray, np.ndarray]:
    """Both of Adam's states of the character transformer's larger tensors, after ten steps, in FP32."""
    from ..experiments.quantisation_error import E, trained

    tensors = trained(E.result(E.quick).p, 0)
    return tensors["m"], tensors["v"]


def decades_of(state: np.ndarray) -> tuple[float, float]:
    """The decades that all magnitudes of a state span, zeros apart, and that nine in ten of them span."""
    magnitudes = np.log10(np.abs(state[state != 0]).astype(np.float64))
    low, high = np.percentile(magnitudes, (5, 95))
    return float(np.ptp(magnitudes)), float(high - low)


def by_decade(book: codebooks.Codebook) -> list[int]:
    """How many positive values lie between 0.1 and 1, 0.01 and 0.1, and so on, 1 itself apart."""
    values = book.values[(book.values > 0) & (book.values < 1)].astype(np.float64)
    decade = np.floor(np.log10(values)).astype(int)
    return [int((decade == d).sum()) for d in range(-1, decade.min() - 1, -1)]


@tries("stable-embedding")
def stable_embedding() -> Iterator[Part]:
    """The initialisation, the output, and the gradients of an embedding on real text."""
    import torch

    from ..training import CHARACTERS, StableEmbedding

    torch.manual_seed(0)
    plain, stable = torch.nn.Embedding(5000, 256), StableEmbedding(5000, 256)
    narrow, wide, spread = (float(x.detach().std()) for x in (stable.weight, plain.weight, stable(torch.arange(64))))
    model = CHARACTERS.model(0)
    CHARACTERS.loss(model, next(iter(CHARACTERS.batches(0, 1)))).backward()
    rows = next(m for m in model.modules() if isinstance(m, torch.nn.Embedding)).weight.grad
    assert rows is not None
    sizes = rows.abs().amax(1)
    sizes = sizes[sizes > 0]
    top, ratio = float(sizes.max()), float(sizes.max() / sizes.median())
    detail = say("largest {top:.2g}; {ratio:.0f} times the median row", top=top, ratio=ratio)
    yield part(say("initial weights: plain, stable (standard deviation)"), say("smaller"), f"{wide:.2f} : {narrow:.3f}",
               narrow < wide / 10)  # fmt: skip
    yield part(say("its output (standard deviation)"), "1", f"{spread:.2f}", 0.95 < spread < 1.05)
    yield part(say("gradients of the embedding beyond 65504"), say("often"), detail, top > 65504, ratio > 3)
    yield untried(say("that it helps FP32 training too"), say("yes"), say("no run of the size it speaks of"))


@tries("table-and-search")
def table_and_search() -> Iterator[Part]:
    """The search among midpoints against every distance; and what random rounding is for: the mean of many."""
    x, book = normal()[:2048], codebooks.dynamic()
    scaled = x / np.abs(x).max()
    values = book.values.astype(np.float64)
    search = codebooks.quantize_blockwise(x, book, None).codes
    every = np.abs(values[:, None] - scaled.astype(np.float64)).argmin(0)
    between = np.full(20_000, 0.5 * (values[200] + values[201]) * 0.999, np.float32)
    between[0] = 1
    nearest = codebooks.quantize_blockwise(between, book, None)
    random = codebooks.quantize_blockwise(between, book, None, stochastic=True, seed=1)
    back = [float(codebooks.dequantize_blockwise(q)[1:].mean(dtype=np.float64)) for q in (nearest, random)]
    gap = values[201] - values[200]
    off = [abs(b - float(between[1])) / gap for b in back]
    yield part(say("a table of values, searched by midpoints: the nearest of 2,048"), say("all"),
               f"{int((search == every).sum()):,}", bool((search == every).all()))  # fmt: skip
    yield beside(
        say("random rounding: mean of 20,000, off by (gaps; nearest : random)"), f"{off[0]:.3f} : {off[1]:.3f}"
    )


@tries("offloading")
def offloading() -> Iterator[Part]:
    """CPU memory of off-loaded states, and twelve billion parameters in chunks."""
    host = {
        o: sum(memory.estimate(BILLION, optimizer=o, offload="optimizer").fullest.host.values())
        for o in ("adamw", "adamw8bit")
    }
    chunks = memory.estimate(12 * BILLION, offload="chunks", chunk_budget=24 * BILLION).fullest
    on_host, there = sum(chunks.host.values()) / BILLION, chunks.total / BILLION
    yield part(say("CPU GB a billion parameters: 32-bit, 8-bit states"), say("less"),
               f"{host['adamw'] / BILLION:.1f} : {host['adamw8bit'] / BILLION:.1f}",
               host["adamw8bit"] < host["adamw"])  # fmt: skip
    yield part(say("12 billion parameters: CPU, GPU; whether they train so, bytes do not say"), "240 GB, 32 GB",
               f"{on_host:.0f} GB, {there:.0f} GB", False, on_host <= 240 and there <= 32)  # fmt: skip
    yield beside(say("V100s beside those 240 GB, as PatrickStar's paper has it"), "8")

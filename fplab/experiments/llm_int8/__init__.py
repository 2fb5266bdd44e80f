"""LLM.int8(): why one large feature spoils an INT8 product, and what taking it apart in FP16 gives back.

A small transformer is trained here, and outlier features are planted in it (:mod:`.planting`): a few dimensions of the
layer norms' output are made 16 times as large and the weights that read them 16 times as small, which changes not one
bit of what the model computes. Their size and how often they appear are those that the paper measured in models of 6.7
billion parameters and more; that they are planted, that they lie on both sides of zero, and that they are a larger
share of so narrow a model are differences. After T. Dettmers et al., LLM.int8(): 8-bit Matrix Multiplication for
Transformers at Scale (arXiv 2208.07339), whose Table 1 stands beside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import draw, integers
from ...hardware.cases import Arrays, Case, Meta, philox_bits
from ...hardware.tensors import bits, tensor
from ...words import CLAUSE, COMMA, joined, say
from ..base import Claims, Columns, Digested, Experiment, Tick, in_columns, one_threaded
from ..outcomes import Outcome, Sample, absent, failed, measured, passed, verdict
from ..statistics import both, superior
from . import planting
from .planting import DECOMPOSED, GAIN, LEAST_MAGNITUDE, NAMES, Layers, Params

if TYPE_CHECKING:
    from ...draw.style import Look

AT = {name: i for i, name in enumerate(NAMES)}

# C4 validation perplexity of transformer language models by parameters, arXiv 2208.07339v2, Table 1.
SIZES = ("125M", "1.3B", "2.7B", "6.7B", "13B")
BASELINE = "32-bit float"
TABLE1: dict[str, tuple[float, ...]] = {
    BASELINE: (25.65, 15.91, 14.43, 13.30, 12.45),
    "absmax": (87.76, 16.55, 15.11, 14.59, 19.08),
    "zeropoint": (56.66, 16.24, 14.76, 13.49, 13.94),
    "rowwise": (30.93, 17.08, 15.24, 14.13, 16.49),
    "vectorwise": (35.84, 16.82, 14.98, 14.13, 16.48),
    "zeropoint_vectorwise": (25.72, 15.94, 14.36, 13.38, 13.47),
    "rowwise_decomposed": (30.76, 16.19, 14.65, 13.25, 12.46),
    "llm_int8": (25.83, 15.93, 14.44, 13.24, 12.45),
    "zeropoint_llm_int8": (25.69, 15.92, 14.43, 13.24, 12.45),
}
POSITIONS_67B = 0.75  # the share of positions with outliers in the model of 6.7 billion parameters (section 4)
# The table once more, a size of the model a line, the methods in the order of the paper.
TRANSCRIPT = (
    "25.65 87.76 56.66 30.93 35.84 25.72 30.76 25.83 25.69",
    "15.91 16.55 16.24 17.08 16.82 15.94 16.19 15.93 15.92",
    "14.43 15.11 14.76 15.24 14.98 14.36 14.65 14.44 14.43",
    "13.30 14.59 13.49 14.13 14.13 13.38 13.25 13.24 13.24",
    "12.45 19.08 13.94 16.49 16.48 13.47 12.46 12.45 12.45",
)


QUICK = Params(context=32, batch=8, steps=40, seeds=(0, 1, 2), windows=8, dimensions=(0, 3, 7),
               thresholds=(0.0, 6.0, 64.0), groups=(8, 64))  # fmt: skip


@dataclass(frozen=True)
class Result:
    """Of the first network: its ``parameters`` (n,), the held-out windows ``tokens`` and the characters that follow,
    ``targets`` (windows, t); ``inputs`` (layer, position, width) and ``weights`` of the layers that read a norm;
    the loss of FP32; errors of products, losses and divergences from FP32's predictions by method and number of outlier
    dimensions, by decomposed method and threshold, by size of an INT4 group.

    ``int8_shares``: of the dimensions, by threshold. ``unchanged``: whether planting leaves every bit of the FP32
    logits, of all networks; those that begin with "each" hold of every network what :attr:`Params.ends` names.
    ``published``: Table 1.
    """

    params: Params
    fp32_loss: np.ndarray
    unchanged: np.ndarray
    errors: np.ndarray
    losses: np.ndarray
    divergences: np.ndarray
    threshold_losses: np.ndarray
    threshold_errors: np.ndarray
    int8_shares: np.ndarray
    int4_errors: np.ndarray
    int4_losses: np.ndarray
    int4_divergences: np.ndarray
    inputs: np.ndarray
    weights: np.ndarray
    published: Digested
    parameters: np.ndarray
    tokens: np.ndarray
    targets: np.ndarray
    each_inputs: np.ndarray
    each_errors: np.ndarray
    each_divergences: np.ndarray
    each_threshold_errors: np.ndarray
    each_int8_shares: np.ndarray
    each_int4_errors: np.ndarray


@one_threaded
def run(params: Params, tick: Tick) -> Result:
    found: list[Arrays] = []
    for i, seed in enumerate(params.seeds):

        def part(done: float, text: str, i: int = i) -> None:
            tick((i + done) / len(params.seeds), text)

        model, tokens, targets = planting.trained(params, seed, lambda done, text: part(0.5 * done, text))
        found.append(planting.measure(params.ends if i else params, model, tokens, targets, part))
    first, *others = found
    six = params.thresholds.index(LEAST_MAGNITUDE)

    def each(name: str, *of_first: int) -> np.ndarray:
        """Of the first network what of the others alone there is."""
        return np.stack([first[name][..., of_first], *(one[name] for one in others)])

    return Result(
        params, **first | {"unchanged": np.concatenate([one["unchanged"] for one in found])},
        each_inputs=np.stack([one["inputs"] for one in found]), each_errors=each("errors", 0, -1),
        each_divergences=each("divergences", 0, -1), each_threshold_errors=each("threshold_errors", 0, six, -1),
        each_int8_shares=each("int8_shares", 0, six, -1), each_int4_errors=each("int4_errors", 0, -1),
        published=np.array(list(TABLE1.values())),
    )  # fmt: skip


def rows(result: Result) -> Columns:
    """A row for each method and number of outlier dimensions, or threshold; for each group size, and of the paper."""
    params, base = result.params, result.fp32_loss
    found: list[tuple[object, ...]] = []
    for i, name in enumerate(NAMES):
        each = zip(params.dimensions, result.errors[i], result.losses[i] - base, result.divergences[i], strict=True)
        found += [("method", name, n, None, error, excess, moved, None) for n, error, excess, moved in each]
    for i, name in enumerate(DECOMPOSED):
        errors, excesses = result.threshold_errors[i], result.threshold_losses[i] - base
        of_each = zip(params.thresholds, errors, excesses, result.int8_shares, strict=True)
        found += [("threshold", name, params.planted, *at, None, share) for *at, share in of_each]
    four = zip(params.groups, result.int4_errors, result.int4_losses - base, result.int4_divergences, strict=True)
    found += [("int4 weights", f"groups of {group}", 0, None, *numbers, None) for group, *numbers in four]
    found += [("paper, C4 perplexity", name, size, None, None, perplexity, None, None)
              for name, line in TABLE1.items() for size, perplexity in zip(SIZES, line, strict=True)]  # fmt: skip
    names = ("what", "method", "outlier_dimensions_or_size", "threshold", "relative_error", "excess_loss_or_perplexity",
             "divergence", "share_in_int8")  # fmt: skip
    return in_columns(names, found)


# --- claims -----------------------------------------------------------------------------------------------------
CLAIMS = Claims()


@CLAIMS.proved("planted outliers change no bit of what the FP32 model computes")
def unchanged(result: Result) -> Outcome:
    said = say("every bit of the logits, {numbers} dimensions made {gain:g} times as large", gain=GAIN)
    return verdict(bool(result.unchanged.all()), said.fill(numbers=joined(map(str, result.params.dimensions), COMMA)))


@CLAIMS.measured("the planted dimensions, and no others, are outlier features by the paper's criterion and of its size")
def criterion(result: Result) -> Outcome:
    magnitude, want = np.abs(result.each_inputs), result.params.was_planted
    positions = (magnitude >= LEAST_MAGNITUDE).mean(axis=2)  # (networks, layers, width)
    layers = (positions > 0).mean(axis=1)
    often = (positions >= planting.LEAST_POSITIONS).mean(axis=1)
    meets = np.minimum(layers, often) >= planting.LEAST_LAYERS
    for found in meets[(meets != want).any(axis=1)]:
        there = np.flatnonzero(want).tolist()
        wrong = say("dimensions {found} meet it, {there} were planted", there=there)
        return failed(wrong.fill(found=np.flatnonzero(found).tolist()))
    ratio = magnitude[..., want].max(axis=(1, 2, 3)) / magnitude[..., ~want].max(axis=(1, 2, 3))
    said = say(
        "{n} dimensions in {layers:.0%} of the layers, {positions:.0%} of the positions, up to {most:.0f}, "
        "{ratio:.0f} times the largest other feature",
        n=want.sum(), layers=layers[:, want].min(), positions=positions[..., want].mean(), most=magnitude.max(),
        ratio=ratio.mean(),
    )  # fmt: skip
    holds = bool((planting.LARGER[0] <= ratio).all() and (ratio <= planting.LARGER[1]).all())
    return measured(holds, said, Sample(len(ratio), float(ratio.std()), planting.LARGER[0]))


@CLAIMS.library("INT32 sums are torch._int_mm's")
def int32_sums(result: Result) -> Outcome:
    import torch

    from ...nn.int8_layers import saturates_here

    if saturates_here():
        return absent(say("torch._int_mm saturates here, where oneDNN uses no VNNI instructions"))
    weights = integers.quantize(result.weights, integers.scheme(result.weights, "int8", "column"))
    compared = 0
    for layer, x in enumerate(result.inputs):
        codes = integers.quantize(x, integers.scheme(x, "int8", "row"))
        theirs = torch._int_mm(torch.from_numpy(codes), torch.from_numpy(weights)).numpy()
        ours = integers.int_matmul(codes, weights)
        if not np.array_equal(ours, theirs):
            wrong = say("layer {layer}: {n} of {all} sums differ", layer=layer, n=(ours != theirs).sum(), all=ours.size)
            return failed(wrong)
        compared += ours.size
    return passed(say("{n:,} INT32 sums", n=compared))


@CLAIMS.proved("errors, losses and divergences are those of integer products called from outside the layers")
@one_threaded
def recounted(result: Result) -> Outcome:
    """Every error, loss and divergence of the first network by another route: its own layers call NumPy's products.

    Only sums of float64 numbers are taken in another order.
    """
    import torch
    from torch.nn.functional import linear as product_of

    params, model = result.params, planting.untrained(result.params)
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(torch.from_numpy(result.parameters), model.parameters())
    windows = torch.from_numpy(result.tokens), torch.from_numpy(result.targets)

    def by(*how: Any) -> Layers:
        def layer(linear: Any, x: Any, bias: Any) -> Any:
            product = torch.from_numpy(integers.matmul(x.flatten(0, -2).numpy(), linear.weight.numpy().T, *how))
            return (product if bias is None else product + bias).reshape(*x.shape[:-1], -1)

        return layer

    def grouped(group: int) -> Layers:
        def layer(linear: Any, x: Any, bias: Any) -> Any:
            return product_of(
                x, torch.from_numpy(integers.quantize_groups(linear.weight.numpy(), group).values()), bias
            )

        return layer

    again: list[tuple[tuple[str, ...], tuple[int, ...], int, Layers]]
    again = [(("errors", "losses", "divergences"), (i, j), n, by(method))
             for j, n in enumerate(params.dimensions) for i, method in enumerate(NAMES)]  # fmt: skip
    again += [(("threshold_errors", "threshold_losses"), (i, k), params.planted, by(method, threshold))
              for k, threshold in enumerate(params.thresholds) for i, method in enumerate(DECOMPOSED)]  # fmt: skip
    again += [(("int4_errors", "int4_losses", "int4_divergences"), (g,), 0, grouped(group))
              for g, group in enumerate(params.groups)]  # fmt: skip
    for names, place, n, layers in again:
        found = planting.counted(planting.planted(model, n), layers, *windows)
        for name, want in zip(names, found, strict=False):  # by threshold there are no divergences
            got = float(getattr(result, name)[place])
            if not np.isclose(got, want, rtol=1e-9, atol=1e-13):
                wrong = say("{name} {place}: {got}, counted again {want}", name=name, place=list(place))
                return failed(wrong.fill(got=got, want=want))
    base = planting.counted(model, lambda linear, x, bias: product_of(x, linear.weight, bias), *windows)[1]
    if not np.isclose(result.fp32_loss[0], base, rtol=1e-9, atol=0):
        return failed(say("the loss in FP32 is {got}, counted again {want}", got=result.fp32_loss[0], want=base))
    return passed(say("{n:,} errors, losses and divergences", n=sum(len(names) for names, *_ in again)))


@CLAIMS.measured("with outliers every method's error grows at least threefold, a decomposed one's by less than a fifth")
def decomposition(result: Result) -> Outcome:
    """Errors with the most outliers over those with none, by method, in octaves: the one that grows least, and most.

    The margins are those that the claim names.
    """
    octaves = np.log2(result.each_errors[..., -1] / result.each_errors[..., 0])
    growth = dict(zip(NAMES, 2 ** octaves.mean(axis=0), strict=True))
    said = say("absmax {absmax:.1f}×, zeropoint {zeropoint:.1f}×, vectorwise {vectorwise:.1f}×, llm_int8 "
               "{llm_int8:.1f}×; least of the plain ones, octaves").fill(**growth)  # fmt: skip
    apart = np.isin(NAMES, DECOMPOSED)
    least, most = octaves[:, ~apart].min(axis=1), octaves[:, apart].max(axis=1)
    return both(superior(least, 0.0, np.log2(3), said),
                superior(0.0, most, -np.log2(1.2), say("most of the decomposed ones, octaves below 0")))  # fmt: skip


@CLAIMS.measured("LLM.int8() predicts three times nearer to FP32 than vector-wise INT8")
def prediction(result: Result) -> Outcome:
    """How far the predicted distributions move with the most outliers; the margin is the claim's factor of three."""
    plain, apart = (result.each_divergences[:, AT[name], -1] for name in ("vectorwise", "llm_int8"))
    said = say("divergence {plain:.2f} against {apart:.3f} millinats, octaves")
    said = said.fill(plain=1e3 * plain.mean(), apart=1e3 * apart.mean())
    return superior(np.log2(plain), np.log2(apart), np.log2(3), said)


@CLAIMS.measured("at the paper's threshold of 6 outlier dimensions alone leave INT8, and most of the error with them")
def threshold_6(result: Result) -> Outcome:
    """A threshold between the ordinary features and the outliers: of the dimensions that leave INT8 each was planted,
    and of those planted nineteen in twenty leave. The margin: the error of a threshold that nothing reaches is thrice.
    """
    shares, errors, want = result.each_int8_shares, result.each_threshold_errors, result.params.was_planted
    leaves = np.abs(result.each_inputs).max(axis=2) >= LEAST_MAGNITUDE  # (networks, layers, width)
    mean, own = shares.mean(axis=0), errors[:, DECOMPOSED.index("llm_int8")].mean(axis=0)
    said = say("at 6, {six:.1%} of the dimensions stay in INT8, error {error:.2%}; at {last:g}, {most:.1%} and "
               "{worst:.2%}; at 0, all in FP16, {fp16:.3%}", six=mean[1], error=own[1], most=mean[-1], worst=own[-1],
               last=result.params.thresholds[-1], fp16=own[0])  # fmt: skip
    if leaves[..., ~want].any() or leaves[..., want].mean() < 0.95:
        return failed(joined((said, say("other dimensions leave, or outliers stay")), CLAUSE))
    if not np.allclose(shares[:, 1], 1 - leaves.mean(axis=(1, 2)), rtol=0, atol=1e-12):
        return failed(joined((said, say("recounted, {share:.1%}", share=1 - leaves.mean())), CLAUSE))
    falls = np.log2(errors[..., 1:].min(axis=2) / errors[..., 0]).min(axis=1)
    gains = np.log2(errors[..., -1] / errors[..., 1]).min(axis=1)
    saved = joined((said, say("error saved at 6, octaves")), CLAUSE)
    return both(superior(gains, 0.0, np.log2(3), saved),
                superior(falls, 0.0, 0.0, say("saved once more at 0, octaves")))  # fmt: skip


@CLAIMS.measured("INT4 weights err less in small groups than in large ones")
def int4_groups(result: Result) -> Outcome:
    """Products of INT4 weights with the smallest and the largest groups; the margin is a quarter of an octave, 19%."""
    (small, large), groups = result.each_int4_errors.T, result.params.groups
    said = say("error in groups of {least}: {small:.2%}, of {most}: {large:.2%}, octaves")
    said = said.fill(least=groups[0], small=small.mean(), most=groups[-1], large=large.mean())
    return superior(np.log2(large), np.log2(small), 0.25, said)


@CLAIMS.library("the paper's Table 1 is drawn as published")
def table1(result: Result) -> Outcome:
    again = np.array([line.split() for line in TRANSCRIPT], np.float64).T
    if not np.array_equal(result.published, again):
        return failed(say("a number of the table differs from the second transcript"))
    by = dict(zip(TABLE1, again / again[0] - 1, strict=True))
    said = say("at 13B vector-wise {plain:+.0%}; LLM.int8() within {apart:.1%}, with zero points within {points:.1%}")
    return passed(said.fill(plain=by["vectorwise"][-1], apart=np.abs(by["llm_int8"]).max(),
                            points=np.abs(by["zeropoint_llm_int8"]).max()))  # fmt: skip


# --- what a GPU must compute ------------------------------------------------------------------------------------
SHAPES = ((32, 64, 64), (17, 256, 128), (128, 1024, 24))
METHODS = ("absmax", "vectorwise", "zeropoint_vectorwise", "llm_int8", "zeropoint_llm_int8")
WRAPPING_K = 131072  # so many products of (-128)^2 are 2^31


def product_inputs() -> Arrays:
    """Operands of the exact products: random codes from -128 to 127, one row and one column of -128."""
    found: Arrays = {}
    for i, (m, k, n) in enumerate(SHAPES):
        found[f"a{i}"] = philox_bits(500 + 2 * i, m * k, np.uint8).reshape(m, k)
        found[f"b{i}"] = philox_bits(501 + 2 * i, k * n, np.uint8).reshape(k, n)
        found[f"a{i}"][0], found[f"b{i}"][:, 0] = 0x80, 0x80
    return found


def device_products(inputs: Arrays, device: str) -> Arrays:
    from ...nn.int8_layers import int_mm

    held = {name: tensor(codes, "int8", device) for name, codes in inputs.items()}
    return {f"c{i}": bits(int_mm(held[f"a{i}"], held[f"b{i}"])) for i in range(len(SHAPES))}


def lab_products(inputs: Arrays, meta: Meta) -> Arrays:
    held = {name: codes.view(np.int8) for name, codes in inputs.items()}
    return {f"c{i}": integers.int_matmul(held[f"a{i}"], held[f"b{i}"]).view(np.uint32) for i in range(len(SHAPES))}


def wrapping_inputs() -> Arrays:
    """The code of -128, and numbers of products of which the last exceeds INT32."""
    return {"code": np.array([0x80], np.uint8), "k": np.array([WRAPPING_K - 8, WRAPPING_K], np.uint32)}


def device_wrapping(inputs: Arrays, device: str) -> Arrays:
    """One element of the product of two constant matrices for each K."""
    import torch

    from ...nn.int8_layers import int_mm

    value = int(inputs["code"].view(np.int8)[0])
    found = []
    for k in inputs["k"].tolist():
        a, b = (torch.full(shape, value, dtype=torch.int8, device=device) for shape in ((32, k), (k, 8)))
        found.append(bits(int_mm(a, b))[0, 0])
    return {"c": np.array(found, np.uint32)}


def lab_wrapping(inputs: Arrays, meta: Meta) -> Arrays:
    """INT32 sums wrap around."""
    value = int(inputs["code"].view(np.int8)[0])
    return {"c": np.array([(value * value * k) % 2**32 for k in inputs["k"].tolist()], np.uint32)}


def layer_inputs() -> Arrays:
    """Activations with four outlier dimensions, and weights, as FP32's bits: sums of eight bytes, nearly normal."""

    def normal(key: int, rows: int, columns: int) -> np.ndarray:
        raw = philox_bits(key, rows * columns * 8, np.uint8).astype(np.float32).reshape(rows, columns, 8)
        return np.asarray((raw.sum(axis=2) - np.float32(1020)) / np.float32(209))

    x, w = normal(510, 48, 96), normal(511, 96, 40) / np.float32(16)
    x[:, [5, 19, 44, 83]] *= np.float32(16)
    return {"x": x.view(np.uint32), "w": w.view(np.uint32)}


def device_layers(inputs: Arrays, device: str) -> Arrays:
    import torch

    from ...nn import Int8Linear

    x, w = (tensor(inputs[name], "fp32", "cpu") for name in ("x", "w"))
    linear = torch.nn.Linear(w.shape[0], w.shape[1], bias=False)
    with torch.no_grad():
        linear.weight.copy_(w.T)
    return {name: bits(Int8Linear(linear, name).to(device)(x.to(device))) for name in METHODS}


def lab_layers(inputs: Arrays, meta: Meta) -> Arrays:
    x, w = (inputs[name].view(np.float32) for name in ("x", "w"))
    return {name: integers.matmul(x, w, name).view(np.uint32) for name in METHODS}


def cases(params: Params) -> tuple[Case, ...]:
    """Exact INT8 products, what a sum beyond INT32 becomes, and five methods with their scales and outliers."""
    sums = {f"c{i}": "bits32" for i in range(len(SHAPES))}
    return (
        Case("int8_products", product_inputs, device_products, lab_products, sums),
        Case("int32_wraps", wrapping_inputs, device_wrapping, lab_wrapping, {"c": "bits32"}),
        Case("methods", layer_inputs, device_layers, lab_layers, dict.fromkeys(METHODS, "fp32")),
    )


# --- figures ----------------------------------------------------------------------------------------------------

# What a method is called in a legend, and its series: the two of the story stand out.
DRAWN = {
    "absmax": ("absmax", 4),
    "zeropoint": ("zero-point", 6),
    "rowwise": ("row-wise", 1),
    "vectorwise": ("vector-wise", 0),
    "zeropoint_vectorwise": ("zero-point vector-wise", 2),
    "rowwise_decomposed": ("row-wise + FP16 outliers", 5),
    "llm_int8": ("LLM.int8()", 3),
    "zeropoint_llm_int8": ("zero-point LLM.int8()", 7),
}


def outliers(result: Result) -> draw.Figure:
    figure = draw.new_figure(8, 10)
    parts: Any = figure.subfigures(2, 1, height_ratios=[1, 1.3])
    above, below = parts
    draw_features(above.subplots(), result)
    error, moved = below.subplots(1, 2)
    draw_methods(error, np.array(result.params.dimensions), 100 * result.errors)
    error.set_yscale("log")
    error.set_yticks([0.3, 0.5, 1, 2, 5], ["0.3", "0.5", "1", "2", "5"])
    error.set(ylabel="relative error (%)", title="Error of the INT8 products")
    draw_methods(moved, np.array(result.params.dimensions), result.divergences)
    moved.set(yscale="log", ylabel="divergence from FP32's (nats)", title="Predictions of the model")
    for ax in (error, moved):
        ax.yaxis.set_minor_formatter("")
        ax.set_xlabel("outlier dimensions")
    below.legend(*error.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def remedies(result: Result) -> draw.Figure:
    figure = draw.new_figure(8, 10)
    parts: Any = figure.subfigures(2, 1, height_ratios=[1, 1.3])
    above, below = parts
    draw_thresholds(above.subplots(), result)
    table, four = below.subplots(1, 2)
    draw_table(table, result.published)
    draw_int4(four, result)
    below.legend(*table.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def style(name: str) -> Look:
    return draw.look(DRAWN[name][1])


def draw_features(ax: draw.Axes, result: Result) -> None:
    theme, params = draw.current(), result.params
    magnitude, every, was = np.abs(result.inputs), np.arange(params.width), params.was_planted
    largest, share = magnitude.max(axis=1), (magnitude[..., was] >= LEAST_MAGNITUDE).mean()
    for layer, row in enumerate(largest):
        offset = (layer - (len(largest) - 1) / 2) * 0.2
        ax.vlines(every + offset, 0.5, row, colors=[theme.series[int(x)] for x in was], linewidth=1.2)
    ax.axhline(LEAST_MAGNITUDE, color=theme.ink, linewidth=1.0, linestyle=(0, (4, 2)))
    draw.note(ax, "threshold 6: from here a dimension goes to FP16", (params.width - 0.4, LEAST_MAGNITUDE), (0, 3),
              ha="right", va="bottom",
              bbox={"boxstyle": "round,pad=0.15", "fc": theme.background, "ec": "none"})  # fmt: skip
    ax.set_yscale("log", base=2)
    ax.set_ylim(0.5, 2 ** np.ceil(np.log2(largest.max()) + 0.3))
    ax.yaxis.set_major_formatter("{x:g}")
    where = (
        f"feature dimension (bars side by side: the layers)\n{params.layers} blocks of width {params.width}, trained "
        f"here; norm outputs × {GAIN:g}, their readers' weights / {GAIN:g}:\nin FP32 the same bits. {share:.0%} of the "
        f"planted values are 6 or more; in the paper's model of\n6.7 billion parameters outliers appear in "
        f"{POSITIONS_67B:.0%} of the positions."
    )
    ax.set(xlim=(-0.7, params.width - 0.3), xlabel=where, ylabel="largest magnitude",
           title=f"Inputs of the products that read a layer norm, {params.planted} outlier dimensions planted",
    )  # fmt: skip
    ax.grid(visible=False, axis="x")


def draw_methods(ax: draw.Axes, x: np.ndarray, values: np.ndarray, names: tuple[str, ...] = NAMES) -> None:
    """A line a method: values (method, x); those with outliers in FP16 are thicker."""
    from matplotlib.ticker import MaxNLocator

    for name, line in zip(names, values, strict=True):
        thick = name in DECOMPOSED
        ax.plot(x, line, **style(name).marked, label=DRAWN[name][0], linewidth=2.0 if thick else 1.3,
                markersize=6 if thick else 5, clip_on=False)  # fmt: skip
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def draw_thresholds(ax: draw.Axes, result: Result) -> None:
    """Errors of the methods that have a threshold, and the share of dimensions in FP16, against it."""
    theme, thresholds = draw.current(), result.params.thresholds
    x, six = np.arange(len(thresholds)), thresholds.index(LEAST_MAGNITUDE)
    ax.bar(x, 100 * (1 - result.int8_shares), width=0.9, color=theme.grid, edgecolor=theme.background)
    ax.set(ylim=(0, 105), ylabel="dimensions in FP16 (%), bars")
    ax.grid(visible=False)
    twin = ax.twinx()
    twin.spines["right"].set_visible(True)
    draw_methods(twin, x, 100 * result.threshold_errors, DECOMPOSED)
    twin.set_yscale("log")
    twin.yaxis.set_major_formatter("{x:g}")
    twin.set_ylabel("error of the products (%), lines")
    twin.grid(visible=False)
    ax.set_xticks(x, [f"{t:g}" for t in thresholds])
    ax.axvline(six, color=theme.ink, linewidth=1.0, linestyle=(0, (4, 2)), ymax=0.88)
    ax.text(six, 95, "the paper's", ha="center", va="bottom", fontsize=9)
    ax.set(xlabel="threshold", title=f"By threshold ({result.params.planted} outlier dimensions)")


def draw_table(ax: draw.Axes, table: np.ndarray) -> None:
    lines, x = dict(zip(TABLE1, table, strict=True)), np.arange(len(SIZES))
    draw_methods(ax, x, np.array([100 * (lines[name] / lines[BASELINE] - 1) for name in NAMES]))
    ax.set_yscale("symlog", linthresh=1)
    ax.set_yticks([-1, 0, 1, 10, 100], ["−1", "0", "1", "10", "100"])
    ax.set_ylim(-1.2, 400)
    ax.axhline(0, color=draw.current().ink, linewidth=0.8)
    ax.set_xticks(x, SIZES)
    ax.set(xlabel="parameters", ylabel="perplexity above FP32's (%)", title="The paper's Table 1, as published")


def draw_int4(ax: draw.Axes, result: Result) -> None:
    theme, groups, errors = draw.current(), result.params.groups, 100 * result.int4_errors
    width = 4 + 16 / np.array(groups)
    ax.plot(width, errors, color=theme.ink, marker="o", markerfacecolor=theme.background, clip_on=False)
    for x, y, group in zip(width, errors, groups, strict=True):
        draw.note(ax, f"{group}", (x, y), (0, 7), ha="center")
    eight, vectorwise = 100 * float(result.errors[AT["vectorwise"], 0]), style("vectorwise")
    ax.axhline(eight, **vectorwise.line, linewidth=1.2)
    ax.text(1, eight, "vector-wise INT8, no outliers", transform=ax.get_yaxis_transform(), ha="right", va="bottom",
            fontsize=9, color=vectorwise.color)  # fmt: skip
    ax.set(yscale="log", ylim=(eight / 3, 3 * errors.max()), xlabel="bits a weight, an FP16 scale a group counted")
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set(ylabel="error of the products (%)", title="Weight-only INT4, by size of a group")


EXPERIMENT = Experiment(
    title=say("LLM.int8() and outlier features"),
    question=say("What do a few large features do to an INT8 product, and which method stands them?"),
    budget=5.0, full=Params(), quick=QUICK, result=Result, run=run, rows=rows, claims=CLAIMS,
    figures=(outliers, remedies), cases=cases,
)  # fmt: skip

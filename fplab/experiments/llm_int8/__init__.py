"""LLM.int8(): why one large feature spoils an INT8 product, and what taking it apart in FP16 gives back.

A small transformer is trained here, and outlier features are planted in it (:mod:`.planting`): a few dimensions of the
layer norms' output are made 16 times as large and the weights that read them 16 times as small, which changes not one
bit of what the model computes. Their size and how often they appear are those that the paper measured in models of 6.7
billion parameters and more; that they are planted, that they lie on both sides of zero, and that they are a larger
share of so narrow a model are differences. After T. Dettmers et al., LLM.int8(): 8-bit Matrix Multiplication for
Transformers at Scale (arXiv 2208.07339), whose Table 1 stands beside.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ... import draw, integers
from ...hardware.cases import Arrays, Case, philox_bits
from ...hardware.programs import program
from ...words import CLAUSE, joined, say
from ..frame import Experiment, Params, Result
from ..outcomes import Outcome, Part, Sample, absent, failed, measured
from ..panels import bars, heat, line, with_
from ..quantities import Columns, above, beside, equal, in_columns, of, superior, together
from ..statistics import both
from ..statistics import superior as exceeds
from . import planting
from .planting import SKIP, outlier_dimensions, planted

# The paper's criterion of an outlier feature:
LEAST_MAGNITUDE = 6.0  # this magnitude ...
LEAST_LAYERS = 0.25  # ... in this share of the layers ...
LEAST_POSITIONS = 0.06  # ... and of the positions of a sequence
LARGER = (3.0, 20.0)  # how many times as large as the largest of the other features
METHODS = [method.name for method in integers.METHODS]
DECOMPOSED = [method.name for method in integers.METHODS if method.decompose]  # those that have a threshold
PLAIN = [name for name in METHODS if name not in DECOMPOSED]

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
# The table once more, a size of the model a line, the methods in the order of the paper.
TRANSCRIPT = (
    "25.65 87.76 56.66 30.93 35.84 25.72 30.76 25.83 25.69",
    "15.91 16.55 16.24 17.08 16.82 15.94 16.19 15.93 15.92",
    "14.43 15.11 14.76 15.24 14.98 14.36 14.65 14.44 14.43",
    "13.30 14.59 13.49 14.13 14.13 13.38 13.25 13.24 13.24",
    "12.45 19.08 13.94 16.49 16.48 13.47 12.46 12.45 12.45",
)

# The transformer; its training, once for each seed; held-out windows of ``context`` characters; numbers of outlier
# dimensions planted, and how many for the thresholds; weights of INT4 that share a scale.
E = Experiment(
    "LLM.int8() and outlier features",
    "What do a few large features do to an INT8 product, and which method stands them?",
    budget=5.0, one_thread=True,
    full={"width": 64, "layers": 2, "heads": 4, "context": 64, "batch": 16, "steps": 600, "lr": 3e-3,
          "seeds": (0, 1, 2, 3, 4), "windows": 128, "dimensions": (0, 1, 2, 3, 4, 5, 6, 7), "planted": 6,
          "thresholds": (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0),
          "groups": (4, 8, 16, 32, 64)},
    quick={"context": 32, "batch": 8, "steps": 40, "seeds": (0, 1, 2), "windows": 8, "dimensions": (0, 3, 7),
           "thresholds": (0.0, 6.0, 64.0), "groups": (8, 64)},
)  # fmt: skip


@E.cache
def network(p: Params, seed: int) -> Any:
    """A trained transformer, held-out windows and the characters that follow."""
    return planting.trained(p, seed)


@E.cache
def in_fp32(p: Params, seed: int) -> Any:
    """What the transformer computes: logits, loss, and exact products of the layers that read a norm."""
    model, tokens, targets = network(p, seed)
    exact = [x.double() @ linear.weight.detach().double().T for linear, x in planting.readers(model, tokens)]
    return *planting.logits_and_loss(model, tokens, targets), exact


@E.cache
def outlying(p: Params, seed: int, n: int) -> Any:
    """A copy with ``n`` outlier dimensions, and the layers that read a norm with their inputs."""
    model = planting.planted(network(p, seed)[0], n)
    return model, planting.readers(model, network(p, seed)[1])


def predicted(p: Params, seed: int, narrow: Any) -> tuple[float, float]:
    """Loss and divergence from FP32 of a narrow model."""
    logits, loss = planting.logits_and_loss(narrow, *network(p, seed)[1:])
    return loss, planting.divergence(in_fp32(p, seed)[0], logits)


def left_out(p: Params, seed: int, value: float, values: tuple[float, ...]) -> bool:
    """Whether a further network is not measured there: only at the least, at 6 and at the most."""
    return seed != p.seeds[0] and value not in (values[0], LEAST_MAGNITUDE, values[-1])


@E.measure("fp32_loss", axes={"seed": "seeds"}, unit="nats")
def fp32_loss(p: Params, seed: int) -> float:
    """The loss in FP32."""
    return float(in_fp32(p, seed)[1])


@E.measure("unchanged", axes={"seed": "seeds", "dimensions": "dimensions"})
def unchanged_logits(p: Params, seed: int, dimensions: int) -> float:
    """The share of the logits whose bits planting leaves."""
    logits, _ = planting.logits_and_loss(outlying(p, seed, dimensions)[0], *network(p, seed)[1:])
    return float((logits == in_fp32(p, seed)[0]).mean())


@E.measure("errors", "losses", "divergences", axes={"seed": "seeds", "method": METHODS, "dimensions": "dimensions"})
def by_method(p: Params, seed: int, method: str, dimensions: int) -> tuple[float, ...] | None:
    """INT8 by a method: error of the products that read a norm, loss and divergence."""
    from ...nn import int8_linears

    if left_out(p, seed, dimensions, p.dimensions):
        return None
    model, reading = outlying(p, seed, dimensions)
    error = planting.product_error(reading, in_fp32(p, seed)[2], method)
    return error, *predicted(p, seed, int8_linears(model, method, skip=SKIP))


@E.measure("threshold_errors", "threshold_losses", axes={"seed": "seeds", "method": DECOMPOSED,
                                                         "threshold": "thresholds"})  # fmt: skip
def by_threshold(p: Params, seed: int, method: str, threshold: float) -> tuple[float, float] | None:
    """INT8 by a decomposed method with outliers, by the magnitude from which a dimension is one."""
    from ...nn import int8_linears

    if left_out(p, seed, threshold, p.thresholds):
        return None
    model, reading = outlying(p, seed, p.planted)
    error = planting.product_error(reading, in_fp32(p, seed)[2], method, threshold)
    return error, predicted(p, seed, int8_linears(model, method, threshold, skip=SKIP))[0]


@E.measure("int8_shares", axes={"seed": "seeds", "threshold": "thresholds"})
def in_int8(p: Params, seed: int, threshold: float) -> float:
    """The share of the dimensions that stay in INT8."""
    reading = outlying(p, seed, p.planted)[1]
    return float(1 - np.mean([integers.outliers(x.numpy(), threshold) for _, x in reading]))


@E.measure("int4_errors", "int4_losses", "int4_divergences", axes={"seed": "seeds", "group": "groups"})
def by_group(p: Params, seed: int, group: int) -> tuple[float, ...] | None:
    """INT4 weights of which so many share a scale, without outliers."""
    from ...nn import Int4Linear, int4_linears

    if left_out(p, seed, group, p.groups):
        return None
    model, tokens, _ = network(p, seed)
    reading = planting.readers(model, tokens)
    layers = [Int4Linear(linear, group) for linear, _ in reading]
    return planting.relative_error(layers, reading, in_fp32(p, seed)[2]), \
        *predicted(p, seed, int4_linears(model, group, skip=SKIP))  # fmt: skip


@E.measure("inputs", axes={"seed": "seeds"}, dims=("layer", "position", "width"))
def inputs_of_readers(p: Params, seed: int) -> np.ndarray:
    """What the layers that read a norm take in, with outliers."""
    return np.stack([x.numpy() for _, x in outlying(p, seed, p.planted)[1]])


@E.measure("published", axes={"method": TABLE1, "size": ...}, digested=True)
def published_table(p: Params, method: str) -> dict[str, float]:
    """The paper's Table 1: perplexities on C4."""
    return dict(zip(SIZES, TABLE1[method], strict=True))


@E.table
def rows(r: Result) -> Columns:
    """A row for each method and number of outlier dimensions, or threshold; for each group size, and of the paper."""
    first, base = r.p.seeds[0], float(r.fp32_loss[0])

    def numbers(name: str, **at: Any) -> float:
        return float(getattr(r, name).sel({"seed": first, **at}))

    rows: list[tuple[object, ...]] = []
    for method in METHODS:
        for n in r.p.dimensions:
            error, loss, moved = (numbers(x, method=method, dimensions=n) for x in ("errors", "losses", "divergences"))
            rows.append(("method", method, n, None, error, loss - base, moved, None))
    for method in DECOMPOSED:
        for t in r.p.thresholds:
            error, loss = (numbers(f"threshold_{x}", method=method, threshold=t) for x in ("errors", "losses"))
            share = numbers("int8_shares", threshold=t)
            rows.append(("threshold", method, r.p.planted, t, error, loss - base, None, share))
    for g in r.p.groups:
        error, loss, moved = (numbers(f"int4_{x}", group=g) for x in ("errors", "losses", "divergences"))
        rows.append(("int4 weights", f"groups of {g}", 0, None, error, loss - base, moved, None))
    rows += [("paper, C4 perplexity", method, size, None, None, perplexity, None, None)
              for method, line in TABLE1.items() for size, perplexity in zip(SIZES, line, strict=True)]  # fmt: skip
    names = ("what", "method", "outlier_dimensions_or_size", "threshold", "relative_error", "excess_loss_or_perplexity",
             "divergence", "share_in_int8")  # fmt: skip
    return in_columns(names, rows)


# --- claims -----------------------------------------------------------------------------------------------------
def was_planted(p: Params) -> np.ndarray:
    """Which dimensions are outliers of the model on which thresholds are tried, bool (width,)."""
    return np.isin(np.arange(p.width), outlier_dimensions(p.width, p.planted))


growth = of("errors", dimensions=-1) / of("errors", dimensions=0)
E.claim(
    equal("unchanged", "planted outliers change no bit of what the FP32 model computes", of("unchanged"), 1, "proved"),
    # Errors with the most outliers over those with none: of the method that grows least, and most.
    together("decomposition",
             "with outliers every method's error grows at least threefold, a decomposed one's by less than a fifth",
             above(growth.at(method=PLAIN).min("method").log2, by=float(np.log2(3))),
             above(0.0, growth.at(method=DECOMPOSED).max("method").log2, by=-float(np.log2(1.2)))),
    superior("prediction", "LLM.int8() predicts three times nearer to FP32 than vector-wise INT8",
             of("divergences", method="vectorwise", dimensions=-1).log2,
             of("divergences", method="llm_int8", dimensions=-1).log2, by=float(np.log2(3))),
    # The margin is a quarter of an octave, 19%.
    superior("int4_groups", "INT4 weights err less in small groups than in large ones",
             of("int4_errors", group=-1).log2, of("int4_errors").then("smallest group", lambda x: x[:, 0]).log2,
             by=0.25),
    equal("table1", "the paper's Table 1 is drawn as published", of("published"),
          np.transpose([line.split() for line in TRANSCRIPT]).astype(float).tolist()),
)  # fmt: skip


@E.measured("the planted dimensions, and no others, are outlier features by the paper's criterion and of its size")
def criterion(r: Result) -> Outcome:
    magnitude, want = np.abs(r.inputs.values), was_planted(r.p)
    positions = (magnitude >= LEAST_MAGNITUDE).mean(axis=2)  # (networks, layers, width)
    layers = (positions > 0).mean(axis=1)
    often = (positions >= LEAST_POSITIONS).mean(axis=1)
    meets = np.minimum(layers, often) >= LEAST_LAYERS
    for row in meets[(meets != want).any(axis=1)]:
        there = np.flatnonzero(want).tolist()
        wrong = say("dimensions {found} meet it, {there} were planted", there=there)
        return failed(wrong.fill(found=np.flatnonzero(row).tolist()))
    ratio = magnitude[..., want].max(axis=(1, 2, 3)) / magnitude[..., ~want].max(axis=(1, 2, 3))
    detail = say(
        "{n} dimensions in {layers:.0%} of the layers, {positions:.0%} of the positions, up to {most:.0f}, "
        "{ratio:.0f} times the largest other feature",
        n=want.sum(), layers=layers[:, want].min(), positions=positions[..., want].mean(), most=magnitude.max(),
        ratio=ratio.mean(),
    )  # fmt: skip
    holds = bool((LARGER[0] <= ratio).all() and (ratio <= LARGER[1]).all())
    return measured(holds, detail, Sample(len(ratio), float(ratio.std()), LARGER[0]))


@E.library("INT32 sums are torch._int_mm's")
def int32_sums(r: Result) -> Iterator[Part]:
    import torch

    from ...nn.int8_layers import saturates_here

    if saturates_here():
        yield absent(say("torch._int_mm saturates here, where oneDNN uses no VNNI instructions"))
    reading = outlying(r.p, r.p.seeds[0], r.p.planted)[1]
    whole = np.concatenate([linear.weight.detach().numpy().T for linear, _ in reading], axis=1)
    weights = integers.quantize(whole, integers.scheme(whole, "int8", "column"))
    for layer, (_, inputs) in enumerate(reading):
        x = inputs.numpy()
        codes = integers.quantize(x, integers.scheme(x, "int8", "row"))
        theirs = torch._int_mm(torch.from_numpy(codes), torch.from_numpy(weights)).numpy()
        yield say("layer {layer}", layer=layer), integers.int_matmul(codes, weights), theirs


@E.proved("errors, losses and divergences are those of integer products called from outside the layers")
def recounted(r: Result) -> Iterator[Part]:
    """Every error, loss and divergence of the first network by another route: its own layers call NumPy's products.

    Only sums of float64 numbers are taken in another order.
    """
    import torch
    from torch.nn.functional import linear as product_of

    first = r.p.seeds[0]
    model, *windows = network(r.p, first)

    def by(*how: Any) -> planting.Layers:
        def layer(linear: Any, x: Any, bias: Any) -> Any:
            product = torch.from_numpy(integers.matmul(x.flatten(0, -2).numpy(), linear.weight.numpy().T, *how))
            return (product if bias is None else product + bias).reshape(*x.shape[:-1], -1)

        return layer

    def grouped(group: int) -> planting.Layers:
        def layer(linear: Any, x: Any, bias: Any) -> Any:
            weight = integers.quantize_groups(linear.weight.numpy(), group).values()
            return product_of(x, torch.from_numpy(weight), bias)

        return layer

    def whole(linear: Any, x: Any, bias: Any) -> Any:
        return product_of(x, linear.weight, bias)

    again: list[tuple[tuple[str, ...], dict[str, Any], int, planting.Layers]]
    again = [(("errors", "losses", "divergences"), {"method": method, "dimensions": n}, n, by(method))
             for n in r.p.dimensions for method in METHODS]  # fmt: skip
    again += [(("threshold_errors", "threshold_losses"), {"method": method, "threshold": t}, r.p.planted, by(method, t))
              for t in r.p.thresholds for method in DECOMPOSED]  # fmt: skip
    again += [(("int4_errors", "int4_losses", "int4_divergences"), {"group": g}, 0, grouped(g)) for g in r.p.groups]
    again += [(("", "fp32_loss"), {}, 0, whole)]
    for names, at, n, layers in again:
        for name, want in zip(names, planting.counted(planted(model, n), layers, *windows), strict=False):
            if name:
                got = float(getattr(r, name).sel({"seed": first, **at}))
                wrong = say("{name} {place}: {got}, recounted {want}", name=name, place=at, got=got, want=want)
                yield wrong, np.isclose(got, want, rtol=1e-9, atol=1e-13)


@E.measured("at the paper's threshold of 6 outlier dimensions alone leave INT8, and most of the error with them")
def threshold_6(r: Result) -> Outcome:
    """A threshold between the ordinary features and the outliers: of the dimensions that leave INT8 each was planted,
    and of those planted nineteen in twenty leave. The margin: the error of a threshold that nothing reaches is thrice.
    """
    three = [r.p.thresholds[0], LEAST_MAGNITUDE, r.p.thresholds[-1]]
    shares, errors = r.int8_shares.sel(threshold=three).values, r.threshold_errors.sel(threshold=three).values
    want, leaves = was_planted(r.p), np.abs(r.inputs.values).max(axis=2) >= LEAST_MAGNITUDE  # (networks, layers, width)
    mean, own = shares.mean(axis=0), errors[:, DECOMPOSED.index("llm_int8")].mean(axis=0)
    detail = say("at 6, {six:.1%} of the dimensions stay in INT8, error {error:.2%}; at {last:g}, {most:.1%} and "
                 "{worst:.2%}; at 0, all in FP16, {fp16:.3%}", six=mean[1], error=own[1], most=mean[-1], worst=own[-1],
                 last=r.p.thresholds[-1], fp16=own[0])  # fmt: skip
    if leaves[..., ~want].any() or leaves[..., want].mean() < 0.95:
        return failed(joined((detail, say("other dimensions leave, or outliers stay")), CLAUSE))
    if not np.allclose(shares[:, 1], 1 - leaves.mean(axis=(1, 2)), rtol=0, atol=1e-12):
        return failed(joined((detail, say("recounted, {share:.1%}", share=1 - leaves.mean())), CLAUSE))
    falls = np.log2(errors[..., 1:].min(axis=2) / errors[..., 0]).min(axis=1)
    gains = np.log2(errors[..., -1] / errors[..., 1]).min(axis=1)
    saved = joined((detail, say("error saved at 6, octaves")), CLAUSE)
    return both(exceeds(gains, 0.0, np.log2(3), saved),
                exceeds(falls, 0.0, 0.0, say("saved once more at 0, octaves")))  # fmt: skip


E.answer("{n} outlier dimensions take INT8's error from {before:.1%} to {after:.1%}; LLM.int8() stays at {apart:.1%}",
         n=lambda r: r.p.dimensions[-1], before=of("errors", method="vectorwise", dimensions=0),
         after=of("errors", method="vectorwise", dimensions=-1),
         apart=of("errors", method="llm_int8", dimensions=-1))  # fmt: skip


# --- what a GPU must compute ------------------------------------------------------------------------------------
SHAPES = ((32, 64, 64), (17, 256, 128), (128, 1024, 24))
ASKED = ("absmax", "vectorwise", "zeropoint_vectorwise", "llm_int8", "zeropoint_llm_int8")
WRAPPING_K = 131072  # so many products of (-128)^2 are 2^31


def product_inputs() -> Arrays:
    """Operands of the exact products: random codes from -128 to 127, one row and one column of -128."""
    inputs: Arrays = {}
    for i, (m, k, n) in enumerate(SHAPES):
        inputs[f"a{i}"] = philox_bits(500 + 2 * i, m, k, dtype=np.uint8)
        inputs[f"b{i}"] = philox_bits(501 + 2 * i, k, n, dtype=np.uint8)
        inputs[f"a{i}"][0], inputs[f"b{i}"][:, 0] = 0x80, 0x80
    return inputs


def int8_products(**given: Any) -> dict[str, Any]:
    from ...nn.int8_layers import int_mm

    return {f"c{i}": int_mm(given[f"a{i}"], given[f"b{i}"]) for i in range(len(SHAPES))}


def products_by_lab(**given: np.ndarray) -> dict[str, np.ndarray]:
    return {f"c{i}": integers.int_matmul(given[f"a{i}"], given[f"b{i}"]) for i in range(len(SHAPES))}


def wrapping_inputs() -> Arrays:
    """The code of -128, and numbers of products of which the last exceeds INT32."""
    return {"code": np.array([0x80], np.uint8), "k": np.array([WRAPPING_K - 8, WRAPPING_K], np.uint32)}


def wrapped(code: Any, k: Any) -> dict[str, Any]:
    """One element of the product of two constant matrices for each K."""
    import torch

    from ...nn.int8_layers import int_mm

    products = [int_mm(code.expand(32, n).contiguous(), code.expand(n, 8).contiguous()) for n in k.tolist()]
    return {"c": torch.stack([product[0, 0] for product in products])}


def wrapped_by_lab(code: np.ndarray, k: np.ndarray) -> dict[str, np.ndarray]:
    """INT32 sums wrap around."""
    return {"c": (code.astype(np.int64) ** 2 * k).astype(np.int32)}


def layer_inputs() -> Arrays:
    """Activations with four outlier dimensions, and weights, as FP32's bits: sums of eight bytes, nearly normal."""

    def normal(key: int, rows: int, columns: int) -> np.ndarray:
        raw = philox_bits(key, rows, columns, 8, dtype=np.uint8).astype(np.float32)
        return np.asarray((raw.sum(axis=2) - np.float32(1020)) / np.float32(209))

    x, w = normal(510, 48, 96), normal(511, 96, 40) / np.float32(16)
    x[:, [5, 19, 44, 83]] *= np.float32(16)
    return {"x": x.view(np.uint32), "w": w.view(np.uint32)}


def layers(x: Any, w: Any) -> dict[str, Any]:
    import torch

    from ...nn import Int8Linear

    linear = torch.nn.Linear(w.shape[0], w.shape[1], bias=False)
    with torch.no_grad():
        linear.weight.copy_(w.T)
    return {name: Int8Linear(linear, name).to(x.device)(x) for name in ASKED}


def layers_by_lab(x: np.ndarray, w: np.ndarray) -> dict[str, np.ndarray]:
    return {name: integers.matmul(x, w, name) for name in ASKED}


@E.hardware
def cases(p: Params) -> Iterator[Case]:
    """Exact INT8 products, what a sum beyond INT32 becomes, and five methods with their scales and outliers."""
    sums = {f"c{i}": "bits32" for i in range(len(SHAPES))}
    given = {f"{side}{i}": "int8" for i in range(len(SHAPES)) for side in "ab"}
    yield program("int8_products", product_inputs, given, int8_products, sums, products_by_lab)
    yield program("int32_wraps", wrapping_inputs, {"code": "int8", "k": "int32"}, wrapped, {"c": "bits32"},
                  wrapped_by_lab)  # fmt: skip
    yield program("methods", layer_inputs, {"x": "fp32", "w": "fp32"}, layers, dict.fromkeys(ASKED, "fp32"),
                  layers_by_lab)  # fmt: skip


# --- figures ----------------------------------------------------------------------------------------------------
NAMES = {"zeropoint": "zero-point", "rowwise": "row-wise", "vectorwise": "vector-wise", "llm_int8": "LLM.int8()",
         "zeropoint_vectorwise": "zero-point vector-wise", "rowwise_decomposed": "row-wise + FP16 outliers",
         "zeropoint_llm_int8": "zero-point LLM.int8()"}  # fmt: skip


def threshold(ax: draw.Axes, r: Result) -> None:
    ax.axhline(LEAST_MAGNITUDE, color=draw.current().ink, linewidth=1.0, linestyle=(0, (4, 2)))
    draw.note(ax, "threshold 6: from here a dimension goes to FP16", (r.p.width, LEAST_MAGNITUDE), (0, 3), ha="right")


counts = beside("outliers", {"no outliers": of("errors", dimensions=0), "most outliers": of("errors", dimensions=-1)})
E.figure(
    "outliers",
    with_(line(of("inputs").then("magnitude", lambda x: abs(x[0]).max(["layer", "position"])), x="width", log="y",
               xlabel="feature dimension", ylabel="largest magnitude",
               title=lambda r: f"Inputs of products, {r.p.planted} outlier dimensions planted"), threshold),
    bars((counts * 100).mean("seed"), y="method", hue="outliers", names=NAMES, numbers="{:.1f}",
         xlabel="relative error of the INT8 products (%)",
         title="Outliers spoil every method but those that take them to FP16"),
    size=(8, 9),
)  # fmt: skip
E.figure(
    "remedies",
    bars(of("threshold_errors", method="llm_int8").then("error", lambda x: 100 * x[0]), x="threshold", numbers="{:.2f}",
         xlabel="magnitude from which a dimension goes to FP16", ylabel="error of the products (%)",
         title="LLM.int8(): the paper's threshold of 6 is enough"),
    heat(of("published").then("perplexity", lambda x: 100 * (x[1:] / x[0] - 1)), x="size", y="method", names=NAMES,
         numbers="{:+.1f}", most=20, xlabel="parameters", label="perplexity above FP32's (%)",
         title="The paper's Table 1, as published: what holds at 13B"),
    size=(8, 9),
)  # fmt: skip
E.figure(
    "groups",
    bars(of("int4_errors").then("error", lambda x: 100 * x[0]), x="group", numbers="{:.1f}",
         xlabel="weights that share a scale", ylabel="error of the products (%)",
         title="INT4 weights: the smaller the groups, the smaller the error"),
)  # fmt: skip

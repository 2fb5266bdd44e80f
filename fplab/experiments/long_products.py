"""What the experiments on long products share: operands that occurred, errors in whole numbers, bounds, and panels.

Operands that occurred are weights, activations and gradients of the network of ``underflow``, after its training. Its
three kinds of products, each as the matrix product that a convolution becomes, K in the order of memory:

* forward, ``weights × activations``: conv3's outputs, K = 32 channels * 9 places of the filter;
* backward, ``weights × gradients``: the gradients of conv3's inputs, K = 64 channels * 9;
* ``activations × gradients``: the gradients of conv2's weights, K = images * 64 places: 65,536 with 1,024 images.

The gradients are those of the mean cross-entropy, times a loss scale: the power of two that brings the largest of them
between 1/2 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import exact_products as whole
from ..hardware.cases import philox_bits
from ..words import COMMA, joined, say
from .frame import one_threaded
from .outcomes import Claim, Evidence, Outcome, failed, verdict
from .panels import line, with_
from .quantities import Columns, Quantity, of, table

if TYPE_CHECKING:
    from xarray import DataArray

    from .frame import Experiment, Panel, Params, Result

Array = np.ndarray[Any, Any]
Of = Callable[..., Any]  # of parameters, a kind of operands, and a way to multiply
REAL = ("weights × activations", "weights × gradients", "activations × gradients")
FIRST = 16  # the shortest product
IMAGES = 1024
FEW = 128  # images whose places are rows of B, where K is not over the images
EPOCHS = 8
USED = 1 / 16  # of its bound, at the least, by the largest error of every way: a bound far too large proves little
LENGTH = "K"  # the axis of lengths
EACH = ["row", "column"]  # the axes of products: rows of A and of B
DOTS = (0, (1, 1.5))  # how bounds are drawn


def sizes(log2_last: int) -> Array:
    """16, 32, ... 2**log2_last."""
    return FIRST << np.arange(log2_last - 3)


def lengths(p: Params) -> list[int]:
    """The lengths of an experiment's products."""
    return [int(k) for k in sizes(p.log2_last)]


def half(x: Array) -> Array:
    """FP16 codes, to nearest even."""
    return np.ascontiguousarray(x, np.float16).view(np.uint16)


# --- operands that occurred -------------------------------------------------------------------------------------
@lru_cache(maxsize=1)
@one_threaded
def tensors(seed: int = 0) -> dict[str, Array]:
    """Train, and take one forward and backward pass of 1,024 images: float32 arrays (NCHW), gradients not yet scaled.

    ``x2``, ``g2``: conv2's inputs and the gradients of its outputs; ``x3``, ``g3``, ``w3``: conv3's, and its weights.
    """
    import torch

    from .. import training

    data = training.digits("train")
    model = training.digits_net(seed)
    training.train(model, data, training.Recipe(epochs=EPOCHS, seed=seed))
    images, labels = (t[:IMAGES] for t in training.tensors(data))
    with training.OutputGradients(model) as tap:
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        inputs, gradients = tap.inputs, tap.take()
    arrays = {f"x{i}": np.array(inputs[f"conv{i}"].numpy()) for i in (2, 3)}
    arrays |= {f"g{i}": gradients[f"conv{i}"] for i in (2, 3)}
    return {**arrays, "w3": np.array(model.get_parameter("conv3.weight").detach().numpy())}


def loss_scale(gradients: Array) -> int:
    """The exponent of the power of two that brings the largest gradient between 1/2 and 1."""
    return -int(np.frexp(np.abs(gradients).max())[1])


def patches(x: Array) -> Array:
    """The 3x3 neighbourhoods of every place, zeros around: (n, c, h, w) gives (n, h, w, c, 3, 3)."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    return np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3)).transpose(0, 2, 3, 1, 4, 5)


def matrices(kind: str, seed: int = 0) -> tuple[Array, Array]:
    """A and B of a kind with K as their last dimension, float32, all rows; the gradients with their loss scale."""
    t = tensors(seed)
    if kind == "activations × gradients":
        g = np.ldexp(t["g2"], loss_scale(t["g2"])).transpose(1, 0, 2, 3).reshape(t["g2"].shape[1], -1)
        return patches(t["x2"]).reshape(g.shape[1], -1).T, g
    if kind == "weights × activations":
        return t["w3"].reshape(len(t["w3"]), -1), patches(t["x3"][:FEW]).reshape(-1, t["w3"][0].size)
    g = patches(np.ldexp(t["g3"][:FEW], loss_scale(t["g3"])))[..., ::-1, ::-1]  # the filter goes backward
    w = t["w3"].transpose(1, 0, 2, 3)
    return w.reshape(len(w), -1), g.reshape(-1, w[0].size)


def chosen(kind: str, rows: int, log2_last: int, seed: int = 0) -> tuple[Array, Array]:
    """Some rows of A and B (rows, K), float32; K is the largest power of two that the layer and ``log2_last`` allow."""
    a, b = matrices(kind, seed)
    k = min(1 << log2_last, 1 << (a.shape[1].bit_length() - 1))
    key = REAL.index(kind)
    return a[alive(a, rows, key), :k], b[alive(b, rows, key), :k]


def alive(x: Array, rows: int, key: int) -> Array:
    """The places of some rows, drawn among those that are not zero in FP16 throughout their shortest product."""
    nonzero = np.flatnonzero((half(x[:, :FIRST]) & np.uint16(0x7FFF)).any(axis=1))
    order = np.argsort(philox_bits(key, nonzero.size), kind="stable")
    return np.sort(nonzero[order[:rows]])


# --- products ---------------------------------------------------------------------------------------------------
def on_gpu(a: Array, b: Array, gpu: str, fmt: str, at: Array, **options: Any) -> Array:
    """A chain of blocks over values a (M, K), b (N, K), at every length: float32 (M, N, S).

    ``options``: other arguments of :func:`fplab.tensorcore.matmul`.
    """
    from .. import tensorcore

    total, start, sums = None, 0, []
    for end in at.tolist():
        s = slice(start, end)
        total = tensorcore.matmul(a[:, s], b[:, s].T, total, gpu=gpu, output=fmt, **options)
        sums.append(total)
        start = end
    return np.stack(sums, axis=-1)


@dataclass(frozen=True)
class Sums:
    """At every length (S,) the exact sums of products and of their magnitudes: integers (M, N, S) in units of
    :mod:`fplab.exact_products`."""

    lengths: Array
    exact: Array
    magnitude: Array

    @classmethod
    def of(cls, a: Array, b: Array) -> Sums:
        """Of values a (M, K) and b (N, K)."""
        at = sizes(a.shape[1].bit_length() - 1)
        return cls(at, whole.products(a, b, at), whole.products(np.abs(a), np.abs(b), at))

    def off(self, results: Array) -> Array:
        """Errors of float32 results: integers (M, N, S)."""
        return np.asarray(whole.of_values(results) - self.exact)

    def bound(self, rule: Callable[..., Any], *sums: Array) -> Array:
        """A bound ``rule(K, *sums) -> number`` of every product and length, rounded down: integers (M, N, S)."""
        whole_bound = np.empty(self.exact.shape, object)
        for at in np.ndindex(whole_bound.shape):
            whole_bound[at] = math.floor(rule(int(self.lengths[at[-1]]), *(part[at] for part in sums)))
        return whole_bound

    def shares(self, integers: Array) -> Array:
        """Integers (M, N, S) as shares of sum|a b|, float64."""
        return whole.ratio(integers, self.magnitude)

    def fma_bound(self) -> Array:
        """``K u / (1 - K u)`` sum|a b| with u = 2**-24: of a chain of FP32 fused multiply-adds."""
        return self.bound(lambda k, s: k * s // ((1 << 24) - k), self.magnitude)


def compared(
    E: Experiment, kinds: Sequence[str], ways: Iterable[str], sums: Of, off: Of, bound: Of, prefix: str = ""
) -> None:
    """Measure each way's errors on each kind of operands, signed, and its bounds, both as shares of sum|a b|; how much
    of its bound an error uses; and whether it is above it. All (kind, way, row, column, K), for rows of A and of B.

    ``sums(p, kind)``: the :class:`Sums`; ``off(p, kind, way)``: the errors, and ``bound``: their bounds or None where
    none is proved, both integers (M, N, S). ``prefix``: of the measures' names.
    """
    dims = {"row": None, "column": None, LENGTH: lengths}

    @E.measure(*(prefix + name for name in ("error", "bound", "used", "above")), axes={"kind": kinds, "way": [*ways]},
               dims=dims)  # fmt: skip
    def compare(p: Params, kind: str, way: str) -> tuple[Array, ...]:
        exact, error, limit = sums(p, kind), off(p, kind, way), bound(p, kind, way)
        share = exact.shares(error)
        if limit is None:
            return share, *[np.full(share.shape, np.nan)] * 3
        size = np.abs(error)
        return share, exact.shares(limit), whole.ratio(size, limit), (size > limit).astype(float)


def measured_products(
    E: Experiment, kinds: Sequence[str], made_up: Sequence[str], ways: Iterable[str], sums: Of, product: Of, bound: Of
) -> None:
    """What :func:`compared` measures of ``product(p, kind, way)``, float32 (M, N, S); and the bits of the products of
    made-up operands and of their exact sums, which are the same on every machine."""
    compared(E, kinds, ways := [*ways], sums, lambda *at: sums(*at[:2]).off(product(*at)), bound)
    dims = ("row", "column", "length")

    @E.measure("results", axes={"kind": made_up, "way": ways}, dims=dims, digested=True)
    def multiply(p: Params, kind: str, way: str) -> Array:
        return np.asarray(product(p, kind, way))

    @E.measure("exact", axes={"kind": made_up}, dims=dims, digested=True)
    def add(p: Params, kind: str) -> Array:
        return whole.floats(sums(p, kind).exact)

    @E.table
    def rows(r: Result) -> Columns:
        error, bound = np.abs(r.error), r.bound
        return table(mean=error.mean(EACH), largest=error.max(EACH), bound=bound.max(EACH),
                     used=r.used.max(EACH))  # fmt: skip


def rms(chosen: Callable[[Any], Any] = lambda k: k[-3:], measure: str = "error", **where: Any) -> Quantity:
    """The root mean square of errors over the rows of A and some lengths, of each row of B.

    For the A that there is, rows of B are independent draws. Of one product alone the error vanishes now and then, by
    chance, and its logarithm would decide.
    """

    def over(x: DataArray) -> DataArray:
        long = x.sel({LENGTH: chosen(x[LENGTH].values)}).transpose("row", ..., LENGTH)
        return (long**2).mean(["row", LENGTH]) ** 0.5

    return of(measure, **where).then(f"r.m.s. {of(measure, **where).name}", over)


def within_bounds(id: str, text: str, prefix: str = "", least: float = USED) -> Claim:
    """A proved claim of :func:`compared`: no error is above its bound, and each way uses some of it."""

    def test(r: Result) -> Outcome:
        above, used = getattr(r, f"{prefix}above"), getattr(r, f"{prefix}used")
        if (above > 0).any():
            at = dict(zip(above.dims, np.argwhere((above > 0).values)[0], strict=True))
            where = joined([str(above[axis].values[i]) for axis, i in at.items() if axis in above.coords], COMMA)
            return failed(say("{where}: {share:.3g} of the bound", where=where, share=float(used[at])))
        most = used.max([axis for axis in used.dims if axis != "way"]).dropna("way")
        shares = joined([f"{way} {x:.3f}" for way, x in zip(most.way.values, most.values, strict=True)], COMMA)
        detail = say("{n:,} errors; used at most: {shares}", n=int(above.notnull().sum()), shares=shares)
        return verdict(bool((most >= least).all()), detail)

    return Claim(id, Evidence.PROVED, say(text), test)


# --- panels -----------------------------------------------------------------------------------------------------
def along_k(ax: Any, r: Result) -> None:
    """K in powers of two."""
    from matplotlib.ticker import NullLocator

    ax.set_xscale("log", base=2)
    low, high = ax.dataLim.intervalx
    shown = [k for k in (16, 64, 256, 1024, 4096, 16384, 65536) if low <= k <= high]
    ax.set_xticks(shown, [f"{k // 1024}k" if k >= 1024 else str(k) for k in shown])
    ax.xaxis.set_minor_locator(NullLocator())


def against_k(kind: str, ways: Mapping[str, str], title: str, **how: Any) -> Panel:
    """The largest error of some ways, and what a legend calls them, at every K; their bounds are dotted."""
    where = {"kind": kind, "way": [*ways]}

    def bounds(ax: Any, r: Result) -> None:
        most = r.bound.sel(where).max(EACH)
        for drawn, way in zip(list(ax.lines), ways, strict=True):
            ax.plot(most[LENGTH], most.sel(way=way), color=drawn.get_color(), linewidth=1, linestyle=DOTS)

    largest = of("error", **where).then("largest", lambda x: np.abs(x).where(x != 0).max(EACH))
    how = {
        "legend": {"fontsize": 9, "loc": "lower center", "ncols": 2}, "ylim": (1e-10, 1e-2), "names": ways,
        "xlabel": "K (dotted: the proved bound)", "ylabel": "largest |error| / Σ|a b|", "title": title, **how,
    }  # fmt: skip
    return with_(line(largest, x=LENGTH, hue="way", log="y", marked=True, **how), bounds, along_k)

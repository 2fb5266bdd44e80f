"""What the experiments on long products share: operands that occurred, errors in whole numbers, bounds, and axes.

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
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import exact_products as whole
from ..hardware.cases import philox_bits
from ..words import CLAUSE, COMMA, Text, joined, say
from .base import Columns, Digested, in_columns, one_threaded
from .outcomes import Outcome, failed, verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray[Any, Any]
REAL = ("weights × activations", "weights × gradients", "activations × gradients")
FIRST = 16  # the shortest product
IMAGES = 1024
FEW = 128  # images whose places are rows of B, where K is not over the images
EPOCHS = 8
USED = 1 / 16  # of its bound, at the least, by the largest error of every way: a bound far too large proves little
DOTS = (0, (1, 1.5))  # how bounds are drawn


def sizes(log2_last: int) -> Array:
    """16, 32, ... 2**log2_last."""
    return FIRST << np.arange(log2_last - 3)


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
    found = {f"x{i}": np.array(inputs[f"conv{i}"].numpy()) for i in (2, 3)}
    found |= {f"g{i}": gradients[f"conv{i}"] for i in (2, 3)}
    return {**found, "w3": np.array(model.get_parameter("conv3.weight").detach().numpy())}


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
    places = np.flatnonzero((half(x[:, :FIRST]) & np.uint16(0x7FFF)).any(axis=1))
    order = np.argsort(philox_bits(key, places.size), kind="stable")
    return np.sort(places[order[:rows]])


# --- products ---------------------------------------------------------------------------------------------------
def on_gpu(a: Array, b: Array, gpu: str, fmt: str, at: Array, **options: Any) -> Array:
    """A chain of blocks over values a (M, K), b (N, K), at every length: float32 (M, N, S).

    ``options``: other arguments of :func:`fplab.tensorcore.matmul`.
    """
    from .. import tensorcore

    total, start, found = None, 0, []
    for end in at.tolist():
        s = slice(start, end)
        total = tensorcore.matmul(a[:, s], b[:, s].T, total, gpu=gpu, output=fmt, **options)
        found.append(total)
        start = end
    return np.stack(found, axis=-1)


@dataclass(frozen=True)
class Compared(ABC):
    """One kind of operands, multiplied in several ways.

    ``a`` (M, K) and ``b`` (N, K): codes. ``exact`` and ``magnitude`` (M, N, S): the sums of the products and of their
    magnitudes at every length, integers (:mod:`fplab.exact_products`). ``results`` (way, M, N, S): float32.
    """

    a: Digested
    b: Digested
    exact: Digested
    magnitude: Digested
    results: Digested

    @property
    def lengths(self) -> Array:
        """Every K (S,)."""
        return sizes(self.a.shape[1].bit_length() - 1)

    @cached_property
    def summed(self) -> Array:
        """The results as integers (way, M, N, S)."""
        return whole.of_values(self.results)

    @cached_property
    def errors(self) -> Array:
        """Magnitudes of the errors (way, M, N, S)."""
        return np.asarray(np.abs(self.summed - self.exact))

    @abstractmethod
    def bound_of(self, i: int) -> Array | None:
        """The bound on the errors of one way (M, N, S), rounded down; None where none is proved here."""

    def rounded_down(self, bound: Callable[..., Any], *sums: Array) -> Array:
        """A bound ``(K, *sums) -> number`` of every product and length, as integers (M, N, S)."""
        found = np.empty(sums[0].shape, object)
        for at in np.ndindex(found.shape):
            found[at] = math.floor(bound(int(self.lengths[at[-1]]), *(part[at] for part in sums)))
        return found

    def shares(self, i: int) -> tuple[Array, Array, Array]:
        """At every length, as shares of sum|a b|: mean and largest error, largest bound (NaN: none); float64 (S,)."""
        error, bound = whole.ratio(self.errors[i], self.magnitude), self.bound_of(i)
        nothing = np.full(self.lengths.size, np.nan)
        most = nothing if bound is None else whole.ratio(bound, self.magnitude).max(axis=(0, 1))
        return error.mean(axis=(0, 1)), error.max(axis=(0, 1)), most


def rms_by_draw(x: Array, last: int = 3) -> Array:
    """Root mean square of ``x`` (M, N, S) over the rows of A and the ``last`` lengths, of each row of B (N,).

    For the A that there is, rows of B are independent draws. Of one product alone the error vanishes now and then,
    by chance, and its logarithm would decide.
    """
    return np.asarray(np.sqrt((x[..., -last:] ** 2).mean(axis=(0, 2))))


def within_bounds(kinds: Mapping[str, Any], names: Sequence[Text]) -> Outcome:
    """Every error that has a bound is at most that, in integers, and each way (``names``) uses some of it.

    ``kinds``: :class:`Compared`, by the kind of operands.
    """
    compared = 0
    used: dict[Text, float] = {}
    for kind, one in kinds.items():
        for i, name in enumerate(names):
            errors, bound = one.errors[i], one.bound_of(i)
            if bound is None:
                continue
            shares = whole.ratio(errors, bound)
            if (errors > bound).any():
                at = tuple(int(v) for v in np.argwhere(errors > bound)[0])
                said = say("{kind}, {way}, K = {k}: {share:.3g} of the bound", kind=kind, way=name)
                return failed(said.fill(k=one.lengths[at[-1]], share=shares[at]))
            compared += bound.size
            used[name] = max(used.get(name, 0.0), float(shares.max()))
    return verdict(min(used.values()) >= USED, joined((say("{n:,} errors", n=compared), used_at_most(used)), CLAUSE))


def used_at_most(shares: Mapping[Any, float]) -> Text:
    """How much of its bound each way uses."""
    return say("used at most: {shares}", shares=listed(shares, ".3f"))


def listed(values: Mapping[Any, float], spec: str) -> Text:
    """Names with their values, one after another."""
    return joined([joined((name, f"{value:{spec}}"), " ") for name, value in values.items()], COMMA)


def compared_columns(kinds: Mapping[str, Any], way: str, names: Sequence[Text]) -> Columns:
    """A row for each kind, length and ``way``: errors as shares of sum|a b|, and the bound where there is one."""
    rows = [(kind, k, name.en, *shares) for kind, one in kinds.items() for i, name in enumerate(names)
            for k, *shares in zip(one.lengths.tolist(), *(part.tolist() for part in one.shares(i)),
                                  strict=True)]  # fmt: skip
    return in_columns(("operands", "K", way, "mean error", "largest error", "largest bound"), rows)


# --- axes -------------------------------------------------------------------------------------------------------
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def along_k(ax: Axes, lengths: Array, *limits: float) -> None:
    """K along a logarithmic axis, every second of its ticks; errors on one between ``limits``, if given."""
    from matplotlib.ticker import NullLocator

    ax.set_xscale("log", base=2)
    ax.set_xlim(lengths[0], lengths[-1])
    few = [k for k in (16, 64, 256, 1024, 4096, 16384, 65536) if k <= lengths[-1]]
    ax.set_xticks(few, [f"{k // 1024}k" if k >= 1024 else str(k) for k in few])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("K")
    if limits:
        powers(ax, *limits)


def powers(ax: Axes, low: float, high: float) -> None:
    """A logarithmic axis of errors, few ticks, in plain text, which is drawn ten times as fast as mathematics."""
    from matplotlib.ticker import LogLocator, NullLocator

    ax.set(yscale="log", ylim=(low, high))
    ax.yaxis.set_major_locator(LogLocator(numticks=6))
    ax.yaxis.set_major_formatter(lambda y, _: "10" + str(round(np.log10(y))).translate(RAISED))
    ax.yaxis.set_minor_locator(NullLocator())

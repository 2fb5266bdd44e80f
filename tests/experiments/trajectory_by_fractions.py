"""One step of the run, element by element on fractions, each from the tensors that it is computed from."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from fplab import exact
from fplab.experiments.frame import Params
from fplab.experiments.trajectory import SKIP, Pass, by_lab, learning_rate, parts, train

STEP = 37  # every so many elements of a tensor are computed by fractions
CANCELLED = 12  # and so many of each product that cancel most: there the Tensor Core's roundings show

Element = tuple[str, Fraction, Fraction]  # where, what the run has, what fractions give


def rounded(value: Fraction, fmt: str) -> Fraction:
    """A number rounded once, by integers."""
    return exact.decode(exact.round_to(exact.of(value), fmt)[0], fmt).value


def number(x: Any) -> Fraction:
    """One element as a fraction."""
    return Fraction(float(x))


class PassByFractions:
    """The tensors of a forward and backward pass ``p``, which has ``halves`` as weights and a loss ``scale``."""

    def __init__(self, p: Pass, x: Any, targets: Any, halves: Sequence[Any], scale: float, gpu: str) -> None:
        from fplab.tensorcore import get

        self.p, self.targets, self.factor = p, targets, Fraction(scale / len(x))
        self.model = get(gpu, "fp16")
        h1, self.h2, h3 = halves
        self.factors = {
            "z1": (x, h1), "z2": (p.a1, self.h2), "y": (p.a2, h3), "g3": (p.a2.T, p.dy), "da2": (p.dy, h3.T),
            "g2": (p.a1.T, p.dz2), "g1": (x.T, p.dz1),
        }  # fmt: skip

    def product(self, a: Any, b: Any, i: int, j: int) -> Fraction:
        """Element (i, j) of a product by the oracle of Tensor Cores, stored as FP16."""
        from fplab.tensorcore import oracle

        total = oracle.dot([float(v) for v in a[i]], [float(v) for v in b[:, j]], 0.0, self.model)
        return rounded(number(np.uint32(oracle.result_bits(total, self.model)).view(np.float32)), "fp16")

    def element(self, name: str, i: int, j: int) -> Fraction:
        """Element (i, j) of a tensor of the pass."""
        p, zero = self.p, Fraction(0)
        match name:
            case "a1":
                return max(number(p.z1[i, j]), zero)
            case "a2":
                skip = rounded(number(p.a1[i, j]) * Fraction(SKIP), "fp16")
                return rounded(max(number(p.z2[i, j]), zero) + skip, "fp16")
            case "error":
                return rounded(number(p.y[i, j]) - number(self.targets[i, j]), "fp32")
            case "dy":
                return rounded(rounded(number(p.error[i, j]) * self.factor, "fp32"), "fp16")
            case "dz1":
                return number(p.da1[i, j]) if p.z1[i, j] > 0 else zero
            case "dz2":
                return number(p.da2[i, j]) if p.z2[i, j] > 0 else zero
            case "da1":
                skip = rounded(number(p.da2[i, j]) * Fraction(SKIP), "fp16")
                return rounded(self.product(p.dz2, self.h2.T, i, j) + skip, "fp16")
        return self.product(*self.factors[name], i, j)

    def elements(self) -> Iterator[Element]:
        """Some elements of every tensor; of products also those that cancel most."""
        for name in Pass._fields:
            got = getattr(self.p, name)
            places = set(range(0, got.size, STEP * max(1, got.size // 2048)))
            if name in self.factors:
                places |= most_cancelled(*self.factors[name])
            for flat in sorted(places):
                i, j = divmod(flat, got.shape[1])
                yield f"{name}[{i}, {j}]", number(got[i, j]), self.element(name, i, j)


def most_cancelled(a: Any, b: Any) -> set[int]:
    """Where a product is smallest beside the sum of its terms' magnitudes, and not zero: flat places."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    value, terms = np.abs(x @ y).ravel(), (np.abs(x) @ np.abs(y)).ravel()
    ratio = np.where(value > 0, value / np.maximum(terms, 2.0**-100), np.inf)
    return set(np.argsort(ratio, kind="stable")[:CANCELLED].tolist())


def updates(
    weights: Sequence[Any], gradients: Sequence[Any], scale: float, step: int, gpu: str, params: Params
) -> Iterator[Element]:
    """Some weights after a run's first update, in ``step``, before which the velocities are zero."""
    after = parts(params, train(replace(params, steps=step + 1), by_lab(gpu)).weights[step])
    for k, (w, g, new) in enumerate(zip(weights, gradients, after, strict=True)):
        for flat in range(0, w.size, STEP):
            i, j = divmod(flat, w.shape[1])
            v = rounded(number(g[i, j]) / Fraction(scale), "fp32")
            right = rounded(number(w[i, j]) - rounded(v * Fraction(learning_rate(params)), "fp32"), "fp32")
            yield f"w{k + 1}[{i}, {j}]", number(new.view(np.float32)[i, j]), right

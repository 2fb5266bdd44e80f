"""A step of every 8-bit optimizer as its definition reads, one element and one operation after another.

numpy scalars of float32 round each operation once, so this is slow and its bits are the definition's. The kernels are
held to it bit for bit.
"""

from typing import Any

import numpy as np

from ...codebooks import Codebook, Rule, oracle

Array = np.ndarray[Any, Any]
f32 = np.float32


def load(ranks: Array, scales: Array, book: Codebook, block: int) -> list[np.float32]:
    """The state that ranks and scales stand for."""
    return [f32(book.values[r]) * scales[i // block] for i, r in enumerate(ranks.reshape(-1).tolist())]


def save(state: list[np.float32], book: Codebook, block: int, rule: Rule) -> tuple[Array, Array]:
    plain = Codebook(book.name, book.values)  # by rank
    return oracle.quantize(np.array(state, f32), plain, block, rule)


def adam(p: Any, g: Any, m: Any, v: Any, h: dict[str, Any]) -> tuple[Any, Any, Any]:
    """One element of Adam; ``h``: float32 beta1, beta2, size (signed), eps."""
    one = f32(1)
    m = h["beta1"] * m + (one - h["beta1"]) * g
    v = h["beta2"] * v + (one - h["beta2"]) * g * g
    return p + h["size"] * (m / (root(v) + h["eps"])), m, v


def momentum(p: Any, g: Any, m: Any, v: Any, h: dict[str, Any]) -> tuple[Any, Any, Any]:
    m = h["beta1"] * m + g
    return p + h["size"] * m, m, v


def lion(p: Any, g: Any, m: Any, v: Any, h: dict[str, Any]) -> tuple[Any, Any, Any]:
    one = f32(1)
    c = h["beta1"] * m + (one - h["beta1"]) * g
    p = p + h["size"] if c > 0 else p - h["size"] if c < 0 else p
    return p, h["beta2"] * m + (one - h["beta2"]) * g, v


def adagrad(p: Any, g: Any, m: Any, v: Any, h: dict[str, Any]) -> tuple[Any, Any, Any]:
    v = v + g * g
    return p + h["size"] * (g / (root(v) + h["eps"])), m, v


UPDATES = {"adam": adam, "momentum": momentum, "lion": lion, "adagrad": adagrad}


def root(x: Any) -> np.float32:
    """The square root rounded once: float64's of a float32, rounded again, is exact for 24 bits (numpy's is too)."""
    return f32(np.sqrt(np.float64(x)))


def element(name: str, p: Any, g: Any, m: Any, v: Any, h: dict[str, Any]) -> tuple[Any, Any, Any]:
    """One element with weight decay where ``h["decay"]`` says, by ``h["share"]``; a bad gradient moves nothing."""
    if not np.isfinite(g):
        return p, f32(0), f32(0)
    shrink = f32(1 - h["lr"] * h["share"])
    if h["decay"] == "gradient" and h["share"]:
        g = g + f32(h["share"]) * p
    if h["decay"] == "before":
        p = p * shrink
    p, m, v = UPDATES[name](p, g, m, v, h)
    return (p * shrink if h["decay"] == "after" else p), m, v


def step(name: str, p: Array, g: Array, m: Any, v: Any, h: dict[str, Any]) -> tuple[Array, list[Any], list[Any]]:
    """A step on flat arrays with float32 states."""
    with np.errstate(all="ignore"):
        rows = [element(name, *row, h) for row in zip(p, g, m, v, strict=True)]
    new_p, new_m, new_v = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    return np.array(new_p, f32), new_m, new_v

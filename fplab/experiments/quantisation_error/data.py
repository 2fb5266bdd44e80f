"""The experiment's data: arrays of five kinds, and the errors that codebooks and block sizes make on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ... import codebooks
from ...codebooks import BOOKS, Codebook
from ...hardware.cases import Arrays
from ..base import Tick

SIGNED = ("dynamic", "tree", "quantile", "linear")
UNSIGNED = ("dynamic unsigned", "dynamic", "quantile", "linear unsigned")
KINDS = ("normal", "heavy", "weight", "gradient", "m", "v")
BLOCKS = (64, 256, 1024, 2048, 4096)
WHOLE = 0  # the block size that stands for the whole array
METRICS = ("mean absolute", "mean relative", "root mean square", "share lost")
NORMAL, DRAWN = 1 << 20, 1 << 15  # elements of the published table's data; of a draw that claims are measured on
DRAWS = 6
EPS = 1e-8
REACHES = (256, 2048, WHOLE)  # block sizes that the outlier meets
LOSING = ("linear unsigned", "dynamic unsigned")
MOST_FOR_QUANTILES = 1 << 16
SMALLEST = 4096  # elements of a tensor whose states an 8-bit optimizer quantises
STATE_PAIRS = (("linear", "linear unsigned"), ("quantile", "quantile"), ("dynamic", "dynamic"),
               ("dynamic", "dynamic unsigned"))  # fmt: skip


@dataclass(frozen=True)
class Params:
    """``steps``, ``lr``: the training runs, one a seed; weights, gradients and states are of the first, and of the
    others the second moments alone. ``normal``, ``heavy``: elements of normal data and with heavy tails. ``outlier``:
    how many deviations the injected element has.
    """

    steps: int = 300
    lr: float = 3e-3
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    normal: int = NORMAL
    heavy: int = 1 << 20
    outlier: float = 1000.0


QUICK = Params(steps=10, seeds=(0, 1, 2), heavy=1 << 16)


class Errors(NamedTuple):
    """Means over an array; "relative" and "lost" over its elements that are not zero."""

    absolute: float
    relative: float
    rms: float
    lost: float


def round_trip(x: np.ndarray, book: Codebook, block: int | None, sizes: Sequence[int] = ()) -> np.ndarray:
    """An array quantised and back, tensor by tensor: ``sizes`` are those of the tensors that lie in it end to end."""
    ends = np.cumsum(sizes or [x.size])
    back = [codebooks.dequantize_blockwise(codebooks.quantize_blockwise(part, book, block))
            for part in np.split(x, ends[:-1])]  # fmt: skip
    return np.concatenate(back)


def scaled(x: np.ndarray, block: int | None, sizes: Sequence[int] = ()) -> np.ndarray:
    """Every element in units of its block's largest magnitude: what a codebook of quantiles is made from."""
    found = []
    for part in np.split(x, np.cumsum(sizes or [x.size])[:-1]):
        starts = np.arange(0, part.size, block or part.size)
        most = np.maximum.reduceat(np.abs(part), starts)
        found.append(part / np.repeat(np.where(most == 0, 1, most), block or part.size)[: part.size])
    return np.concatenate(found)


def errors(x: np.ndarray, book: Codebook, block: int | None, sizes: Sequence[int] = ()) -> Errors:
    """What quantising does to an array: mean |error|, mean |error / x|, its root mean square, and the share made 0."""
    back = round_trip(x, book, block, sizes)
    there = x != 0
    error = np.abs(back - x.astype(np.float64))
    relative = error[there] / np.abs(x[there])
    lost = np.count_nonzero(back[there] == 0) / max(relative.size, 1)
    return Errors(error.mean(), relative.mean(), float(np.sqrt(np.mean(error**2))), lost)


def normal(n: int = NORMAL, seed: int = 0) -> np.ndarray:
    """Samples of the normal distribution, float32; 2^20 of seed 0 are the data of the published table."""
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def uniforms(key: int, n: int) -> np.ndarray:
    """``n`` numbers strictly between 0 and 1, from Philox's raw stream."""
    return ((np.random.Philox(key=key).random_raw(n) >> np.uint64(12)).astype(np.float64) + 0.5) / 2.0**52


def heavy_tails(n: int) -> np.ndarray:
    """Student's t with two degrees of freedom, by its inverse distribution function: no finite variance."""
    u = uniforms(1, n)
    found: np.ndarray = ((2 * u - 1) / np.sqrt(2 * u * (1 - u))).astype(np.float32)
    return found


def outlier_data(size: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Normal data of 32 blocks of 2048, without and with one element of ``size`` deviations, in the 21st block."""
    plain = normal(32 * 2048, seed)
    spoiled = plain.copy()
    spoiled[20 * 2048 + 700] = size
    return plain, spoiled


def trained(params: Params, seed: int, tick: Tick) -> Arrays:
    """The character transformer's larger tensors after training in float32, of each kind end to end; their sizes.

    Kinds: weights, gradients, and both states of Adam.
    """
    import torch

    from ...training import characters
    from ...training.eight_bit import Adam8bit
    from ...training.loop import copied, one_thread

    task = characters()
    with one_thread():
        model = task.model(seed)
        optimizer = Adam8bit(model.parameters(), lr=params.lr, state_bits=32)
        for step, batch in enumerate(task.batches(seed, params.steps)):
            optimizer.zero_grad()
            task.loss(model, batch).backward()
            optimizer.step()
            tick(step / params.steps, f"training, seed {seed}, step {step}")
    parameters = [p for p in model.parameters() if p.numel() >= SMALLEST]
    tensors: dict[str, list[torch.Tensor]] = {
        "weight": [p.detach() for p in parameters],
        "gradient": [p.grad for p in parameters if p.grad is not None],
        "m": [optimizer.state[p]["state1"] for p in parameters],
        "v": [optimizer.state[p]["state2"] for p in parameters],
    }
    flat = {name: np.concatenate([copied(t).ravel() for t in some]) for name, some in tensors.items()}
    return {**flat, "sizes": np.array([p.numel() for p in parameters])}


def book_of(name: str, x: np.ndarray, block: int | None = None, sizes: Sequence[int] = ()) -> Codebook:
    """The codebook of a name; quantiles are those of the scaled array itself."""
    if name != "quantile":
        return BOOKS[name]
    found = scaled(x, block, sizes)
    return codebooks.quantile(found[:: -(-found.size // MOST_FOR_QUANTILES)])


def names_of(kind: str) -> tuple[str, ...]:
    """The codebooks that a kind of data is quantised with."""
    return UNSIGNED if kind == "v" else SIGNED


def sizes_of(kind: str, arrays: Arrays) -> list[int]:
    """The sizes of the tensors that an array is made of."""
    return [] if kind in ("normal", "heavy") else [int(n) for n in arrays["sizes"]]


def run(params: Params, tick: Tick) -> Arrays:
    """Errors (kind, codebook, block, metric), errors of Adam's update (states, block, 2), the outlier's reach (draw,
    block, without or with, 256s), and the shares of second moments that become 0 (seed, linear or dynamic).
    """
    runs = [
        trained(params, seed, lambda done, text, i=i: tick(0.4 * (i + done) / len(params.seeds), text))  # type: ignore[misc]
        for i, seed in enumerate(params.seeds)
    ]
    found = {"normal": normal(params.normal), "heavy": heavy_tails(params.heavy), **runs[0]}
    blocks = (*BLOCKS, WHOLE)
    table = np.zeros((len(KINDS), len(SIGNED), len(blocks), len(METRICS)))
    for k, kind in enumerate(KINDS):
        tick(0.4 + 0.08 * k, f"{kind}: codebooks and block sizes")
        x, sizes = found[kind], sizes_of(kind, found)
        for b, name in enumerate(names_of(kind)):
            for i, block in enumerate(blocks):
                table[k, b, i] = errors(x, book_of(name, x, block or None, sizes), block or None, sizes)
    tick(0.9, "Adam's update")
    return {
        **found,
        "errors": table,
        "lost": np.array(
            [[errors(one["v"], BOOKS[name], 2048, sizes_of("v", one)).lost for name in LOSING] for one in runs]
        ),
        "update_errors": update_errors(found["m"], found["v"], sizes_of("m", found)),
        "outlier": np.stack([outlier_reach(*outlier_data(params.outlier, seed), REACHES) for seed in range(DRAWS)]),
        "tables": np.stack([BOOKS[name].table for name in SIGNED if name in BOOKS]),
    }


def update_of(m: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Adam's direction m / (sqrt(v) + eps), in float64: what the paper calls u."""
    wide: np.ndarray = m.astype(np.float64) / (np.sqrt(v.astype(np.float64)) + EPS)
    return wide


def update_errors(m: np.ndarray, v: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Mean |u - u8| and median |u - u8| / |u| for each pair of codebooks and block size, where u is not 0.

    The mean of the relative error says little here: one second moment that becomes 0 outweighs all others.
    """
    right = update_of(m, v)
    there = right != 0
    out = np.zeros((len(STATE_PAIRS), len(BLOCKS) + 1, 2))
    for i, names in enumerate(STATE_PAIRS):
        for j, block in enumerate((*BLOCKS, WHOLE)):
            first, second = (round_trip(x, book_of(name, x, block or None, sizes), block or None, sizes)
                             for name, x in zip(names, (m, v), strict=True))  # fmt: skip
            error = np.abs(update_of(first, second) - right)
            out[i, j] = error.mean(), np.median(error[there] / np.abs(right[there]))
    return out


def outlier_reach(plain: np.ndarray, spoiled: np.ndarray, blocks: tuple[int, ...]) -> np.ndarray:
    """Mean |error| of each 256 elements, the outlier left out: (block, without or with, 256s)."""
    out = np.zeros((len(blocks), 2, plain.size // 256))
    for i, block in enumerate(blocks):
        for j, x in enumerate((plain, spoiled)):
            back = codebooks.dequantize_blockwise(codebooks.quantize_blockwise(x, BOOKS["dynamic"], block or None))
            error = np.abs(back.astype(np.float64) - x)
            error[plain != spoiled] = 0
            out[i, j] = error.reshape(-1, 256).mean(1)
    return out

"""Collectives as data: who sends which part to whom, in which step, and what an addition rounds to.

A :class:`Collective` is a list of steps, a step a set of messages that travel at once. :func:`execute` runs any of them
as it stands there, a buffer a rank; :func:`reduce_fast` computes the same sums without the buffers, for thousands of
ranks.

Rounding is a :class:`Wire`: what travels is rounded to its format at every hop; what is added to it stays in FP32
until it is sent on, or is rounded in place with ``add="wire"``. NCCL and MPI add in the format of the tensor.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import formats, seeds
from ..errors import LabError, door, integer, one_of, own_integer

Array = np.ndarray[Any, Any]
Values = Callable[[Array], Array]


@dataclass(frozen=True)
class Message:
    """``source`` sends one chunk of its buffer to ``target``, which adds it to its own or replaces its own by it.

    ``stream``: which random words a stochastic rounding draws; no two messages of one element share one.
    ``own_stream``: where two ranks exchange sums and must end with the same bits, the target rounds its own as it sends
    it, with this stream; None: it adds to what it has.
    """

    source: int
    target: int
    chunk: int
    adds: bool
    stream: int
    own_stream: int | None = None


@dataclass(frozen=True)
class Collective:
    """A collective operation: ``steps`` of messages over buffers of ``chunks`` parts, on ``ranks`` ranks.

    ``owners``: for each chunk, the ranks that have its sum first (for reductions).
    """

    name: str
    ranks: int
    chunks: int
    steps: tuple[tuple[Message, ...], ...]
    owners: tuple[tuple[int, ...], ...] = ()

    def __repr__(self) -> str:
        """Without its messages, of which there are millions for a thousand ranks."""
        messages = sum(map(len, self.steps))
        return f"<{self.name} on {self.ranks} ranks: {messages:,} messages in {len(self.steps):,} steps>"

    def sent(self, elements: int) -> list[int]:
        """How many of ``elements`` elements each rank sends, in all."""
        elements = integer("elements", elements, 0, 2**63 - 1)
        sizes = [b - a for a, b in bounds(elements, self.chunks)]
        counts = [0] * self.ranks
        for message in (m for step in self.steps for m in step):
            counts[message.source] += sizes[message.chunk]
        return counts


@door
@dataclass(frozen=True)
class Wire:
    """What travels: the format of a message, its rounding, and whether additions are in FP32 or in that format.

    ``seed``, an integer below 2**64, is needed for stochastic rounding. ``reduction``: "sum", or "max" or "min", of
    which an order changes no bit.
    """

    format: formats.FormatName = "fp32"
    rounding: str = "rne"
    add: str = "fp32"
    seed: int | None = None
    reduction: str = "sum"

    def __post_init__(self) -> None:
        object.__setattr__(self, "format", formats.spelt(self.format))
        one_of("addition", self.add, ("fp32", "wire"))
        one_of("reduction", self.reduction, ("sum", "max", "min"))
        if self.add == "wire" and formats.rounding(self.rounding).random:
            raise LabError('add="wire" draws no random words; with rounding="stochastic" use add="fp32".')
        if formats.get(self.format).bits > 32:
            raise LabError(f"format={self.format!r} is wider than the FP32 that is added; allowed: 32 bits or fewer.")
        if formats.rounding(self.rounding).random and self.seed is None:
            raise LabError('rounding="stochastic" needs seed=, an integer, so that a sum can be reproduced.')
        if self.seed is not None:
            own_integer(self, "seed", 0, 2**64 - 1)

    def round(self, x: Array, stream: int) -> Array:
        """``x`` as it arrives, float32; element i draws random word i of the stream."""
        if formats.get(self.format).name == "fp32":
            return np.asarray(x, np.float32)
        from ..floats import quantize  # numba, where something is rounded; the recorder has no need of it

        seed = None if self.seed is None else seeds.word(self.seed, stream)
        return np.asarray(quantize(x, self.format, self.rounding, seed=seed), np.float32)

    def plus(self, x: Array, y: Array) -> Array:
        """``x + y`` at the receiver, or the larger or smaller of them, a NaN where one is."""
        if self.reduction != "sum":
            return np.asarray((np.maximum if self.reduction == "max" else np.minimum)(x, y), np.float32)
        usual = formats.get(self.format).name == "fp32" and formats.rounding(self.rounding) is formats.Rounding.RNE
        if self.add == "wire" and not usual:
            return added(x, y, self.format, self.rounding)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(x + y, np.float32)


def added(x: Array, y: Array, fmt: formats.FormatLike, rounding: str = "rne") -> Array:
    """``fplab.add``, the bits of its numbers, float32; for BF16 and TF32 to nearest, many times as fast.

    Their exponents are FP32's, and 24 bits at least two more than twice theirs, so a sum that was first rounded to FP32
    rounds to the same value (Figueroa 1995, When is double rounding innocuous?).
    """
    from ..arithmetic import add  # numba, where something is added; the recorder has no need of it
    from ..floats import quantize

    if formats.get(fmt).name in ("bf16", "tf32") and formats.rounding(rounding) is formats.Rounding.RNE:
        total = np.asarray(quantize(x, fmt), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            total += quantize(y, fmt)
        return np.asarray(quantize(total, fmt, out=total), np.float32)
    return np.asarray(add(x, y, fmt, rounding), np.float32)


def bounds(elements: int, chunks: int) -> list[tuple[int, int]]:
    """Where each chunk begins and ends: as even as can be, the longer ones first."""
    size, longer = divmod(elements, chunks)
    edges = [i * size + min(i, longer) for i in range(chunks + 1)]
    return list(itertools.pairwise(edges))


@dataclass(frozen=True)
class Arrival:
    """A message at its target, float32: ``arrived`` as the wire rounded it, the target's ``own`` part, and ``result``,
    which takes its place."""

    message: Message
    arrived: Array
    own: Array
    result: Array


@door
def execute(collective: Collective, buffers: Array, wire: Wire = Wire()) -> Array:
    """Run every message. ``buffers`` float32 (ranks, n), one row a rank; returns the buffers afterwards.

    Messages of one step read what was there before the step. A reduction's sums are rounded once more to the wire's
    format where they are complete, so that all ranks end with the same bits.
    """
    state = numbers(buffers).copy()
    for after, _ in stepwise(collective, state, wire):
        state = after
    return state


@door
def stepwise(collective: Collective, buffers: Array, wire: Wire = Wire()) -> Iterator[tuple[Array, list[Arrival]]]:
    """Run it as :func:`execute` does; after each step its buffers, and its messages as they arrived."""
    state, wire = numbers(buffers), _wire(wire)
    if state.ndim != 2 or state.shape[0] != collective.ranks:
        raise LabError(
            f"buffers have shape {state.shape}; {collective.name} on {collective.ranks} ranks needs a row each."
        )
    return _steps(collective, state, wire)


def _steps(collective: Collective, state: Array, wire: Wire) -> Iterator[tuple[Array, list[Arrival]]]:
    parts = bounds(state.shape[1], collective.chunks)
    done = {m.chunk: number for number, step in enumerate(collective.steps) for m in step if m.adds}
    for number, step in enumerate(collective.steps):
        before, state, arrivals = state, state.copy(), []
        rounded = {key: wire.round(before[key[0]], key[1]) for key in {(m.source, m.stream) for m in step}}
        for m in step:
            part = slice(*parts[m.chunk])
            arrived = rounded[m.source, m.stream][part]
            own = (state[m.target] if m.own_stream is None else wire.round(state[m.target], m.own_stream))[part].copy()
            state[m.target, part] = wire.plus(own, arrived) if m.adds else arrived
            arrivals.append(Arrival(m, arrived, own, state[m.target, part].copy()))
        for chunk, owners in enumerate(collective.owners):
            if done.get(chunk) == number:
                part = slice(*parts[chunk])
                for owner in owners:
                    state[owner, part] = wire.round(state[owner], _last(collective))[part]
        yield state, arrivals


def numbers(values: Any) -> Array:
    """Values as float32, if they are real numbers."""
    try:
        array = np.asarray(values)
    except Exception:  # rows of different lengths, and whatever a tensor raises
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise LabError("buffers are real numbers, a row for each rank and all rows of one length.")
    return np.asarray(array, np.float32)


def _wire(wire: Any) -> Wire:
    if not isinstance(wire, Wire):
        raise LabError(f"wire={wire!r} is no Wire; write Wire({str(wire)!r}), say.")
    return wire


def _last(collective: Collective) -> int:
    """The stream of the rounding that completes a sum: one that no message has."""
    return 1 + max((m.stream for step in collective.steps for m in step), default=0)


# --- the algorithms -------------------------------------------------------------------------------------------------


def broadcast(ranks: int) -> Collective:
    """From rank 0 along a binomial tree: ceil(log2 ranks) steps."""
    ranks, steps, reach = _ranks(ranks), [], 1
    while reach < ranks:
        pairs = [(r, r + reach) for r in range(min(reach, ranks - reach))]
        steps.append(tuple(Message(s, t, 0, False, 0) for s, t in pairs))
        reach *= 2
    return Collective("broadcast", ranks, 1, tuple(steps))


def reduce(ranks: int) -> Collective:
    """To rank 0 along a binomial tree: in step s, rank r takes the sum of rank r + 2**s."""
    ranks, steps, reach, stream = _ranks(ranks), [], 1, 0
    while reach < ranks:
        sources = range(reach, ranks, 2 * reach)
        steps.append(tuple(Message(s, s - reach, 0, True, stream + s) for s in sources))
        reach, stream = 2 * reach, stream + ranks
    return Collective("reduce", ranks, 1, tuple(steps), ((0,),))


def reduce_scatter(ranks: int) -> Collective:
    """Around a ring: chunk c starts at rank c, every rank adds its own, and its sum is complete at rank c - 1."""
    ranks = _ranks(ranks)
    steps = tuple(
        tuple(Message(r, (r + 1) % ranks, (r - s) % ranks, True, s) for r in range(ranks)) for s in range(ranks - 1)
    )
    return Collective("reduce-scatter", ranks, ranks, steps, tuple(((c - 1) % ranks,) for c in range(ranks)))


def all_gather(ranks: int) -> Collective:
    """Around a ring: the rank before c hands chunk c on, as reduce-scatter left it."""
    ranks = _ranks(ranks)
    steps = tuple(
        tuple(Message(r, (r + 1) % ranks, (r + 1 - s) % ranks, False, ranks) for r in range(ranks))
        for s in range(ranks - 1)
    )
    return Collective("all-gather", ranks, ranks, steps)


@door
def all_reduce(ranks: int, algorithm: str = "ring") -> Collective:
    """The sum on every rank: "ring" (reduce-scatter, all-gather), "tree" (reduce, broadcast), "doubling" or "direct".

    "doubling": in step s, ranks r and r xor 2**s exchange sums; ranks beyond the last power of two fold into it first.
    "direct": every rank sends chunk c straight to rank c, which adds them in the order of the ranks, in FP32 unless
    ``Wire.add`` says otherwise, and sends the sum back: one rounding of each addend and one of the sum.
    """
    one_of("algorithm", algorithm, ALGORITHMS)
    ranks = _ranks(ranks)
    if algorithm == "ring":
        first, two = reduce_scatter(ranks), all_gather(ranks)
        return Collective("all-reduce (ring)", ranks, ranks, first.steps + two.steps, first.owners)
    if algorithm == "tree":
        first, two = reduce(ranks), broadcast(ranks)
        return Collective("all-reduce (tree)", ranks, 1, first.steps + two.steps, first.owners)
    steps = _doubling(ranks) if algorithm == "doubling" else _direct(ranks)
    chunks = 1 if algorithm == "doubling" else ranks
    core = range(1 << (ranks.bit_length() - 1))
    owners = (tuple(core),) if algorithm == "doubling" else tuple((c,) for c in range(ranks))
    return Collective(f"all-reduce ({algorithm})", ranks, chunks, steps, owners)


ALGORITHMS = ("ring", "tree", "doubling", "direct")


def _doubling(ranks: int) -> tuple[tuple[Message, ...], ...]:
    core = 1 << (ranks.bit_length() - 1)
    extra = range(core, ranks)
    steps: list[tuple[Message, ...]] = []
    if extra:
        steps.append(tuple(Message(r, r - core, 0, True, r) for r in extra))
    reach, stream = 1, ranks
    while reach < core:
        # Groups of ranks have equal sums by now, and must round them alike: the stream is the group's.
        group = [stream + r // reach for r in range(core)]
        steps.append(tuple(Message(r, r ^ reach, 0, True, group[r], group[r ^ reach]) for r in range(core)))
        reach, stream = 2 * reach, stream + ranks
    if extra:
        steps.append(tuple(Message(r - core, r, 0, False, stream) for r in extra))
    return tuple(steps)


def _direct(ranks: int) -> tuple[tuple[Message, ...], ...]:
    """Everyone to the owner of each chunk, and the sums back."""
    there = tuple(Message(s, c, c, True, s) for c in range(ranks) for s in range(ranks) if s != c)
    back = tuple(Message(c, t, c, False, ranks) for c in range(ranks) for t in range(ranks) if t != c)
    return (there, back) if ranks > 1 else ()


def _ranks(ranks: int) -> int:
    return integer("ranks", ranks, 1, 2**20)


# --- the same sums, fast --------------------------------------------------------------------------------------------


@door
def reduce_fast(
    values: Values | Array, elements: int, ranks: int, algorithm: str = "ring", wire: Wire = Wire()
) -> Array:
    """The sum that :func:`all_reduce` leaves on rank 0, float32 (elements,), a rank's vector at a time.

    ``values``: an array (ranks, elements), or a function that gives, for an int64 array of ranks, one an element, the
    float32 values of those ranks there: so a thousand ranks need not exist at once. The array of ranks is used again.
    """
    one_of("algorithm", algorithm, ALGORITHMS)
    elements, ranks = integer("elements", elements, 0, 2**40), _ranks(ranks)
    source, wire = _source(values, elements, ranks), _wire(wire)
    if algorithm == "ring":
        return _ring(source, elements, ranks, wire)
    if algorithm == "direct":
        return _straight(source, elements, ranks, wire)
    return _tree(source, elements, ranks, wire, algorithm == "doubling")


def _source(values: Values | Array, elements: int, ranks: int) -> Values:
    if callable(values):
        return lambda rank: _column(values(rank), elements)
    array = numbers(values)
    if array.shape != (ranks, elements):
        raise LabError(f"values have shape {array.shape}; allowed: ({ranks}, {elements}), or a function of the ranks.")
    column = np.arange(elements)
    return lambda rank: array[rank, column]


def _column(given: Any, elements: int) -> Array:
    """What a function of the ranks gave, as float32."""
    column = numbers(given)
    if column.shape != (elements,):
        raise LabError(f"the function of the ranks gave shape {column.shape}; an element each is ({elements},).")
    return column


def chunk_of(elements: int, chunks: int) -> Array:
    return np.repeat(np.arange(chunks), [b - a for a, b in bounds(elements, chunks)])


def _ring(source: Values, elements: int, ranks: int, wire: Wire) -> Array:
    """Chunk c is a chain over the ranks c, c + 1, ...: each hop is one vector operation over all chunks."""
    rank, parts = chunk_of(elements, ranks), bounds(elements, ranks)
    total = source(rank)
    for hop in range(ranks - 1):
        rank += 1
        rank[slice(*parts[ranks - 1 - hop])] = 0  # the one chunk that has come to the end of the ring
        total = wire.plus(source(rank), wire.round(total, hop))
    if ranks == 1:
        return np.asarray(total, np.float32)
    return wire.round(wire.round(total, ranks + 1), ranks)  # complete at its owner, then handed on


def _straight(source: Values, elements: int, ranks: int, wire: Wire) -> Array:
    """Owner c starts from its own chunk and adds the others in the order of their ranks."""
    chunk = chunk_of(elements, ranks)
    total = source(chunk)
    for rank in range(ranks):
        arrived = wire.round(source(np.full(elements, rank)), rank)
        total = np.where(chunk == rank, total, wire.plus(total, arrived))
    if ranks == 1:
        return np.asarray(total, np.float32)
    done = wire.round(total, ranks + 1)
    return np.where(chunk == 0, done, wire.round(done, ranks))


def _tree(source: Values, elements: int, ranks: int, wire: Wire, doubling: bool) -> Array:
    """A binary tree, depth first, so that only a vector a level is held at once."""
    everywhere = np.zeros(elements, np.int64)
    core = 1 << (ranks.bit_length() - 1) if doubling else ranks

    def values_of(rank: int) -> Array:
        everywhere.fill(rank)
        return source(everywhere)

    def leaf(rank: int) -> Array:
        own = values_of(rank)
        if doubling and rank + core < ranks:
            own = wire.plus(own, wire.round(values_of(rank + core), rank + core))
        return own

    def subtree(first: int, level: int) -> Array:
        """The sum that rank ``first`` has after ``level`` steps."""
        if level == 0:
            return leaf(first)
        half = 1 << (level - 1)
        left = subtree(first, level - 1)
        if first + half >= core:
            return left
        right = subtree(first + half, level - 1)
        if doubling:
            streams = (ranks * level + (first + offset) // half for offset in (0, half))
            left, right = (wire.round(x, stream) for x, stream in zip((left, right), streams, strict=True))
            return wire.plus(left, right)
        return wire.plus(left, wire.round(right, ranks * (level - 1) + first + half))

    levels = (core - 1).bit_length()
    total = subtree(0, levels)
    if ranks == 1:
        return np.asarray(total, np.float32)
    return wire.round(total, _last(all_reduce(ranks, "doubling" if doubling else "tree")))


def contributions(collective: Collective, given: Array) -> list[Array]:
    """Which ranks' values are in every chunk, at first and after each step: int64 (ranks, chunks), bit r for rank r.

    ``given``: those at first. Found by running the messages on powers of two, whose sums say which were added; FP32
    holds such sums of 24 ranks.
    """
    ranks = integer("ranks", collective.ranks, 1, 24, ": FP32 holds the sums of so many powers of two")
    first = np.asarray(given, np.float32)
    summed = Collective(collective.name, ranks, collective.chunks, collective.steps)
    return [frame.astype(np.int64) for frame in (first, *(after for after, _ in stepwise(summed, first)))]

"""Collectives: every message executed, and the same sums fast; volumes; what low precision does to them."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import refusals
from pictures import of_class, text_of
from refusals import refuses

import fplab
from fplab.inspection import encodings
from fplab.parallel import collectives as c
from fplab.parallel.collectives import ALGORITHMS, Wire
from fplab.widgets import collectives as stepper

WIRES = (
    Wire(), Wire("bf16"), Wire("fp16", add="wire"), Wire("e4m3"), Wire("bf16", "stochastic", seed=3),
    Wire("e5m2", "rtz"), Wire("e4m3", add="wire"),
)  # fmt: skip


def buffers(ranks: int, n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((ranks, n)).astype(np.float32)


def same(x: np.ndarray, y: np.ndarray) -> bool:
    return np.array_equal(np.asarray(x, np.float32).view(np.uint32), np.asarray(y, np.float32).view(np.uint32))


@pytest.mark.parametrize("wire", WIRES, ids=str)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 7, 8, 9, 16])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_fast_is_what_the_messages_do_and_all_ranks_agree(algorithm: str, ranks: int, wire: Wire) -> None:
    x = buffers(ranks, 19, ranks)
    after = c.execute(c.all_reduce(ranks, algorithm), x, wire)
    assert all(same(row, after[0]) for row in after)
    assert same(c.reduce_fast(x, 19, ranks, algorithm, wire), after[0])
    assert same(c.reduce_fast(lambda rank: x[rank, np.arange(19)], 19, ranks, algorithm, wire), after[0])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 6, 8, 13])
def test_on_integers_every_sum_is_exact(algorithm: str, ranks: int) -> None:
    """Whatever the order: a lost, doubled or misplaced message would show."""
    x = np.float32(2.0) ** np.arange(ranks)[:, None] * np.arange(1, 12, dtype=np.float32)
    after = c.execute(c.all_reduce(ranks, algorithm), x)
    assert same(after, np.broadcast_to((2.0**ranks - 1) * np.arange(1, 12), after.shape))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("reduction", "wanted"), [("max", np.max), ("min", np.min)])
def test_a_maximum_and_a_minimum_have_the_same_bits_by_every_way(algorithm: str, reduction: str, wanted: Any) -> None:
    x, wire = buffers(7, 19, 3), Wire("bf16", add="wire", reduction=reduction)
    after = c.execute(c.all_reduce(7, algorithm), x, wire)
    assert all(same(row, fplab.quantize(wanted(x, axis=0), "bf16")) for row in after)
    assert same(c.reduce_fast(x, 19, 7, algorithm, wire), after[0])
    x[2, 5] = np.nan
    assert np.isnan(c.execute(c.all_reduce(7, algorithm), x, wire)[:, 5]).all()


def test_roundings_are_counted() -> None:
    """Around a ring each addend but the last is rounded on the way: n - 1 chances to vanish; directly one sum."""
    x = np.full((9, 9), 2.0**-9, np.float32)
    x[0] = 1.0
    wire = Wire("bf16", add="wire")
    ring, direct = (c.execute(c.all_reduce(9, a), x, wire)[0] for a in ("ring", "direct"))
    assert ring[0] == 1.0  # chunk 0 begins at rank 0 with the 1: every 2**-9 is lost beside it
    assert ring[1] == 1.015625  # chunk 1 adds the eight small ones first
    assert direct[0] == 1.0
    assert c.execute(c.all_reduce(9, "direct"), x, Wire("bf16"))[0][0] == 1.015625  # an FP32 accumulator keeps them


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 12])
def test_volumes_are_the_published_ones(ranks: int) -> None:
    """Per rank: reduce-scatter and all-gather (n-1)/n of the data, a ring all-reduce twice that."""
    n = 24 * ranks
    part = n * (ranks - 1) // ranks
    assert c.reduce_scatter(ranks).sent(n) == [part] * ranks
    assert c.all_gather(ranks).sent(n) == [part] * ranks
    assert c.all_reduce(ranks).sent(n) == [2 * part] * ranks
    assert sum(c.broadcast(ranks).sent(n)) == sum(c.reduce(ranks).sent(n)) == (ranks - 1) * n
    assert len(c.all_reduce(ranks).steps) == 2 * (ranks - 1)
    assert len(c.broadcast(ranks).steps) == (ranks - 1).bit_length()


def test_each_does_what_its_name_says() -> None:
    x = buffers(5, 10)
    assert same(c.execute(c.broadcast(5), x), np.broadcast_to(x[0], x.shape))
    assert same(c.execute(c.reduce(5), x)[0], c.reduce_fast(x, 10, 5, "tree"))
    scattered = c.execute(c.reduce_scatter(5), x)
    gathered = c.execute(c.all_gather(5), scattered)
    for chunk, (start, end) in enumerate(c.bounds(10, 5)):
        owner = (chunk - 1) % 5
        assert all(same(row[start:end], scattered[owner, start:end]) for row in gathered)
    assert same(gathered[0], c.reduce_fast(x, 10, 5, "ring"))


def test_uneven_chunks_cover_everything_once() -> None:
    assert c.bounds(10, 4) == [(0, 3), (3, 6), (6, 8), (8, 10)]
    assert list(c.chunk_of(10, 4)) == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]
    assert c.bounds(2, 4) == [(0, 1), (1, 2), (2, 2), (2, 2)]


def test_stochastic_messages_draw_different_words_and_are_fair() -> None:
    x = np.full((4, 4096), 1 + 2.0**-9, np.float32)  # half of a BF16 place above 1
    wire = Wire("bf16", "stochastic", seed=1)
    sums = c.reduce_fast(x, 4096, 4, "ring", wire)
    assert same(sums, c.reduce_fast(x, 4096, 4, "ring", wire))
    assert not same(sums, c.reduce_fast(x, 4096, 4, "ring", Wire("bf16", "stochastic", seed=2)))
    mean = float(sums.astype(np.float64).mean())
    spread = float(sums.astype(np.float64).std())
    assert abs(mean - 4 * (1 + 2.0**-9)) < 5 * spread / 64
    streams = [(m.chunk, m.stream) for s in c.all_reduce(4).steps for m in s if m.adds]
    assert len(set(streams)) == len(streams)


@pytest.mark.parametrize("rounding", ["rtz", "rtp", "odd"])
@pytest.mark.parametrize("fmt", ["bf16", "fp32"])
def test_additions_in_the_wires_format_round_as_the_wire_does(fmt: str, rounding: str) -> None:
    x = np.asarray(fplab.quantize(buffers(2, 50), fmt))
    wanted = fplab.add(x[0], x[1], fmt, rounding)
    assert not same(wanted, fplab.add(x[0], x[1], fmt))
    assert same(c.reduce_fast(x, 50, 2, "tree", Wire(fmt, rounding, add="wire")), wanted)


def test_values_in_float64_are_added_in_fp32() -> None:
    x = np.random.default_rng(2).standard_normal((5, 40))
    assert same(c.reduce_fast(lambda rank: x[rank, np.arange(40)], 40, 5), c.reduce_fast(x, 40, 5))


def test_a_sum_that_overflows_in_the_wire_is_finite_before_it() -> None:
    x = np.full((4, 4), 3e4, np.float32)
    assert np.isinf(c.execute(c.all_reduce(4), x, Wire("fp16"))).all()
    assert same(c.execute(c.all_reduce(4), x / 4, Wire("fp16")), np.full((4, 4), 3e4))


def test_thousands_of_ranks_against_a_plain_chain() -> None:
    """Ring order of one chunk, element by element in Python."""
    ranks, n = 300, 7
    x = buffers(ranks, n, 5)
    fast = c.reduce_fast(x, n, ranks, "ring", Wire("bf16"))
    for chunk in range(n):  # fewer elements than ranks: a chunk is one element
        total = Fraction(float(x[chunk, chunk]))
        for hop in range(1, ranks):
            sent = float(fplab.quantize(float(total), "bf16"))
            total = Fraction(float(np.float32(np.float32(sent) + x[(chunk + hop) % ranks, chunk])))
        assert float(fast[chunk]) == float(fplab.quantize(float(total), "bf16"))


test_refusals = refusals.saying(
    (lambda: c.all_reduce(0), "ranks=0 is not possible; allowed: 1 to"),
    (lambda: c.all_reduce(4, "rnig"), "unknown algorithm 'rnig'. Allowed: ring, tree, doubling, direct. Did"),
    (lambda: Wire(reduction="mean"), "unknown reduction 'mean'. Allowed: sum, max, min."),
    (lambda: Wire("bf61"), "unknown format 'bf61'"),
    (lambda: Wire(add="fp61"), "unknown addition 'fp61'. Allowed: fp32, wire."),
    (lambda: Wire("bf16", "stochastic", "wire", 1), 'add="wire" draws no random words'),
    (lambda: Wire("bf16", "stochastic"), 'rounding="stochastic" needs seed=, an integer'),
    (lambda: Wire("bf16", "stochastic", seed=-1), "seed=-1 is not possible; allowed: 0 to 18446744073709551615."),
    (lambda: Wire("fp64"), "format='fp64' is wider than the FP32 that is added; allowed: 32 bits or fewer."),
    (lambda: c.broadcast("4"), "ranks='4' is not an integer"),
    (lambda: c.all_reduce(4).sent(-1), "elements=-1 is not possible"),
    (lambda: c.execute(c.all_reduce(2), [[1, 2], [1]]), "buffers are real numbers, a row for each rank and all"),
    (lambda: c.execute(c.all_reduce(2), buffers(2, 4) * 1j), "buffers are real numbers"),
    (lambda: c.execute(c.all_reduce(2), buffers(2, 4), "bf16"), "wire='bf16' is no Wire; write Wire('bf16')"),
    (lambda: c.reduce_fast(buffers(2, 4), 4, 2, "ring", "bf16"), "wire='bf16' is no Wire"),
    (lambda: c.reduce_fast(lambda rank: np.ones(3), 4, 2), "the function of the ranks gave shape (3,); an element"),
    (lambda: c.reduce_fast(lambda rank: np.ones(4), 1.5, 2), "elements=1.5 is not an integer"),
    (lambda: c.contributions(c.all_reduce(25), np.ones((25, 25))), "ranks=25 is not possible; allowed: 1 to 24: FP"),
    (lambda: c.execute(c.all_reduce(3), buffers(2, 4)), r"buffers have shape (2, 4); all-reduce (ring) on 3 ranks"),
    (lambda: c.reduce_fast(buffers(2, 4), 4, 3), "values have shape (2, 4); allowed: (3, 4), or a function"),
    (lambda: c.reduce_fast(buffers(2, 4), 4, 2, "bush"), "unknown algorithm 'bush'"),
)  # fmt: skip


@pytest.mark.parametrize("fmt", ["bf16", "tf32"])
def test_sums_by_way_of_fp32_are_the_formats_own(fmt: str) -> None:
    """Subnormals, ties, overflows, infinities, and operands that are rounded first; a NaN is any NaN."""
    random = np.random.Generator(np.random.Philox(key=7))
    x, y = (random.integers(0, 2**32, 40_000, np.uint32).view(np.float32) for _ in range(2))
    near = np.ldexp(random.integers(-1024, 1024, (2, 20_000)), random.integers(-142, 118, (2, 20_000))).astype(
        np.float32
    )
    half = np.float32(2**127) * np.float32(
        [1, 2 - 2**-7, 2 - 2**-10, 2**-8, 2**-9, 2**-11, -1, np.nan, np.inf, -np.inf]
    )
    corners = np.array([0, -0.0, 2**-126, 2**-133, 2**-134, 2**-149, *half], np.float32)
    one, two = (np.concatenate(parts) for parts in ((x, near[0], np.repeat(corners, len(corners))),
                                                    (y, near[1], np.tile(corners, len(corners)))))  # fmt: skip
    found, wanted = c.added(one, two, fmt), np.asarray(fplab.add(one, two, fmt))
    same = (found.view(np.uint32) == wanted.view(np.uint32)) | (np.isnan(found) & np.isnan(wanted))
    assert same.all(), (one[~same][:3], two[~same][:3], found[~same][:3], wanted[~same][:3])
    assert np.isfinite(wanted).mean() > 0.9


# --- stepped --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_collective_steps_as_it_runs(algorithm):
    x = np.float32([[0.1, 0.2, 0.3, 0.7], [1e3, 3.3, -0.5, 1.1], [7.7, 1e-3, 0.4, 0.9]])
    for wire in (Wire(), Wire("bf16", add="wire"), Wire("fp16", "stochastic", seed=3)):
        one = c.all_reduce(3, algorithm)
        steps = list(c.stepwise(one, x, wire))
        assert len(steps) == len(one.steps)
        assert steps[-1][0].tobytes() == c.execute(one, x, wire).tobytes()
        for (_, arrivals), messages in zip(steps, one.steps, strict=True):
            assert [a.message for a in arrivals] == list(messages)
            for a in arrivals:
                assert np.array_equal(a.result, wire.plus(a.own, a.arrived) if a.message.adds else a.arrived)


@pytest.mark.parametrize("name", stepper.NAMES)
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_widget_shows_every_message_with_its_bits(name, ranks):
    """What is drawn is what :func:`execute` does: the rows of the table are the messages, the end is its end."""
    state = stepper.changed(stepper.State(ranks=ranks, format="fp16"), "collective", name)
    run = stepper.run(state)
    assert run.buffers[-1].tobytes() == c.execute(run.collective, run.buffers[0], Wire("fp16", add="wire")).tobytes()
    for number, step in enumerate(run.collective.steps, 1):
        drawn = stepper.render(replace(state, step=number))
        assert len(of_class(drawn, "message")) == len(step) == drawn.count(" → ") - 1
        assert len(of_class(drawn, "new")) == len({(m.target, m.chunk) for m in step})
        for a in run.arrivals[number - 1]:
            fields = encodings.get("fp16").fields(int(fplab.encode(a.arrived[0], "fp16")))
            assert " ".join(digits for _, digits in fields) in drawn
    last = replace(state, step=len(run.arrivals))
    assert stepper.moved(last, 1) == last
    assert stepper.moved(state, -1) == state


def test_the_widget_says_what_the_order_of_a_ring_costs():
    """In BF16 every chunk is added in another order, and two of the sums differ."""
    text = text_of(stepper.render(stepper.State()))
    assert "full at the end 1, 1.007812" in text
    assert "6 steps; in all 24 chunks travel, the busiest rank sends 3/2 × the buffer" in text
    assert "4 messages of 16 bits a number, 4 additions" in text


def test_the_widget_refuses_what_cannot_be():
    refuses(lambda: stepper.widget("all-to-all"), "unknown collective 'all-to-all'")
    refuses(lambda: stepper.widget(ranks=9), "ranks=9 is not possible; allowed: 2 to 8 in a drawing")
    assert stepper.widget("reduce").state.algorithm == "tree"
    state = stepper.changed(stepper.State("reduce", "tree"), "algorithm", "direct")
    assert (state.collective, state.algorithm) == ("all-reduce", "direct")

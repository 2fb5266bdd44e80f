"""The exercises' references hold against the lab's own functions, and against numpy, on the exercises' own cases."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from answers_here import cases_of

import fplab
from fplab import codebooks, exact, integers, tensorcore
from fplab.checkpoint.measure import About, Loss, _channels
from fplab.checkpoint.report import best
from fplab.exercises import exercise
from fplab.exercises.shown import code_of
from fplab.memory import activations, pipeline, sharding
from fplab.parallel import collectives, schedules
from fplab.stored import STORED
from fplab.training.scalers import amax, machine


def agree(name, other):
    """The reference and another way give the same bits on every case."""
    task = exercise(name).task
    key = task.result.key
    for case in cases_of(name):
        mine = key(task.result.read(task.reference(*case)))
        assert mine == key(task.result.read(other(*case))), case


OTHERS = {
    "decode_fp16": lambda code: fplab.decode(code, "fp16"),
    "next_up": lambda code: _after(code),
    "rne": lambda x, n: round(Fraction(x, 2**n)),
    "fp32_to_bf16": lambda code: int(fplab.encode(np.uint32(code).view(np.float32), "bf16")),
    "quantize_e4m3": lambda x: float(fplab.quantize(np.float32(x), "e4m3")),
    "fma_fp16": lambda a, b, c: fplab.fma(a, b, c, "fp16"),
    "two_sum": lambda a, b: (s := float(fplab.add(a, b, "fp32")), float(Fraction(a) + Fraction(b) - Fraction(s))),
    "pairwise_sum": lambda xs: _halves(list(xs)),
    "v100_block": lambda a, b, c: tensorcore.dot(list(a), list(b), c, gpu="V100"),
    "split3": lambda x: _parts(x),
    "grad_scaler": lambda scale, good, found, interval: machine.Machine(growth_interval=interval).after(
        machine.Tracked(scale, good), found
    ),
    "fp8_scale": lambda a: int(np.log2(amax.power_of_two_scale(max(a), 448.0))) if a and max(a) else 0,
    "quantize_int8": lambda x, s: int(integers.quantize(np.float32(x), _int8(s))),
    "tree_decode": lambda code: codebooks.tree.decode(code),
    "pack_int4": lambda codes: integers.pack_int4(np.array(codes, np.int64)),
    "zero_bytes": lambda p, n, stage: sum(
        width * p // (n if stage >= first else 1) for width, first in ((2, 3), (2, 2), (12, 1))
    ),
    "bubble": pipeline.bubble,
    "activation_bytes": lambda s, b, h, a, how: int(activations.formula(s, b, h, a, recompute=how)),
    "ring_order": lambda ranks, chunk: _ring(ranks, chunk),
    "broadcast_step": lambda rank: _arrival(rank),
    "tree_reduce": lambda xs: _on_rank_0(xs),
    "scatter_owner": lambda ranks, chunk: collectives.reduce_scatter(ranks).owners[chunk][0],
    "gathered_piece": lambda ranks, rank, step: _sent(ranks, rank, step),
    "outlier_channel": lambda w: next(iter(_channels(np.abs(np.float32(w)).max(axis=0)).worst), -1),
    "mixture": lambda sizes, errors, budget: _mixed(sizes, errors, budget),
    "q4_0": lambda xs: STORED["q4_0"].encode(np.float32(xs)),
    "all_reduce_bytes": lambda ranks, n, width: max(collectives.all_reduce(ranks).sent(n)) * width,
}


def _after(code):
    with np.errstate(over="ignore"):
        return int(np.nextafter(np.uint16(code).view(np.float16), np.float16(np.inf)).view(np.uint16))


def _int8(scale):
    return integers.Affine(np.float32(scale), np.int32(0), integers.symmetric(1.0, "int8").grid)


def _halves(xs):
    if len(xs) == 1:
        return xs[0]
    m = len(xs) // 2
    return float(fplab.add(_halves(xs[:m]), _halves(xs[m:]), "fp16"))


def _parts(x):
    parts, rest = [], Fraction(x)
    for _ in range(3):
        code, _ = exact.round_to(exact.of(rest), "bf16")
        value = exact.decode(code, "bf16").value
        parts.append(float(value))
        rest -= value
    assert rest == 0
    return parts


def _ring(ranks, chunk):
    """Follow the messages of the reduce-scatter that carry a chunk."""
    steps = collectives.reduce_scatter(ranks).steps
    carried = [m for step in steps for m in step if m.chunk == chunk]
    return [carried[0].source, *(m.target for m in carried)] if carried else [0]


def _arrival(rank):
    """The step, from 1 on, in which a message comes to a rank."""
    steps = collectives.broadcast(65).steps
    return next((i for i, step in enumerate(steps, 1) if any(m.target == rank for m in step)), 0)


def _on_rank_0(xs):
    wire = collectives.Wire("fp16", add="wire")
    return float(collectives.execute(collectives.reduce(len(xs)), np.float32(xs)[:, None], wire)[0, 0])


def _sent(ranks, rank, step):
    """The chunk of a message, counted from the rank that has it at first: the lab's begin at the rank before theirs."""
    steps = collectives.all_gather(ranks).steps
    (chunk,) = (m.chunk for m in steps[step] if m.source == rank) if steps else (1,)
    return (chunk - 1) % ranks


def _mixed(sizes, errors, budget):
    """What the survey of a file takes, whose tensors are kept in 8 bits or lose something in 4."""
    total, blank = sum(sizes), [0.0] * 5
    tensors = [About(str(i), "", "int8", (1, n), 1, n, n, 8.0) for i, n in enumerate(sizes)]
    pairs = enumerate(zip(sizes, errors, strict=True))
    losses = [Loss(str(i), "int4", 4.0, (e / n) ** 0.5, *blank) for i, (n, e) in pairs]
    return round(best(tensors, losses, 4 + 4 * budget / total, None).error ** 2 * total)


@pytest.mark.parametrize("name", OTHERS)
def test_references_agree_with_the_lab(name):
    agree(name, OTHERS[name])


def test_a_shard_is_a_piece_of_the_flat_buffer():
    for n, ranks in itertools.product((1, 5, 12, 100), (1, 2, 5, 7)):
        parts = [exercise("shard").task.reference(n, ranks, rank) for rank in range(ranks)]
        ((size, _),) = sharding.flat([((n,), 1)], ranks, 0)
        assert all(stop - start == size for start, stop in parts if stop < n)
        assert [i for start, stop in parts for i in range(start, stop)] == list(range(n))


def test_blockwise_agrees_with_the_slow_codebook_way():
    def by_lab(xs, block):
        codes = []
        for start in range(0, len(xs), block):
            part = xs[start : start + block]
            how = integers.symmetric(max(map(abs, part)))
            codes += integers.quantize(np.array(part, np.float32), how).tolist()
        return codes

    task = exercise("blockwise").task
    same = [task.reference(*case) == by_lab(*case) for case in cases_of("blockwise")]
    assert sum(same) > 0.98 * len(same)  # the lab's scale is an FP32, the exercise's is exact


def test_bubbles_are_those_of_the_timelines():
    for p, m in itertools.product((1, 2, 4), (4, 8)):
        assert exercise("bubble").task.reference(p, m, 1) == schedules.timeline("1f1b", p, m).bubble
        if p > 1:
            one = schedules.timeline("interleaved", p, m, 2)
            assert exercise("bubble").task.reference(p, m, 2) == one.bubble


def test_predictions_are_what_the_lab_computes():
    def right(name, answer):
        return exercise(name).check(answer, remember=False).passed

    assert right("predict_bits", int(fplab.encode(-0.15625, "fp16")))
    assert right("largest_e4m3", fplab.formats.get("e4m3").max)
    assert right("flags_of_overflow", int(fplab.add(65504, 16, "fp16", flags=True)[1]))
    smallest = next(x for x in fplab.decode(np.arange(1, 0x4400), "fp16") if float(fplab.add(2048, x, "fp16")) != 2048)
    assert right("absorbed", float(smallest))
    total, k = 0.0, 0
    while True:
        k += 1
        grown = float(fplab.add(total, float(fplab.quantize(1 / k, "fp16")), "fp16"))
        if grown == total:
            break
        total = grown
    assert right("harmonic_stop", k)
    assert total == 7.0859375
    weight = 1.0
    for _ in range(100):
        weight = float(fplab.add(weight, np.float64(0.003), "bf16"))
    assert right("stalled_weight", weight)
    d = tensorcore.dot([2.0**-12] * 4, [2.0**-12] * 4, 1 - 2.0**-24, gpu="V100")
    assert right("v100_predict", code_of(float(d), "fp32"))
    assert right("fp8_accumulator", tensorcore.dot([0.25] * 32, [0.25] * 32, 1024, gpu="H100", inputs="e4m3"))
    assert right("flushed_gradient", float(np.ldexp(1.0, -25)))
    assert float(fplab.quantize(2.0**-25, "fp16")) == 0 < float(fplab.quantize(np.nextafter(2.0**-25, 1), "fp16"))
    lost = [g for g in range(-14, 0) if float(fplab.quantize(0.001 * 2.0 ** (2 * g), "fp16")) == 0]
    assert right("vanishing_variance", 2.0 ** max(lost))


def test_state_bytes_are_those_of_quantised_states():
    for n, block in itertools.product((0, 1, 2047, 2048, 2049, 5000), (1, 256, 2048)):
        state = codebooks.quantize_blockwise(np.ones(n, np.float32), codebooks.dynamic(), block)
        assert exercise("state_bytes").task.reference(n, block) == 2 * state.nbytes

"""Whoever checks an integer goes on with Python's: numpy's small ones overflow in silence."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fplab
from fplab import codebooks, exact, integers, memory
from fplab.codebooks import tree
from fplab.errors import LabError, integer
from fplab.formats import Format
from fplab.integers import Grid
from fplab.memory import communication, inference, pipeline
from fplab.parallel import collectives, gloo
from fplab.parallel.settings import Setting
from fplab.tensorcore import Plan
from fplab.training import AmaxScaling, loop, tasks
from fplab.training.scalers.machine import Machine
from fplab.training.transformer import transformer

PACKAGE = Path(fplab.__file__).parent
u8, i8, i16, i64 = np.uint8, np.int8, np.int16, np.int64


def fields(record: Any) -> list[tuple[type, Any]]:
    """Every field of a record with its type."""
    return [(type(value), value) for value in (getattr(record, f.name) for f in dataclasses.fields(record))]


# A call with integers of any type, and the narrow ones that would overflow or fail in it.
RECORDS: list[tuple[Callable[..., Any], type, tuple[int, ...]]] = [
    (lambda e, f, b: Format("made", e, f, b), u8, (5, 10, 15)),
    (lambda e, f: Format("made", e, f), u8, (5, 10)),
    (lambda low, high: Grid("made", low, high), i8, (-100, 100)),
    (lambda n: memory.Tensor("w", (n, n)), u8, (100,)),
    (lambda h, m: AmaxScaling(history=h, margin=m), i64, (3, 2)),
    (lambda n: Machine(growth_interval=n), i8, (100,)),
    (lambda s, a, p: Plan(s, a, p), i8, (2, 100, 64)),
    (lambda n: codebooks.Rule("r", "", look_up=n), u8, (200,)),
    (lambda s: collectives.Wire(seed=s), u8, (200,)),
    (lambda r, s, m: Setting(("gpipe",), r, steps=s, micro_batches=m), i8, (2, 100, 4)),
    (lambda e, b, s: loop.Recipe(e, b, seed=s), u8, (200, 64, 200)),
]


@pytest.mark.parametrize(("make", "narrow", "given"), RECORDS, ids=range(len(RECORDS)))
def test_records_hold_pythons_integers(make: Callable[..., Any], narrow: type, given: tuple[int, ...]) -> None:
    assert fields(make(*map(narrow, given))) == fields(make(*given))


CALLS: list[tuple[Callable[..., Any], type, tuple[int, ...]]] = [
    (lambda n: memory.Tensor("w", (n, n)).elements, u8, (100,)),
    (lambda n: collectives.all_reduce(n), i8, (100,)),
    (lambda n: collectives.all_reduce(n, "doubling"), i8, (100,)),
    (lambda n: collectives.all_reduce(n, "tree"), i8, (100,)),
    (lambda n: collectives.all_reduce(4).sent(n), i8, (100,)),
    (lambda n, r: collectives.reduce_fast(lambda ranks: ranks.astype(np.float32), n, r), i8, (100, 100)),
    (lambda n, r: gloo.chunks(n, r).tolist(), i8, (100, 100)),
    (lambda c, r: gloo.order(c, r), u8, (0, 200)),
    (lambda n, s: pipeline.stage_layers(n, s), i8, (126, 8)),
    (lambda n, s, c: pipeline.layers_of(n, s, c), i8, (120, 20, 6)),
    (lambda s, m, c: pipeline.bubble(s, m, c), i8, (8, 100, 2)),
    (lambda i, s, m, c: pipeline.chunks_in_flight("interleaved", i, s, m, c), i8, (0, 20, 100, 6)),
    (lambda n, b, t: inference.kv_cache(memory.preset("llama3-8b"), n, b, t), i16, (32, 1, 8192)),
    (lambda n, r: communication.sent("all-reduce", n, r), i8, (100, 100)),
    (lambda n: communication.zero_volume(n, 3), i8, (100,)),
    (lambda n: memory.smallest("llama3-8b", n, zero=3, recompute="full").options.gpus, i64, (80 * 10**9,)),
    (lambda b: codebooks.dynamic_tree(b).values.tolist(), i64, (8,)),
    (lambda b: codebooks.linear(bits=b).values.tolist(), i8, (8,)),
    (lambda b: codebooks.dynamic(bits=b).values.tolist(), i8, (8,)),
    (lambda b: codebooks.quantile(np.arange(99.0), b).values.tolist(), i8, (8,)),
    (lambda c, b: tree.decode(c, b), u8, (200, 8)),
    (lambda b: tree.encode(0.006, b), i8, (8,)),
    (lambda n: integers.unpack_int4(np.zeros((2, 100), u8), n).tolist(), u8, (200,)),
    (lambda c: exact.decode(c, "e4m3"), u8, (255,)),
    (lambda c: exact.decode(c, "fp16"), np.uint16, (0xFBFF,)),
    (lambda w, h, b: tasks.perceptron(width=w, hidden=h, batch=b).key, i8, (100, 2, 100)),
    (lambda c, w: [p.shape for p in transformer(vocabulary=100, context=c, width=w).parameters()], i8, (100, 64)),
]


@pytest.mark.parametrize(("call", "narrow", "given"), CALLS, ids=range(len(CALLS)))
def test_calls_compute_with_pythons_integers(call: Callable[..., Any], narrow: type, given: tuple[int, ...]) -> None:
    want = call(*given)
    got = call(*map(narrow, given))
    assert repr(got) == repr(want)  # np.int8(3) is equal to 3, and its repr is another


def test_a_format_of_narrow_integers_rounds_as_the_format_it_is() -> None:
    """It gave zeros, and by a cache on equality so did the right one afterwards."""
    for fmt in (Format("q", u8(5), u8(10)), Format("q", 5, 10)):
        assert fplab.encode([1, 0.3], fmt).tolist() == [0x3C00, 0x34CD]


def test_the_scale_of_a_narrow_grid() -> None:
    scales = [integers.symmetric(np.float32([1.0]), Grid("g", kind(-100), kind(100))).scale for kind in (i8, int)]
    assert scales[0].tolist() == scales[1].tolist() == [np.float32(0.01)]


def test_no_check_of_an_integer_is_thrown_away() -> None:
    """A call of ``integer`` that stands alone leaves the caller with what was given."""
    alone = re.compile(r"^\s*integer\(", re.MULTILINE)
    assert [path.name for path in PACKAGE.rglob("*.py") if alone.search(path.read_text("utf-8"))] == []


@pytest.mark.parametrize("value", [True, 1.0, "1", None, np.ones(2, int), torch.ones(2), np.float32(1), np.True_])
def test_what_is_no_integer_is_refused_in_words(value: object) -> None:
    with pytest.raises(LabError, match=r"^n=.* is not an integer; allowed: 0 to 9\.$"):
        integer("n", value, 0, 9)


@pytest.mark.parametrize("value", [3, u8(3), np.array(3), torch.tensor(3)])
def test_what_stands_for_an_integer_becomes_one(value: object) -> None:
    found = integer("n", value, 0, 9)
    assert (type(found), found) == (int, 3)

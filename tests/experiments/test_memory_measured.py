"""The experiment on measured memory."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from experiments.frame import Mutant, frame, plus
from fplab.experiments import memory_measured
from fplab.memory.gap import explained, predicted
from fplab.memory.measuring import Trainer, measured_step
from fplab.memory.networks import build
from fplab.memory.tracing import Saved, trace

QUICK = memory_measured.QUICK
TINY = memory_measured.Params(layers=1, hidden=64, vocabulary=320, sequence=64, batches=1)


MUTANTS = (
    Mutant("the estimate of other states", ("states",), "estimated_step",
           lambda good: lambda params, recipe: good(params, recipe._replace(optimizer="adamw")), params=TINY),
    Mutant("four bytes more of a master copy", ("states",), change=plus("held", (3, 2), 4)),
    Mutant("a byte less after the forward pass", ("activations",), change=plus("activations", (7,), -1)),
    Mutant("two bytes more of copies", ("terms",), change=plus("terms", (6, 5), 2)),
    Mutant("a byte more traced", ("terms", "activations"), change=plus("traced", (0,), 1)),
    Mutant("a megabyte more at the peak", ("peak",), change=plus("peak", (0,), 10**6)),
    Mutant("mixed activations as wide as FP32's", ("mixed",), change=plus("activations", (3,), 10**7)),
    Mutant("gradients larger than weights", ("shares",), change=plus("shares", (0, 1, 1), 8)),
    Mutant("more states", ("shares",), change=plus("shares", (1, 1, 3), 2_300_000)),
    Mutant("an estimate above what was reserved", ("published",), change=plus("published", (0, 4), 2**34)),
)  # fmt: skip

globals().update(frame(memory_measured, QUICK, MUTANTS))


def test_8_bit_states_are_two_bytes_a_parameter_and_their_scales(result: Any) -> None:
    """Counted tensor by tensor: codes, scales in blocks of 256, and FP32 where a tensor is small."""
    row = [r.name for r in memory_measured.RECIPES].index("bf16, adamw8bit")
    network = build(QUICK.model, "meta")
    sizes = [p.numel() for p in network.parameters()]
    wanted = sum(8 * n if n < 4096 else 2 * n + 8 * -(-n // 256) for n in sizes)
    assert result.held[row, 3] == wanted
    assert any(n < 4096 for n in sizes)
    assert any(n >= 4096 for n in sizes)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_whole_step_can_be_measured_on_the_meta_device(precision: str) -> None:
    c = QUICK.model
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    inputs = memory_measured.tokens_of(c, 2)
    make = memory_measured.make_optimizer("adamw")
    real = measured_step(Trainer(build(c, dtype=dtype), precision, make), *inputs)
    meta = [tensor.to("meta") for tensor in inputs]
    shapes = measured_step(Trainer(build(c, "meta", dtype), precision, make), *meta)
    for kind in memory_measured.HELD:
        assert shapes.kinds[kind] == real.kinds[kind]
    if precision == "fp32":
        assert shapes == real


def test_mixed_precision_trains_master_weights() -> None:
    trainer = Trainer(build(QUICK.model, dtype=torch.bfloat16), "mixed", memory_measured.make_optimizer("adamw"))
    before = [master.clone() for master in trainer.master]
    trainer.module(*memory_measured.tokens_of(QUICK.model, 2)).backward()
    trainer.update()
    for master, was, weight in zip(trainer.master, before, trainer.weights, strict=True):
        assert not torch.equal(master, was)
        assert torch.equal(weight, master.to(torch.bfloat16))
        assert weight.grad is None
        assert master.grad is None


def test_what_no_rule_knows_is_a_copy_or_missing() -> None:
    c = QUICK.model
    saved = trace(build(c, "meta"), *memory_measured.tokens_of(c, QUICK.batch), device="cpu")
    plain = explained(c, QUICK.batch, c.sequence, 4, saved)
    assert plain["missing"] == plain["copies"] == 0
    more = explained(c, QUICK.batch, c.sequence, 4, (*saved, Saved("x", (7, 11), "float32", 308)))
    assert more["copies"] == 308
    biggest = max(saved, key=lambda one: one.bytes)
    less = explained(c, QUICK.batch, c.sequence, 4, [one for one in saved if one is not biggest])
    assert less["missing"] == biggest.bytes
    assert predicted(c, QUICK.batch, c.sequence, "fp32", "none")["copies"] == 0


def test_the_table_has_a_row_for_every_recipe_and_published_run(result: Any) -> None:
    table = memory_measured.rows(result)
    assert len(table["run"]) == len(memory_measured.RECIPES) + 8
    assert table["parameters, measured"][0] == 4 * QUICK.model.parameters
    assert table["peak, measured"][-1] == round(82.5 * 2**30)


def test_tokens_are_told_from_widths_at_both_sizes() -> None:
    """Weights and activations are told apart by shape, which needs batch times sequence to equal no width."""
    for params in (QUICK, memory_measured.Params()):
        c = params.model
        tokens = params.batch * c.sequence
        assert tokens not in {c.hidden, c.width, c.vocabulary, c.sequence}
        assert dataclasses.asdict(params)["layers"] == c.layers
        assert np.log2(params.hidden) % 1 == 0

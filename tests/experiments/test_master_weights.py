"""The experiment on 16-bit weights: its runs, its claims, mutants that they kill, its GPU cases."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import fplab
from experiments.frame import Mutant, frame
from fplab import formats
from fplab.experiments import lost_updates, master_weights
from fplab.experiments.torch_bits import WITH_FMA
from fplab.training.optimizers import programs

QUICK = master_weights.E.quick
TINY = replace(QUICK, rates=(2.0**-4,), distance=1.0, width=8, seeds=1, sample=64, every=4, slow=(2.0**-8, 16))
SHORT = replace(QUICK, rates=(2.0**-5,), distance=2.0, seeds=2)
SLOW = replace(QUICK, rates=(2.0**-5,), distance=0.5, seeds=2)


def rule(name: str, **fields: Any) -> Any:
    """The fault of a rule of updates, which is another or has other ``fields``."""
    return lambda rules: {**rules, name: rules[name]._replace(**fields)}


RULES, MASTER = "fplab.training.optimizers.precision.RULES", programs.RULES["master"]
UNCOMPENSATED = tuple(step for step in programs.COMPENSATED if step.target != "compensation")
MUTANTS = (
    Mutant("rates in the wrong order", ("smaller_steps",), "train",
           lambda good: lambda p, weights, update, rate, *of: good(p, weights, update, 1 / rate / 2**8, *of)),
    Mutant("a compensation that is forgotten", ("steps", "kahan_nearest"), RULES, rule("kahan", apply=UNCOMPENSATED),
           params=SHORT),
    Mutant("a velocity that does not decay", ("steps",), "fplab.training.optimizers.programs.MOMENTUM",
           lambda program: program[1:], params=TINY),
    Mutant("the 2048 rule taken at its word", ("textbook",), "TEXTBOOK", lambda rows: ((1.5, 1.5 / 2048, 1.5),),
           params=TINY),
    Mutant("stochastic rounding in the place of nearest", ("library_sums", "half_gap", "ratio_rule", "behind"), RULES,
           rule("nearest", stochastic=True), params=SHORT),
    Mutant("no stall by stochastic rounding", ("stalls",), RULES, rule("nearest", stochastic=True), params=SLOW),
    Mutant("ratios a binade higher", ("survivors",), "ratios", lambda good: lambda fmt: 2 * good(fmt), params=TINY),
    Mutant("stochastic rounding that is none", ("unbiased",), RULES, rule("stochastic", stochastic=False),
           params=SHORT),
    Mutant("an update that the copy gets twice", ("copy", "remedies"), RULES,
           rule("master", apply=MASTER.apply + MASTER.apply), params=SHORT),
    Mutant("distances in units of two ulps", ("copy",), "fplab.numeric.ulp", lambda good: lambda *of: 2 * good(*of),
           params=TINY),
    Mutant("an update without the rate", ("learning",), "fplab.training.optimizers.SGD",
           lambda good: lambda parameters, rate, *of, **how: good(parameters, 1.0, *of, **how),
           params=replace(SHORT, distance=4.0)),
)  # fmt: skip

globals().update(frame(master_weights, QUICK, MUTANTS))


def test_every_update_is_counted_and_added_up() -> None:
    """A ledger by hand: two parameters, two steps, every one counted."""
    parameters = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1))]
    ledger = master_weights.Ledger(1)
    for _ in range(2):
        ledger(parameters[0], np.float32([1, 2]), np.float32([0.5, 0]), np.float32([1, 2]))
        ledger(parameters[1], np.float32([3]), np.float32([0.25]), np.float32([-4]))
    assert [t.tolist() for t in ledger.total.values()] == [[2.0, 2.0], [3.5]]
    assert [p.tolist() for p in ledger.peak.values()] == [[1.0, 2.0], [4.0]]
    assert np.hstack(ledger.pairs)[:, :3].tolist() == [[1, 2, 3], [0.5, 0, 0.25], [1, 2, -4]]


def test_a_run_repeats_to_the_bit_and_seeds_differ() -> None:
    one, again, other = (master_weights.train(TINY, "bf16", "stochastic", 2.0**-4, 8, seed) for seed in (0, 0, 1))
    assert one.losses.tobytes() == again.losses.tobytes() != other.losses.tobytes()
    assert one.pairs.tobytes() == again.pairs.tobytes()


@pytest.mark.parametrize("fmt", master_weights.HALVES)
def test_survival_is_what_the_kernels_do_to_every_significand(fmt: str) -> None:
    form = formats.get(fmt)
    weights = np.arange(2**form.fraction_bits, 2**form.significand_bits, dtype=np.float64) * 2.0**-form.fraction_bits
    edges, shares = master_weights.ratios(fmt), master_weights.E.result(TINY).survival.sel(format=fmt).values
    for i in (0, 8, 11, 13, 16, 32):
        lost = fplab.quantize(weights + weights / edges[i], fmt) == weights  # the sum needs fewer than 53 bits or so
        assert lost.mean() == pytest.approx(shares[i], abs=2.0**-form.fraction_bits)


@pytest.mark.parametrize("fmt", master_weights.HALVES)
def test_gpu_cases_reach_the_criterion(fmt: str) -> None:
    """Kept, lost and ties; and a second compensated sum that the first one's loss has changed."""
    w, u = (
        fplab.decode(c, fmt).astype(np.float64)
        for c in (master_weights.pairs(2048)[f"{fmt}_{name}"] for name in ("weight", "update"))
    )
    assert 0.2 < lost_updates.lost_by_criterion(w, u, fmt).mean() < 0.8
    assert (np.abs(u) == fplab.ulp(w, fmt) / 2).sum() > 50
    kahan = next(master_weights.cases(QUICK))
    inputs = kahan.inputs()
    results = kahan.compute(inputs, "cpu")
    assert (fplab.decode(results[f"{fmt}_corrected"], fmt) != fplab.decode(inputs[f"{fmt}_update"], fmt)).mean() > 0.3


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() not in WITH_FMA, reason="torch rounds lr * g as well here")
def test_torchs_update_of_a_half_weight_is_rounded_twice() -> None:
    """w - lr * g in FP32 and then in the format, which now and then is not the nearest half number."""
    *_, sgd = master_weights.cases(replace(QUICK, sample=1 << 19))
    inputs = sgd.inputs()
    results, apart = sgd.compute(inputs, "cpu"), 0
    for fmt in master_weights.HALVES:
        w, g = (fplab.decode(inputs[f"{fmt}_{n}"], fmt).astype(np.float64) for n in ("weight", "update"))
        exactly = fplab.encode(w + g * np.float64(np.float32(-master_weights.LR)), fmt)
        apart += int((exactly != results[fmt]).sum())
    assert 0 < apart < 200

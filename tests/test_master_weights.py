"""The experiment on 16-bit weights: its runs, its claims, mutants that they kill, its GPU cases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from experiment_frame import Mutant, compute_with_little_installed, computed_on_cpu, drawn, frame, kills

import fplab
from fplab import formats
from fplab.experiments import master_weights
from fplab.experiments.master_weights import cases, checks, data
from fplab.experiments.torch_bits.checks import WITH_FMA
from fplab.hardware.cases import Arrays, Case

SMALL = master_weights.QUICK

arrays, test_it_is_loaded_by_its_name, test_every_claim_holds = frame(master_weights, SMALL)


def test_every_update_is_counted_and_added_up() -> None:
    """A ledger by hand: two parameters of one layer, two steps, every one counted."""
    import torch

    parameters = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1))]
    ledger = data.Ledger(parameters, 1)
    for _ in range(2):
        ledger(parameters[0], np.float32([1, 2]), np.float32([0.5, 0]), np.float32([1, 2]))
        ledger(parameters[1], np.float32([3]), np.float32([0.25]), np.float32([-4]))
    assert [t.tolist() for t in ledger.total] == [[1.0, 0.0], [0.5]]
    assert [p.tolist() for p in ledger.peak] == [[1.0, 2.0], [4.0]]
    assert ledger.by_layer().tolist() == [[[1, 2]], [[1, 2]]]


def test_a_run_repeats_to_the_bit_and_seeds_differ() -> None:
    few = data.Params(rates=(2.0**-4,), distance=0.5, width=16)
    variant = data.Variant("bf16", "stochastic")
    one, again, other = (data.one_run(few, variant, few.rates[0], seed) for seed in (0, 0, 1))
    assert one.losses.tobytes() == again.losses.tobytes() != other.losses.tobytes()
    assert one.pairs.tobytes() == again.pairs.tobytes()


@pytest.mark.parametrize("fmt", data.HALVES)
def test_survival_is_what_the_kernels_do_to_every_significand(fmt: str) -> None:
    form = formats.get(fmt)
    weights = np.arange(2**form.fraction_bits, 2**form.significand_bits, dtype=np.float64) * 2.0**-form.fraction_bits
    edges = data.ratio_edges(fmt)
    for i in (0, 8, 11, 13, 16, 32):
        lost = fplab.quantize(weights + weights / edges[i], fmt) == weights  # the sum needs fewer than 53 bits or so
        assert lost.mean() == pytest.approx(data.survival(fmt)[i], abs=2.0**-form.fraction_bits)


# --- mutants ----------------------------------------------------------------------------------------------------------


def changed(name: str, change: Callable[[np.ndarray], Any]) -> Callable[[Arrays], Arrays]:
    """A change of one array, in place or by a new one."""

    def fault(arrays: Arrays) -> Arrays:
        new = change(arrays[name])
        return {name: arrays[name] if new is None else new}

    return fault


def one_more_lost(pairs: np.ndarray) -> None:
    """A weight that a lost update has moved all the same."""
    w, _, after = pairs
    at = int(np.flatnonzero(after == w)[0])
    after[at] = fplab.neighbours(np.float32(w[at]), "bf16")[1]


def wrong_layers(ledger: type[data.Ledger]) -> type[data.Ledger]:
    """Lost updates blamed on the wrong layer."""

    class Mutant(ledger):  # type: ignore[misc, valid-type]
        def by_layer(self) -> np.ndarray:
            return super().by_layer()[:, ::-1]

    return Mutant


def without(program: Any, target: str) -> Any:
    """A rule without one of its lines."""
    return tuple(step for step in program if step.target != target)


def uncompensated(rules: Any) -> Any:
    """Kahan's rule that forgets what a sum lost."""
    return {**rules, "kahan": rules["kahan"]._replace(apply=without(rules["kahan"].apply, "compensation"))}


NEAREST = data.VARIANTS.index(data.Variant("bf16", "nearest"))
TINY = data.Params(rates=(2.0**-4,), distance=1.0, width=8, seeds=1, sample=64, every=4)
STEPS, COPY, KAHAN = "In the first, a middle", "With an FP32 copy", "With Kahan's"
MUTANTS = (
    Mutant("lost updates blamed on the wrong layer", (STEPS,), "data.Ledger", wrong_layers, params=TINY),
    Mutant("a compensation that is forgotten", (STEPS,), "fplab.training.optimizers.precision.RULES", uncompensated,
           params=TINY),
    Mutant("a velocity that does not decay", (STEPS,), "fplab.training.optimizers.programs.MOMENTUM",
           lambda program: program[1:], params=TINY),
    Mutant("a last loss of another run", (STEPS,), change=changed("final", lambda x: np.roll(x, 1, axis=0))),
    Mutant("the 2048 rule taken at its word", ("A ratio |w|/|u| of 2048",), "checks.TEXTBOOK",
           lambda rows: ((1.5, 1.5 / 2048, 1.5),), params=TINY),
    Mutant("sums that are rounded otherwise", ("The runs' sums",),
           change=changed("pairs_fp16_nearest", lambda x: x[2].__setitem__(0, 0.125))),
    Mutant("an update that is lost and is not", ("|u| < ulp(w)/2",),
           change=changed("pairs_bf16_nearest", one_more_lost)),
    Mutant("nothing ever reaches a weight", ("The 2048 rule",),
           change=changed("pairs_fp16_nearest", lambda x: x[2].__setitem__(slice(None), x[0]))),
    Mutant("ties away from even", ("In between",), change=changed("survival", lambda x: x * 0.9)),
    Mutant("larger steps lose more", ("The smaller the step",), change=changed("lost", lambda x: x[:, ::-1])),
    Mutant("stochastic rounding that is none", ("Stochastic rounding's",),
           change=lambda arrays: {"pairs_bf16_stochastic": arrays["pairs_bf16_nearest"]}),
    Mutant("a copy in BF16", (COPY,), change=changed("drift", lambda x: x + 0.3)),
    Mutant("distances in half ulps", (COPY,), change=changed("drift", lambda x: x / 2)),
    Mutant("Kahan as rounding to nearest", (KAHAN,),
           change=changed("drift", lambda x: x[[v - 2 if v in (3, 7) else v for v in range(9)]])),
    Mutant("BF16 as good as FP32", ("BF16 rounded to nearest",),
           change=changed("along", lambda x: x.__setitem__(NEAREST, x[0]))),
    Mutant("a loss along the way of another run", (STEPS,), change=changed("along", lambda x: np.roll(x, 1, axis=0))),
    Mutant("remedies that are none", ("FP32 copy, Kahan",),
           change=changed("final", lambda x: x.__setitem__(slice(NEAREST + 1, None), 1.1 * x[0]))),
    Mutant("an FP32 that reads badly", ("The network learns",), change=changed("top1", lambda x: x * 0.5)),
)  # fmt: skip
test_a_mutant_is_killed, test_every_claim_kills_a_mutant = kills(master_weights, SMALL, MUTANTS)


CASES = master_weights.gpu_cases(SMALL)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_gpu_cases_on_the_cpu_equal_the_lab_bit_for_bit(case: Case) -> None:
    computed_on_cpu(case)


@pytest.mark.parametrize("fmt", data.HALVES)
def test_gpu_cases_reach_the_criterion(fmt: str) -> None:
    """Kept, lost and ties; and a second compensated sum that the first one's loss has changed."""
    w, u = (fplab.decode(c, fmt).astype(np.float64) for c in cases.operands(fmt, 2048))
    lost = checks.lost_by_criterion(w, u, fmt)
    assert 0.2 < lost.mean() < 0.8
    assert (np.abs(u) == fplab.ulp(w, fmt) / 2).sum() > 50
    results = CASES[0].compute(CASES[0].inputs(), "cpu")
    corrected = fplab.decode(results[f"{fmt}_corrected"], fmt)
    given = fplab.decode(CASES[0].inputs()[f"{fmt}_update"], fmt)
    assert (corrected != given).mean() > 0.3


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() not in WITH_FMA, reason="torch rounds lr * g as well here")
def test_torchs_update_of_a_half_weight_is_rounded_twice() -> None:
    """w - lr * g in FP32 and then in the format, which now and then is not the nearest half number."""
    inputs = CASES[2].inputs() | cases.sgd_inputs(data.Params(sample=1 << 19))
    results = CASES[2].compute(inputs, "cpu")
    apart = 0
    for fmt in data.HALVES:
        w, g = (fplab.decode(inputs[f"{fmt}_{n}"], fmt).astype(np.float64) for n in ("weight", "update"))
        exactly = fplab.encode(w + g * np.float64(np.float32(-cases.LR)), fmt)
        apart += int((exactly != results[fmt]).sum())
    assert 0 < apart < 200


def test_cases_need_numpy_and_torch_alone() -> None:
    compute_with_little_installed(master_weights)


def test_the_table_has_a_row_for_every_run(arrays: Arrays) -> None:
    table = master_weights.table(arrays, SMALL)
    assert {len(column) for column in table.values()} == {9 * 2 * 3}
    assert (table["weights"][0], table["update"][-1], table["steps"][1]) == ("fp32", "master", 32)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_figure_draws_in_both_themes(theme: str, arrays: Arrays, tmp_path: Path) -> None:
    figure, _ = drawn(master_weights, arrays, SMALL, theme, tmp_path)
    titles = [ax.get_title(loc="left") for ax in figure.get_axes()]
    assert {"FP16: the criterion", "BF16, nearest: lost updates", "The price of a smaller step"} <= set(titles)

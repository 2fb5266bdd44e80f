"""Optimizers in any format: the rules of update, weight decay, torch's interface, and bad input."""

import math
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from optimizer_runs import N, oracle_round, run, same, slopes, start
from torch import nn

import fplab
from fplab.errors import LabError
from fplab.training.optimizers import RULES, SGD, Adam, AdamW, LabOptimizer, programs, written
from fplab.training.scalers import DynamicScaler


# --- any format: the definition on Fractions -----------------------------------------------------------------------
def momentum_by_definition(w: list[float], gradients: list[list[float]], fmt: str, update: str) -> list[float]:
    """SGD with momentum in Fractions, every result rounded by the oracle; states and updates in ``fmt``."""

    def r(x: Fraction) -> Fraction:
        return Fraction(oracle_round(x, fmt))

    lr, mu = Fraction(float(np.float32(0.3))), Fraction(float(np.float32(0.9)))
    weight, velocity, lost = [r(Fraction(x)) for x in w], [Fraction(0)] * len(w), [Fraction(0)] * len(w)
    master = [Fraction(x) for x in w]
    for gradient in gradients:
        for i, g in enumerate(gradient):
            velocity[i] = r(r(velocity[i] * mu) + Fraction(g))
            u = r(velocity[i] * -lr)
            match update:
                case "nearest":
                    weight[i] = r(weight[i] + u)
                case "kahan":
                    corrected = r(u + lost[i])
                    summed = r(weight[i] + corrected)
                    lost[i] = r(corrected - r(summed - weight[i]))
                    weight[i] = summed
                case "master":
                    master[i] = Fraction(float(np.float32(master[i] + u)))
                    weight[i] = r(master[i])
    return [float(x) for x in weight]


@pytest.mark.parametrize("update", ["nearest", "kahan", "master"])
@pytest.mark.parametrize("fmt", ["bf16", "fp16"])
def test_every_rule_in_half_precision_is_the_definition(fmt: str, update: str) -> None:
    weight = start(7, 12)
    gradients = [fplab.quantize(g, fmt) for g in slopes(25, 12, 8)]
    want = momentum_by_definition(weight.tolist(), [g.tolist() for g in gradients], fmt, update)
    got, _ = run(lambda p: SGD(p, 0.3, 0.9, weights=fmt, states=fmt, update=update), weight, gradients)
    assert got.tolist() == want


def adam_by_definition(w: float, gradients: list[float], fmt: str) -> float:
    """One weight of Adam with everything in ``fmt``, on Fractions; the root by integer square roots."""

    def r(x: Fraction) -> Fraction:
        return Fraction(oracle_round(x, fmt))

    def root(x: Fraction) -> Fraction:  # 80 binary digits, and a last one that says it was inexact
        scaled = x * 4**80
        low = math.isqrt(scaled.numerator // scaled.denominator)
        return Fraction(low * 2 + (low * low != scaled), 2**81)

    f = lambda x: Fraction(float(np.float32(x)))  # noqa: E731
    beta1, beta2 = 0.9, 0.999
    m = v = Fraction(0)
    weight = r(Fraction(w))
    for step, gradient in enumerate(gradients, start=1):
        g = Fraction(gradient)
        m = r(m + r(r(g - m) * f(1 - beta1)))
        v = r(r(v * f(beta2)) + r(r(g * f(1 - beta2)) * g))
        denominator = r(r(r(root(v)) / f((1 - beta2**step) ** 0.5)) + f(1e-3))
        weight = r(weight + r(r(m * f(-(0.01 / (1 - beta1**step)))) / denominator))
    return float(weight)


@pytest.mark.parametrize("fmt", ["bf16", "fp16"])
def test_adam_in_half_precision_is_the_definition(fmt: str) -> None:
    weight = start(9, 10)
    gradients = [fplab.quantize(g, fmt) for g in slopes(20, 10, 10)]
    got, _ = run(lambda p: Adam(p, 0.01, eps=1e-3, weights=fmt, states=fmt), weight, gradients)
    want = [adam_by_definition(float(weight[i]), [float(g[i]) for g in gradients], fmt) for i in range(10)]
    assert got.tolist() == want


@pytest.mark.parametrize("fmt", ["bf16", "fp16", "e4m3"])
def test_weights_and_states_hold_only_values_of_their_formats(fmt: str) -> None:
    def make(p: list[nn.Parameter]) -> LabOptimizer:
        return AdamW(p, states={"exp_avg": fmt, "exp_avg_sq": "e5m2"}, weights=fmt)

    got, optimizer = run(make, start(), slopes(5))
    (state,) = optimizer.state.values()
    for values, name in ((got, fmt), (state["exp_avg"].numpy(), fmt), (state["exp_avg_sq"].numpy(), "e5m2")):
        assert same(fplab.quantize(values, name), values)
        assert np.unique(values).size > 10


def test_a_master_copy_is_the_fp32_run_and_the_parameter_its_rounding() -> None:
    gradients = slopes(20)
    want, _ = run(lambda p: AdamW(p), start(), gradients)
    for fmt in ("fp16", "bf16"):
        got, optimizer = run(lambda p, fmt=fmt: AdamW(p, weights=fmt, update="master"), start(), gradients)  # type: ignore[misc]
        (state,) = optimizer.state.values()
        assert same(state["master"].numpy(), want)
        assert same(got, fplab.quantize(want, fmt))


# --- the rules of update -------------------------------------------------------------------------------------------
def creep(update: str, steps: int = 400, seed: int = 0, n: int = 400) -> np.ndarray:
    """Weights of 1 in BF16 after many updates of 2**-12, an eighth of half an ulp below 1: 1 - steps / 4096 in all."""
    gradients = [np.full(n, 2.0**-12, np.float32)] * steps
    return run(lambda p: SGD(p, 1.0, weights="bf16", update=update, seed=seed), np.ones(n, np.float32), gradients)[0]


def test_nearest_loses_what_kahan_a_master_copy_and_in_the_mean_stochastic_rounding_keep() -> None:
    exactly = 1 - 400 / 4096
    assert (creep("nearest") == 1).all()
    assert (creep("master") == fplab.quantize(exactly, "bf16")).all()
    assert np.abs(creep("kahan") - exactly).max() <= 2.0**-9  # half an ulp of the sum
    noisy = creep("stochastic")
    # each step goes down by 2**-8 with probability 2**-4 (the variance of a binomial), independently by element
    spread = 2.0**-8 * math.sqrt(400 * 2.0**-4 * (1 - 2.0**-4) / 400)
    assert abs(noisy.mean() - exactly) < 4 * spread
    assert np.unique(noisy).size > 5


def test_stochastic_rounding_depends_on_seed_step_and_place_alone() -> None:
    assert same(creep("stochastic", 50), creep("stochastic", 50))
    assert not same(creep("stochastic", 50), creep("stochastic", 50, seed=1))
    two = [nn.Parameter(torch.ones(400)) for _ in range(2)]
    optimizer = SGD(two, 1.0, weights="bf16", update="stochastic")
    for parameter in two:
        parameter.grad = torch.full((400,), 2.0**-10)
    optimizer.step()
    first = [p.detach().numpy().copy() for p in two]
    assert not same(*first)  # the two places draw other words
    optimizer.step()
    assert not same(first[0], two[0].detach().numpy())


def test_stochastic_updates_are_the_quantizers_own_draws() -> None:
    weight, (gradient,) = fplab.quantize(start(), "bf16"), slopes(1)
    got, optimizer = run(lambda p: SGD(p, 0.5, weights="bf16", update="stochastic", seed=3), weight, [gradient])
    word = int(np.random.Philox(key=np.array([3, 1 << 24], np.uint64)).random_raw(1)[0])
    total = weight.astype(np.float64) + (gradient * np.float32(-0.5)).astype(np.float64)
    assert same(got, fplab.quantize(total, "bf16", "stochastic", seed=word).astype(np.float32))
    assert optimizer.param_groups[0]["seed"] == 3


# --- weight decay --------------------------------------------------------------------------------------------------
def test_decay_is_an_update_that_a_narrow_weight_loses() -> None:
    """1 - lr * decay = 0.9999 is within half an ulp of 1 in BF16 and FP16: rounding to nearest undoes it for good."""
    zero = [np.zeros(N, np.float32)] * 100
    weight = fplab.quantize(np.abs(start()) + 1, "bf16")
    shrunk = {}
    for update in RULES:
        got, _ = run(lambda p, u=update: AdamW(p, weight_decay=0.1, weights="bf16", update=u), weight, zero)  # type: ignore[misc]
        shrunk[update] = float(np.mean(got / weight))
    wanted = (1 - 1e-4) ** 100
    assert shrunk["nearest"] == 1.0
    for update in ("master", "kahan", "stochastic"):
        assert shrunk[update] == pytest.approx(wanted, abs=3e-3)  # BF16's own rounding of the result: up to 2**-9


# --- torch's interface ---------------------------------------------------------------------------------------------
def test_groups_have_formats_of_their_own_and_layouts_do_not_matter() -> None:
    """An embedding may keep FP32 states; a transposed parameter is updated as its values, in its order."""
    table, matrix = nn.Parameter(torch.rand(5, 3)), nn.Parameter(torch.rand(4, 6).t())
    groups: list[dict[str, Any]] = [{"params": [table], "states": "fp32"}, {"params": [matrix]}]
    optimizer = Adam(groups, weights="bf16", states="bf16")
    plain = matrix.detach().contiguous().clone()
    table.grad, matrix.grad = torch.rand(5, 3), torch.rand(6, 4)
    optimizer.step()
    held = {name: optimizer.state[p]["exp_avg"].numpy() for name, p in (("table", table), ("matrix", matrix))}
    assert not same(fplab.quantize(held["table"], "bf16"), held["table"])
    assert same(fplab.quantize(held["matrix"], "bf16"), held["matrix"])
    want, _ = run(lambda p: Adam(p, weights="bf16", states="bf16"), plain.numpy(), [matrix.grad.numpy()])
    assert same(matrix.detach().contiguous().numpy(), want)
    assert not matrix.is_contiguous()


def test_schedulers_scalers_and_closures_work() -> None:
    parameter = nn.Parameter(torch.ones(3))
    optimizer = SGD([parameter], 1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    scaler = DynamicScaler(1024.0)
    for gradient in (0.25, math.inf, 0.25):
        optimizer.zero_grad()
        scaler.scale((parameter * gradient).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
    assert parameter.tolist() == [1 - 0.25 - 0.25 * 0.25] * 3
    assert scaler.get_scale() == 512.0

    def closure() -> float:
        optimizer.zero_grad()
        loss = parameter.square().sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == pytest.approx(3 * 0.6875**2)


def test_an_observer_sees_weight_update_and_weight_and_changes_nothing() -> None:
    seen: list[tuple[np.ndarray, ...]] = []
    parameter = nn.Parameter(torch.from_numpy(start(n=6).reshape(2, 3)))
    optimizer = SGD([parameter], 0.5, weights="bf16")
    first = parameter.detach().numpy().copy()
    optimizer.observer = lambda _, *arrays: seen.append(arrays)
    parameter.grad = torch.full((2, 3), 0.125)
    optimizer.step()
    before, update, after = seen[0]
    assert same(before, first)
    assert (update == -0.0625).all()
    assert same(after, parameter.detach().numpy())
    assert same(after, fplab.quantize(before.astype(np.float64) + update, "bf16").astype(np.float32))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "program", [programs.SGD, programs.MOMENTUM, programs.NESTEROV, programs.ADAM, programs.L2 + programs.ADAM]
)
def test_programs_read_nothing_that_nobody_made(rule: str, program: programs.Program) -> None:
    given = {"weight", "gradient", "velocity", "exp_avg", "exp_avg_sq", *RULES[rule].keeps}
    given |= set(SGD([nn.Parameter(torch.ones(1))])._coefficients({"lr": 1, "momentum": 0, "weight_decay": 0}, 1))
    adam = Adam([nn.Parameter(torch.ones(1))])
    given |= set(adam._coefficients(adam.param_groups[0], 1))
    assert programs.missing((*program, *RULES[rule].decay, *RULES[rule].apply), given) == []
    assert programs.missing(program, given - {"gradient"})


def test_a_program_can_be_read() -> None:
    assert written(programs.COMPENSATED).splitlines() == [
        "corrected = update + compensation",
        "summed = weight + corrected",
        "moved = summed - weight",
        "compensation = corrected - moved",
        "weight = summed",
    ]
    assert "root = sqrt(exp_avg_sq)" in written(programs.ADAM)


# --- bad input -----------------------------------------------------------------------------------------------------
def one(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(2, dtype=dtype))]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: SGD(one(), update="kahn"),
         "unknown update 'kahn'. Allowed: nearest, stochastic, kahan, master. Did you mean 'kahan'?"),
        (lambda: SGD(one(), weights="e8m0"), "e8m0 cannot hold weights or states: it has no sign or no zero."),
        (lambda: SGD(one(), weights="binary8p1se"),
         "binary8p1se cannot hold weights or states: it rounds ties of one bit by code."),
        (lambda: SGD(one(), weights="fp64"),
         "fp64 cannot hold weights or states: it does not fit float32, in which values travel."),
        (lambda: Adam(one(), states={"velocity": "bf16"}),
         "unknown state 'velocity'. Allowed: exp_avg, exp_avg_sq."),
        (lambda: SGD(one(), nesterov=True), "nesterov=True needs momentum above 0."),
    ],
)  # fmt: skip
def test_impossible_optimizers_are_refused(make, text) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(LabError) as caught:
        make()
    assert re.fullmatch(rf"fplab\.training\.(SGD|Adam)\(.*\): {re.escape(text)}", str(caught.value))


def test_a_nan_in_a_format_without_one_is_refused() -> None:
    parameter = one()
    optimizer = SGD(parameter, weights="e2m1")
    parameter[0].grad = torch.tensor([1.0, math.nan])
    with pytest.raises(LabError, match="the result of add is NaN, and e2m1 has none; look for the first NaN gradient"):
        optimizer.step()


@pytest.mark.parametrize("update", sorted(RULES))
def test_autograd_is_told_of_a_step_between_forward_and_backward(update: str) -> None:
    weight = nn.Parameter(torch.ones(4))
    optimizer = SGD([weight], lr=0.5, update=update)
    loss = (weight * weight).sum()
    weight.grad = torch.ones(4)
    optimizer.step()
    assert weight.tolist() == [0.5] * 4
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()

"""Loss scalers: GradScaler's state machine and its kernels' arithmetic, other libraries' rules, scales from amax."""

import inspect
import math
import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from refusals import refuses
from torch import nn

import fplab
from fplab.errors import LabError
from fplab.training.scalers import (
    AmaxScaling,
    ApexScaler,
    DynamicScaler,
    KerasScaler,
    Machine,
    Scaler,
    StaticScaler,
    Tracked,
    unscaled,
)
from fplab.training.scalers.amax import power_of_two_scale


class Counting(torch.optim.Optimizer):
    """An optimizer that counts its steps and keeps the gradients it was given."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})
        self.parameters = parameters
        self.applied: list[list[bytes]] = []

    def step(self) -> str:  # type: ignore[override]
        self.applied.append([bits(p.grad) for p in self.parameters if p.grad is not None])
        return "stepped"


def bits(tensor: torch.Tensor | None) -> bytes:
    assert tensor is not None
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()


def parameters(*sizes: int, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(n, dtype=dtype)) for n in sizes]


def give(optimizer: Counting, gradients: list[np.ndarray]) -> None:
    for parameter, gradient in zip(optimizer.parameters, gradients, strict=True):
        parameter.grad = torch.from_numpy(gradient.copy()).to(parameter.dtype)


# --- against torch -------------------------------------------------------------------------------------------------
PATTERNS = 800


def gradient(rng: np.random.Generator, bad: bool) -> np.ndarray:
    """Gradients of any magnitude, subnormals included, one of them not finite where asked."""
    g = (rng.standard_normal(3) * np.exp2(rng.integers(-140, 120))).astype(np.float32)
    if bad:
        g[rng.integers(3)] = rng.choice(np.array([np.inf, -np.inf, np.nan], np.float32))
    return g


def run_both(ours: Scaler, theirs: torch.amp.GradScaler, rng: np.random.Generator, share: float, steps: int) -> int:
    """A random pattern of overflows over two optimizers through both scalers; how many steps were skipped."""
    skipped = 0
    pairs = [[Counting(parameters(3)), Counting(parameters(3))] for _ in range(2)]
    theirs.scale(torch.ones(()))  # GradScaler makes its tensors on the first use
    for _ in range(steps):
        before = theirs.get_scale()
        for optimizers in pairs:
            given = [gradient(rng, rng.random() < share)]
            for optimizer, scaler in zip(optimizers, (ours, theirs), strict=True):
                give(optimizer, given)
                if len(optimizers[0].applied) % 3 == 1:
                    scaler.unscale_(optimizer)
            answers = [s.step(o) for s, o in zip((ours, theirs), optimizers, strict=True)]
            assert answers[0] == answers[1]
            skipped += answers[0] is None
            assert bits(optimizers[0].parameters[0].grad) == bits(optimizers[1].parameters[0].grad), before
        ours.update()
        theirs.update()
        assert (ours.get_scale(), ours._now.good_steps) == (theirs.get_scale(), theirs._get_growth_tracker())
    for one, other in pairs:
        assert one.applied == other.applied
    return skipped


def test_sequences_equal_grad_scalers_on_random_overflow_patterns() -> None:
    """Scales, counters, skipped steps and every bit of the gradients, over the whole range of scales and factors."""
    rng = np.random.default_rng(0)
    skipped = steps = 0
    for pattern in range(PATTERNS):
        start = float(np.float32(rng.uniform(1, 2) * 2.0 ** rng.integers(-148, 127)))
        growth = 2.0 if pattern % 2 else float(rng.uniform(1.01, 100))
        backoff = 0.5 if pattern % 2 else float(rng.uniform(0.01, 0.99))
        interval = int(rng.integers(1, 4))
        theirs = torch.amp.GradScaler("cpu", start, growth, backoff, interval)
        skipped += run_both(DynamicScaler(start, growth, backoff, interval), theirs, rng, rng.uniform(0, 0.6), 4)
        steps += 8
    assert 0.1 * steps < skipped < 0.9 * steps


def test_the_machine_is_torchs_kernel_on_every_kind_of_scale() -> None:
    rng = np.random.default_rng(1)
    for case in range(4_000):
        scale = float(np.float32(rng.uniform(1, 2) * 2.0 ** rng.integers(-149, 128)))
        machine = Machine(1.0, float(rng.uniform(1.001, 1e6)), float(rng.uniform(1e-6, 0.999)), int(rng.integers(1, 5)))
        now, found = Tracked(scale, int(rng.integers(0, machine.growth_interval))), bool(case % 2)
        tensor, tracker = torch.tensor(now.scale), torch.tensor(now.good_steps, dtype=torch.int32)
        torch._amp_update_scale_(
            tensor, tracker, torch.tensor(float(found)), machine.growth_factor, machine.backoff_factor,
            machine.growth_interval,
        )  # fmt: skip
        assert machine.after(now, found) == (tensor.item(), tracker.item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_unscaling_is_torchs_kernel_bit_for_bit(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(2)
    raw = rng.standard_normal(2_000) * np.exp2(rng.integers(-149, 125, 2_000))
    for scale in (65536.0, 3.7, 1.0, 2.0**-149, 1e-39, 3e38, 2.0**127, 0.1):
        one, other = Counting(parameters(2_000, dtype=dtype)), torch.from_numpy(raw.copy()).to(dtype)
        give(one, [raw])
        scaler = DynamicScaler(scale)
        scaler.unscale_(one)
        found = torch.zeros(())
        inverse = torch.tensor(scale).double().reciprocal().float()
        torch._amp_foreach_non_finite_check_and_unscale_([other], found, inverse)
        ours = one.parameters[0].grad
        assert ours is not None
        assert torch.equal(ours.isnan(), other.isnan())  # 0 times an infinite reciprocal; which NaN is the CPU's choice
        assert bits(ours.nan_to_num(nan=7.0)) == bits(other.nan_to_num(nan=7.0))
        assert scaler.found_inf(one) == bool(found) is False


def test_state_is_grad_scalers_and_goes_both_ways() -> None:
    ours, theirs = DynamicScaler(growth_interval=3), torch.amp.GradScaler("cpu", growth_interval=3)
    run_both(ours, theirs, np.random.default_rng(5), 0.2, 5)
    assert ours.state_dict() == theirs.state_dict()
    assert DynamicScaler().state_dict() == torch.amp.GradScaler("cpu").state_dict()
    again, torchs = DynamicScaler(growth_interval=3), torch.amp.GradScaler("cpu")
    again.load_state_dict(theirs.state_dict())
    torchs.load_state_dict(ours.state_dict())
    run_both(again, torchs, np.random.default_rng(6), 0.3, 9)
    assert again.state_dict() == torchs.state_dict()


# --- the published sequences -----------------------------------------------------------------------------------------
def keras_by_the_book(pattern: list[bool], growth_steps: int) -> list[float]:
    """Keras 3's rule as its source words it, in float32."""
    scale, counter, trace = np.float32(2.0**15), 0, []
    for finite in pattern:
        with np.errstate(over="ignore"):
            if not finite:
                counter, scale = 0, scale / np.float32(2)
            elif counter == growth_steps - 1:
                counter, scale = 0, scale * np.float32(2)
            else:
                counter += 1
        trace.append(float(scale))
    return trace


def apex_by_the_book(pattern: list[bool], window: int, least: float | None) -> list[float]:
    """Apex's rule, its bounds included, on Python floats."""
    scale, unskipped, trace = 2.0**16, 0, []
    for finite in pattern:
        if finite:
            unskipped += 1
        else:
            scale, unskipped = (max(least, scale / 2) if least else scale / 2), 0
        if unskipped == window:
            scale, unskipped = min(2.0**24, scale * 2), 0
        trace.append(scale)
    return trace


def trace_of(scaler: Scaler, pattern: list[bool]) -> list[float]:
    optimizer, trace = Counting(parameters(1)), []
    for finite in pattern:
        give(optimizer, [np.array([1.0 if finite else np.nan], np.float32)])
        scaler.step(optimizer)
        scaler.update()
        trace.append(scaler.get_scale())
    assert len(optimizer.applied) == sum(pattern)
    return trace


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6])
@pytest.mark.parametrize("interval", [1, 3])
def test_keras_and_apex_follow_their_own_rules(share: float, interval: int) -> None:
    pattern = (np.random.default_rng(3).random(150) >= share).tolist()
    assert trace_of(KerasScaler(dynamic_growth_steps=interval), pattern) == keras_by_the_book(pattern, interval)
    for least in (None, 256.0):
        apex = ApexScaler(scale_window=interval, min_loss_scale=least)
        want = apex_by_the_book(pattern, interval, least)
        assert trace_of(apex, pattern) == want
        assert not (share == 0 and interval == 1) or max(want) == 2.0**24


def test_keras_divides_where_torch_multiplies_by_the_reciprocal() -> None:
    """The same for a power of two; for another scale the reciprocal was rounded, and many results differ."""
    g = np.random.default_rng(4).standard_normal(1000).astype(np.float32)
    assert np.array_equal(unscaled(g, 2.0**16), unscaled(g, 2.0**16, divides=True))
    apart = unscaled(g, 3.7) != unscaled(g, 3.7, divides=True)
    assert 0.1 < apart.mean() < 0.6
    exact = [np.float32(float(Fraction(float(x)) / Fraction(float(np.float32(3.7))))) for x in g]
    assert np.array_equal(unscaled(g, 3.7, divides=True), exact)


# --- the loop's rules ------------------------------------------------------------------------------------------------
def test_scaling_multiplies_a_loss_as_torch_does() -> None:
    losses = [torch.tensor(3.0), torch.tensor([2.0, 4.0], dtype=torch.float16)]
    ours, theirs = DynamicScaler(512.0), torch.amp.GradScaler("cpu", 512.0)
    for mine, other in zip(ours.scale(losses), theirs.scale(losses), strict=True):
        assert mine.dtype == other.dtype
        assert torch.equal(mine, other)
    assert isinstance(ours.scale(tuple(losses)), tuple)


def test_a_static_scale_never_moves_and_may_apply_what_is_not_finite() -> None:
    for skip, answer in ((True, None), (False, "stepped")):
        scaler, optimizer = StaticScaler(128.0, skip=skip), Counting(parameters(1))
        give(optimizer, [np.float32([np.inf])])
        assert scaler.step(optimizer) == answer
        scaler.update()
        assert scaler.get_scale() == 128.0


def test_gradients_held_in_fp16_underflow_again_when_they_are_unscaled() -> None:
    """Why the unscaled gradient must be FP32: what the scale saved is lost once more, as FP16's rounding says."""
    values = np.float32([2.0**-10, 3.0, 2.0**-1 * 1.001])
    held = {}
    for fmt in (None, "fp16"):
        scaler, optimizer = DynamicScaler(gradients=fmt), Counting(parameters(3))
        give(optimizer, [values])
        scaler.unscale_(optimizer)
        held[fmt] = optimizer.parameters[0].grad.numpy()  # type: ignore[union-attr]
    assert held[None][0] == 2.0**-26
    assert held["fp16"][0] == 0
    assert np.array_equal(held["fp16"], fplab.quantize(held[None], "fp16"))


def test_sparse_gradients_are_unscaled_too() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    scaler = DynamicScaler()
    scaler.scale(table(torch.tensor([1, 1, 3])).sum()).backward()
    scaler.step(torch.optim.SGD(table.parameters(), lr=0.0))
    assert table.weight.grad.to_dense().tolist() == [[0, 0], [2, 2], [0, 0], [1, 1]]  # type: ignore[union-attr]


# --- bad input -------------------------------------------------------------------------------------------------------
ALLOWED = "; allowed: a finite number above 0 (float32: 2**-149 to 3.4e38)."


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: StaticScaler(-8.0), "scale=-8.0 cannot scale a loss: it would turn every gradient around" + ALLOWED),
        (lambda: DynamicScaler(0.0), "init_scale=0.0 cannot scale a loss: every scaled gradient would be 0" + ALLOWED),
        (lambda: DynamicScaler(1e-46), "init_scale=1e-46 cannot scale a loss: every scaled gradient would be 0"
         + ALLOWED),
        (lambda: DynamicScaler(math.inf), "init_scale=inf cannot scale a loss: every scaled gradient would be infinite "
         "or NaN" + ALLOWED),
        (lambda: KerasScaler(1e39), "init_scale=1e+39 cannot scale a loss: every scaled gradient would be infinite or "
         "NaN" + ALLOWED),
        (lambda: DynamicScaler(math.nan), "init_scale=nan cannot scale a loss: every scaled gradient would be NaN"
         + ALLOWED),
        (lambda: DynamicScaler("big"), "init_scale='big' is not a number" + ALLOWED),  # type: ignore[arg-type]
        (lambda: StaticScaler(True), "scale=True cannot scale a loss: it is no number" + ALLOWED),
        (lambda: DynamicScaler().update(-1.0), "new_scale=-1.0 cannot scale a loss: it would turn every gradient around"
         + ALLOWED),
        (lambda: DynamicScaler(growth_factor=1.0), "growth_factor=1.0 does not grow; allowed: finite and above 1."),
        (lambda: DynamicScaler(backoff_factor=1.0),
         "backoff_factor=1.0 does not shrink; allowed: between 0 and 1."),
        (lambda: DynamicScaler(growth_interval=0),
         "growth_interval=0 is not possible; allowed: 1 to 2147483647."),
        (lambda: ApexScaler(scale_factor=0.5), "scale_factor=0.5 does not grow; allowed: finite and above 1."),
        (lambda: ApexScaler(2.0**25), "lowest=0.0, init_scale=33554432.0, highest=16777216.0: a scale starts between "
         "its bounds, and the lowest is not negative."),
        (lambda: DynamicScaler().update(),
         "update() without a gradient looked at; call step(optimizer) or unscale_(optimizer) first."),
        (lambda: DynamicScaler().scale("loss"),
         "scale() got a str; allowed: a tensor, or a list or tuple of tensors."),
        (lambda: DynamicScaler().step(Counting(parameters(1))),
         "this optimizer has no gradient; call backward() on the scaled loss before step()."),
        (lambda: DynamicScaler().step(Counting(parameters(1)), closure=None),
         "a closure cannot be used with a loss scaler: it would compute unscaled gradients."),
        (lambda: AmaxScaling(history=-1), "history=-1 is not possible; allowed: 0 to 65536."),
    ],
)  # fmt: skip
def test_impossible_scalers_are_refused(make, text) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(LabError) as caught:
        make()
    call, rule = re.fullmatch(r"(fplab\.training\.\w+\(.*?\): )?(.*)", str(caught.value)).groups()
    assert rule == text
    assert (call is None) == ("DynamicScaler()." in inspect.getsource(make))  # the methods' errors name them


def test_errors_of_scalers_quote_the_call() -> None:
    for make, call in (
        (lambda: StaticScaler(-8.0), "fplab.training.StaticScaler(-8.0): scale=-8.0 "),
        (lambda: KerasScaler(dynamic_growth_steps=0), "fplab.training.KerasScaler(dynamic_growth_steps=0): growth"),
        (lambda: AmaxScaling("fp8"), "fplab.training.AmaxScaling('fp8'): unknown format 'fp8'"),
        (lambda: Machine(2.0, 1.0), "fplab.training.scalers.Machine(2.0, 1.0): growth_factor=1.0"),
    ):
        with pytest.raises(LabError, match=re.escape(call)):
            make()


def test_calls_out_of_order_are_refused_as_torch_refuses_them() -> None:
    scaler, optimizer = DynamicScaler(), Counting(parameters(1))
    give(optimizer, [np.float32([1.0])])
    scaler.unscale_(optimizer)
    with pytest.raises(LabError, match=r"^unscale_\(\) was already called on this optimizer since the last update"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    refuses(lambda: scaler.step(optimizer), r"^step\(\) was already called on this optimizer since the last update")
    refuses(lambda: scaler.unscale_(optimizer), r"^unscale_\(\) or step\(\) was already called")


def test_fp16_gradients_are_refused_with_the_reason() -> None:
    optimizer = Counting(parameters(1, dtype=torch.float16))
    give(optimizer, [np.float32([1.0])])
    with pytest.raises(LabError, match=r"the gradients are torch\.float16: unscaled, they would underflow again\."):
        DynamicScaler().unscale_(optimizer)
    theirs = torch.amp.GradScaler("cpu")
    theirs.scale(torch.ones(()))
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        theirs.unscale_(optimizer)


def test_a_scale_that_fell_to_zero_is_named() -> None:
    scaler, optimizer = DynamicScaler(2.0**-149), Counting(parameters(1))
    give(optimizer, [np.float32([np.nan])])
    scaler.step(optimizer)
    scaler.update()
    with pytest.raises(LabError, match=r"^the loss scale has become 0\.0: the gradients stayed infinite or NaN"):
        scaler.scale(torch.ones(()))
    scaler.update(8.0)
    assert float(scaler.scale(torch.ones(()))) == 8.0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"growth_interval": 100}, "the state was saved with growth_interval=100, but this scaler has "
         "growth_interval=2000; build the scaler with growth_interval=100 to go on from it."),
        ({"scale": -4.0}, "the state's scale=-4.0 cannot scale a loss: it would turn every gradient around" + ALLOWED),
        ({"scale": math.inf}, "the state's scale=inf cannot scale a loss: every scaled gradient would be infinite or "
         "NaN" + ALLOWED),
        ({"_growth_tracker": 2000}, "the state's _growth_tracker=2000 is not possible; allowed: 0 to 1999."),
    ],
)  # fmt: skip
def test_a_state_of_another_configuration_is_refused(change, text) -> None:  # type: ignore[no-untyped-def]
    scaler = DynamicScaler()
    with pytest.raises(LabError) as caught:
        scaler.load_state_dict({**scaler.state_dict(), **change})
    assert str(caught.value) == text
    with pytest.raises(LabError, match=r"the state has no 'static'; it holds _growth_tracker, backoff_factor, "):
        StaticScaler(4.0).load_state_dict(scaler.state_dict())
    with pytest.raises(LabError, match=r"saved with highest=16777216\.0, but this scaler has highest=1024\.0"):
        ApexScaler(512.0, max_loss_scale=1024.0).load_state_dict(ApexScaler().state_dict())


# --- FP8: a scale for each tensor ------------------------------------------------------------------------------------
@pytest.mark.parametrize("fmt", ["e4m3", "e5m2", "e3m4", "fp16"])
def test_the_amax_scale_is_the_largest_power_of_two_that_does_not_overflow(fmt: str) -> None:
    largest = fplab.formats.get(fmt).max
    rng = np.random.default_rng(7)
    amaxes = [*np.exp2(rng.uniform(-60, 60, 300)).astype(np.float32).tolist(), 1.0, 448.0, 449.0, 57344.0, 7.0, 28.0]
    for amax in amaxes:
        scale = power_of_two_scale(amax, largest)
        assert math.frexp(scale)[0] == 0.5
        assert Fraction(amax) * Fraction(scale) <= Fraction(largest) < 2 * Fraction(amax) * Fraction(scale)
        assert power_of_two_scale(amax, largest, margin=2) == scale / 4


def test_delayed_scaling_uses_the_largest_amax_of_the_steps_before() -> None:
    scaling = AmaxScaling("e4m3", history=2)
    amaxes = [1.0, 4.0, 2.0, 2.0, math.inf, 0.0, 0.0, 0.0]
    scales = [scaling.scale("weight", torch.tensor([amax, -amax / 2])) for amax in amaxes]
    assert scales == [1.0, 256.0, 64.0, 64.0, 128.0, 128.0, 128.0, 1.0]


def test_current_scaling_looks_at_the_tensor_itself() -> None:
    scaling = AmaxScaling("e4m3", history=0)
    assert [scaling.scale("x", torch.tensor([a])) for a in (1.0, 500.0, 0.0, math.nan)] == [256.0, 0.5, 1.0, 1.0]


def test_each_role_has_its_own_history_and_gradients_their_own_format() -> None:
    scaling = AmaxScaling("e4m3", gradients="e5m2", history=4)
    scaling.scale("linear.weight", torch.tensor([1.0]))
    scaling.scale("linear.gradient", torch.tensor([1.0]))
    assert scaling.scale("linear.weight", torch.zeros(1)) == 256.0
    assert scaling.scale("linear.gradient", torch.zeros(1)) == 2.0**15
    assert scaling.scale("another", torch.zeros(0)) == 1.0
    formats = {role: scaling.format_of(role).name for role in ("UpgradedLinear 1 forward 0 a", "x backward 0 gradient")}
    assert list(formats.values()) == ["e4m3", "e5m2"], "a name that contains grad is no gradient"


def test_amax_histories_survive_a_checkpoint() -> None:
    one, two = (AmaxScaling("e4m3", history=3) for _ in range(2))
    for amax in (1.0, 5.0):
        one.scale("x", torch.tensor([amax]))
    two.load_state_dict(one.state_dict())
    assert [s.scale("x", torch.ones(1)) for s in (one, two) for _ in range(4)] == [64.0, 64.0, 64.0, 256.0] * 2
    with pytest.raises(LabError, match="the state was saved with history=3, but this one has history=4"):
        AmaxScaling("e4m3", history=4).load_state_dict(one.state_dict())

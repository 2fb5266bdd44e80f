"""What a watch says of real runs: where one broke, which loss scale one needs, what must stay FP32, where two part."""

import copy
import itertools
import math
import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from watched import half, run, step, unbroken

import fplab
from fplab import training
from fplab.draw import style
from fplab.draw import watch as drawing
from fplab.nn import watch
from fplab.nn.diagnose import format_advice, watch_report

Tensor = torch.Tensor


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def plain() -> watch:
    return run(24, every=2)


# --- where a run broke ---------------------------------------------------------------------------------------------
def test_a_run_that_diverges_in_fp16_is_named_at_its_first_infinity():
    seen = run(30, lr=60.0, fp16=True, momentum=0.0)
    first = seen.first
    assert first is not None
    assert first is seen.first_kept
    assert first.kind == "activations"
    # the same run, looked at by hand: the first layer whose FP16 output is infinite
    model = training.digits_net(0)
    optimizer = torch.optim.SGD(model.parameters(), 60.0)
    images, labels = training.tensors(training.digits("test"))
    found: list[tuple[int, str, int]] = []
    with half(model):
        for step, index in enumerate(training.batches(359, training.Recipe(epochs=40))):
            x = images[torch.from_numpy(index)]
            for name, module in model.named_children():
                x = module(x)
                if not torch.isfinite(x).all():
                    found.append((step, name, int(torch.isinf(x).sum())))
                    break
            if found:
                break
            optimizer.zero_grad()
            nn.functional.cross_entropy(
                model(images[torch.from_numpy(index)]), labels[torch.from_numpy(index)]
            ).backward()
            optimizer.step()
    assert (first.step, first.layer, first.infinite) == found[0]
    assert first.step > 0
    assert first.before[0] == first.step - 1
    assert 0 < first.before[1] <= 65504
    text = unbroken(seen.report())
    assert f"the run broke at step {first.step}; the counts below go on after it" in text
    assert f"NOT FINITE step {first.step}, activations of {first.layer}: {first.infinite:,} infinite" in text
    assert "likely: beyond the largest value of its format: a lower learning rate" in text
    assert seen.report().first == first


@pytest.mark.parametrize(
    ("poison", "kind", "tensor", "step", "cause"),
    [("input", "input", "the model's input", 2, "the data holds it already"),
     ("weight", "initial weights", "one.weight", 0, "there before the first step"),
     ("forward", "activations", "mid", 2, "no infinity came before this NaN"),
     ("loss", "activation gradients", "two", 2, "the forward pass was finite and the backward pass is not"),
     ("gradient", "weight gradients", "two.weight", 2, "the forward pass was finite and the backward pass is not"),
     ("update", "updates", "two.weight", 2, "the gradients were finite and the update is not"),
     ("state", "state momentum_buffer", "two.weight", 2, "the optimizer's state overflows")],
)  # fmt: skip
def test_the_first_tensor_is_named_wherever_it_is(poison, kind, tensor, step, cause):
    class Poison(nn.Module):
        on = False

        def forward(self, x: Tensor) -> Tensor:
            return x * math.nan if self.on else x

    class Optimizer(torch.optim.SGD):
        on = False

        def step(self, closure: Any = None) -> None:
            super().step()
            if self.on:
                last = self.param_groups[0]["params"][-2]
                target = last.data if poison == "update" else self.state[last]["momentum_buffer"]
                target[0, 0] = math.inf

    model = nn.Sequential()
    for name, module in (("one", nn.Linear(3, 4)), ("mid", Poison()), ("two", nn.Linear(4, 2))):
        model.add_module(name, module)
    if poison == "weight":
        with torch.no_grad():
            model.get_submodule("one").weight[1, 1] = math.nan
    optimizer = Optimizer(model.parameters(), 0.1, momentum=0.9)
    with watch(model, optimizer, every=1) as seen:
        for i in range(4):
            optimizer.zero_grad()
            Poison.on = poison == "forward" and i == 2
            optimizer.on = poison in ("update", "state") and i == 2
            x = torch.randn(5, 3)
            if poison == "input" and i == 2:
                x[1, 1] = math.inf
            loss = model(x).square().sum()
            if poison == "loss" and i == 2:
                loss = loss * math.inf
            loss.backward()
            if poison == "gradient" and i == 2:
                model.get_submodule("two").weight.grad[0, 1] = math.inf
            optimizer.step()
    first = seen.first
    assert (first.kind, first.tensor, first.step) == (kind, tensor, step)
    assert cause in first.cause
    assert first.at == {"input": 4, "weight": 4, "gradient": 1}.get(poison, 0)
    assert first.infinite + first.nan >= 1
    assert first.kind == "loss" or str(first.step) in str(first)


def test_steps_that_are_not_counted_are_still_searched():
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, optimizer, every=1000) as seen:
        for i in range(9):
            step(optimizer, model(torch.randn(2, 3) * (math.inf if i == 7 else 1)).sum())
    assert (seen.first.step, seen.first.kind) == (7, "input")
    assert sum(seen.histogram("weights")[1]) == 12


# --- loss scaling ----------------------------------------------------------------------------------------------------
def test_gradients_that_underflow_get_the_scale_that_saves_them():
    """A loss of a 2^-18th: FP16 would round most of its gradients to zero; the evidence is recounted by rounding."""
    divide = 2.0**18
    seen = run(16, divide=divide)
    found = seen.report()
    scale = found.scales["fp16"]
    assert scale.works
    assert scale.window.low <= scale.log2 < scale.window.high
    assert scale.without.share("vanish") > 0.5
    assert scale.within.share("vanish") < 0.001
    assert scale.within.overflow == 0
    text = str(found)
    assert f"LOSS SCALE  fp16: 2^{scale.log2} = {2**scale.log2:,} (of the non-zero gradients" in text
    assert "LOSS SCALE  bf16: none needed" in text
    # By hand: all gradients of the same run, scaled and rounded
    model = training.digits_net(0)
    images, labels = training.tensors(training.digits("test"))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    gradients: dict[str, list[np.ndarray]] = {}
    for index in itertools.islice(training.batches(359, training.Recipe(epochs=40)), 16):
        chosen = torch.from_numpy(index)
        optimizer.zero_grad()
        x = images[chosen]
        outs = {}
        for name, module in model.named_children():
            x = outs[name] = module(x)
            x.retain_grad()
        (nn.functional.cross_entropy(x, labels[chosen]) / divide).backward()
        for name, out in outs.items():
            gradients.setdefault(f"activation gradients {name}", []).append(out.grad.numpy().copy().ravel())
        for name, p in model.named_parameters():
            gradients.setdefault(f"weight gradients {name.split('.')[0]}", []).append(p.grad.numpy().copy().ravel())
        optimizer.step()
    every = {name: np.concatenate(parts) for name, parts in gradients.items()}
    nonzero = np.concatenate([x[x != 0] for x in every.values()])
    for log2, fates in ((0, scale.without), (scale.log2, scale.within)):
        kept = fplab.quantize(nonzero * np.float32(2.0**log2), "fp16")
        assert fates.vanish == (kept == 0).sum()
        assert fates.underflow == ((np.abs(kept) < 2.0**-14) & (kept != 0)).sum()
    lows, highs = [], []
    for x in every.values():
        x = x[x != 0]
        vanish = [float((fplab.quantize(x * np.float32(2.0**s), "fp16") == 0).mean()) for s in range(41)]
        over = [bool(np.isinf(fplab.quantize(x * np.float32(2.0**s), "fp16")).any()) for s in range(41)]
        lows.append(next(s for s in range(41) if vanish[s] <= 0.001))
        highs.append([*over, True].index(True) - 1)
    assert scale.window == (max(lows), min(highs))


def test_no_scale_is_recommended_where_none_serves():
    class Wide(nn.Module):
        """Two layers, the gradients of one 2^60 times those of the other."""

        def __init__(self) -> None:
            super().__init__()
            self.small, self.large = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.small(x).sum() * 2.0**-40 + self.large(x).sum() * 2.0**10

    model = Wide()
    optimizer = torch.optim.SGD(model.parameters(), 1e-12)
    with watch(model, optimizer, every=1) as seen:
        for _ in range(2):
            step(optimizer, model(torch.randn(8, 4)))
    scale = seen.report().scales["fp16"]
    assert not scale.works
    assert scale.left_out == ("small",)
    assert "no single scale serves every layer; at 2^" in unbroken(seen.report())
    row = next(r for r in seen.report().rows if (r.layer, r.kind) == ("small", "weight gradients"))
    assert str(row.choices[16]) == "bf16"


def test_a_grad_scaler_of_torch_s_is_noticed_and_divided_out():
    plain, scaled = run(10), run(10, scaler=torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3))
    assert scaled.scales == (2.0**10, 2.0**13)
    assert scaled.skipped == 0
    for kind in ("activation gradients", "weight gradients", "updates", "weights", "activations"):
        for layer in plain.layers(kind):
            for mine, theirs in zip(plain.histogram(kind, layer), scaled.histogram(kind, layer), strict=True):
                assert (mine == theirs).all(), kind
    assert "gradients are shown divided by the run's loss scale (2^10 to 2^13)" in unbroken(scaled.report())


def test_a_step_that_the_scaler_skips_is_a_step_and_harms_nothing():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    seen = run(40, fp16=True, scaler=scaler)
    assert seen.steps == 40
    assert seen.skipped > 0
    assert scaler.get_scale() == 2.0 ** (30 - seen.skipped)
    assert seen.first.skipped
    assert seen.first.scale == 2.0**30
    assert "gradients" in seen.first.kind
    assert seen.first_kept is None
    text = unbroken(seen.report())
    assert f"40 steps, {seen.skipped} skipped by the loss scaler" in text
    assert "the loss scaler skipped this step" in text
    assert "likely: the loss scale 2^30 is too large here" in text
    assert seen.fates("fp16", "updates").nonzero + seen.fates("fp16", "updates").zero == 25866 * (40 - seen.skipped)


def test_a_weight_gradient_that_alone_overflows_is_found_though_the_step_is_skipped():
    model = nn.Linear(2, 1, bias=False)
    nn.init.constant_(model.weight, 2.0**-20)
    optimizer = torch.optim.SGD(model.parameters(), 2.0**-60)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**121)
    with watch(model, optimizer, every=1) as seen:
        scaler.scale(model(torch.full((64, 2), 2.0**6)).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scaler.scale(model(torch.full((64, 2), 2.0**8)).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert (seen.steps, seen.skipped) == (2, 1)
    assert (seen.first.step, seen.first.kind, seen.first.tensor, seen.first.skipped) == (
        1,
        "weight gradients",
        "weight",
        True,
    )


def test_a_fused_optimizer_that_skips_by_itself():
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 2.0**-6, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    with watch(model, optimizer, every=1) as seen:
        for factor in (1.0, math.inf):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(4, 2)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
    assert (seen.steps, seen.skipped) == (2, 1)
    assert seen.histogram("weight gradients")[0].tolist() == [2]  # 4, without the scale


def test_a_scaler_of_one_s_own_and_a_scale_that_is_no_power_of_two():
    class Mine:
        def __init__(self, scale: float) -> None:
            self._scale = scale

        def scale(self, loss: Tensor) -> Tensor:
            return loss * self._scale

        def get_scale(self) -> float:
            return self._scale

        def step(self, optimizer: Any) -> None:
            for group in optimizer.param_groups:
                for p in group["params"]:
                    p.grad /= self._scale
            optimizer.step()

        def update(self) -> None:
            pass

    plain, scaled, odd = run(4), run(4, scaler=Mine(2.0**12)), run(4, scaler=Mine(3000.0))
    assert scaled.scales == (2.0**12, 2.0**12)
    assert (plain.histogram("gradients")[1] == scaled.histogram("gradients")[1]).all()
    n = plain.fates("fp16", "activation gradients").nonzero
    assert (
        abs(odd.fates("fp16", "activation gradients").vanish - plain.fates("fp16", "activation gradients").vanish)
        < n / 1000
    )
    assert "scale" in vars(Mine)
    assert Mine.scale.__qualname__.endswith("Mine.scale")


# --- the report ------------------------------------------------------------------------------------------------------
def test_a_report_is_kept_and_copied(plain):
    report = plain.report()
    for kept in (pickle.loads(pickle.dumps(report)), copy.deepcopy(report)):
        assert str(kept) == str(report)


def test_the_report_says_what_must_stay_fp32(plain):
    found = plain.report()
    lost = plain.lost()
    assert lost.share("bf16") > lost.share("fp16") > 0.05
    text = str(found)
    share = watch_report.percent(lost.share("fp16"))
    assert f"STAYS FP32  the weights' master copy: of {lost.moved:,} updates fp16 would lose {share}" in text
    assert "no FP32 copy needed" in str(plain.report(lost=0.99))
    assert found.headline == "Sequential with SGD: 24 steps, 12 of them counted"
    assert repr(found) == text
    assert "NOT FINITE  nothing" in text


def test_the_table_has_a_row_for_every_layer_and_kind(plain):
    found = plain.report()
    table = found.table()
    assert len(found.rows) == sum(len(plain.layers(kind)) for kind in plain.kinds)
    lines = table.splitlines()
    assert len(lines) == len(found.rows) + 3
    assert re.split(r"\s\s+", lines[0]) == [
        "layer", "kind", "zero", "binades", "fp16", "bf16", "e4m3", "e5m2", "in 16 bits", "in 8 bits",
    ]  # fmt: skip
    row = next(r for r in found.rows if (r.layer, r.kind) == ("conv3", "activation gradients"))
    fates = plain.fates("fp16", "activation gradients", "conv3")
    assert row.fates["fp16"] == fates
    shares = "/".join(watch_report.percent(fates.share(n)) for n in ("vanish", "underflow", "overflow"))
    line = next(x for x in lines if x.startswith("conv3") and "activation gradients" in x)
    assert shares in line
    low, high = plain.histogram("activation gradients", "conv3")[0][[0, -1]]
    assert f"2^{low}..2^{high}" in line
    assert all(len(x) < 170 for x in lines)


def test_a_long_table_shows_the_whole_and_what_is_unlike_it(plain):
    found = plain.report()
    text = found.table(12)
    assert text.count("(all)") == len(plain.kinds)
    assert f"of {len(found.rows)} rows: the whole model, and layers unlike it" in text
    assert len(text.splitlines()) <= 12 + 4


def test_choices_are_the_first_of_their_width_that_keep_within_the_limits(plain):
    scale = plain.report().scales["fp16"]
    for row in plain.report().rows:
        for choice in row.choices.values():
            if choice is None:
                continue
            fates = plain.fates(choice.format, row.kind, row.layer, choice.log2_scale)
            assert fates.overflow == 0
            assert fates.share("vanish") <= 0.001
            if choice.format.bits == 16:
                wanted = scale.log2 if "gradients" in row.kind and choice.format.name == "fp16" else 0
                assert choice.log2_scale == wanted
            else:
                # one binade of headroom and no more
                assert plain.fates(choice.format, row.kind, row.layer, choice.log2_scale + 1).overflow == 0
                assert plain.fates(choice.format, row.kind, row.layer, choice.log2_scale + 2).overflow > 0
    only = run(2, formats=("e4m3",)).report()
    assert {len(r.choices) for r in only.rows} == {1}
    assert not only.scales
    assert "8 BITS      weights: of 4 tensors" in str(only)
    assert format_advice.widths(plain.formats).keys() == {16, 8}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_figure_has_a_panel_for_every_kind(plain, theme, tmp_path):
    figure = pickle.loads(pickle.dumps(plain.report())).figure(theme)  # a report is kept without the model
    style.save(figure, tmp_path / "watch.png", theme)
    titles = {ax.get_title(loc="left") for ax in figure.axes}
    assert set(plain.kinds) <= titles
    assert {"Updates lost without an FP32 copy", "Largest magnitude of a step"} <= titles
    assert (tmp_path / "watch.png").stat().st_size > 50_000


def test_the_figure_of_a_broken_run_and_of_one_without_gradients(tmp_path):
    seen = run(6, lr=1e4, fp16=True, momentum=0.0)
    assert seen.first is not None
    figure = seen.report().figure()
    texts = [text.get_text() for ax in figure.axes for text in ax.texts]
    assert f" first infinity or NaN: step {seen.first.step} " in texts
    style.save(figure, tmp_path / "broken.png", "light")


def test_steps_are_whole_numbers_on_the_axis():
    figure = run(2, lr=0.1, fp16=False, momentum=0.0).report().figure()
    (steps,) = [ax for ax in figure.axes if ax.get_title(loc="left") == "Largest magnitude of a step"]
    assert all(tick == int(tick) for tick in steps.get_xticks())


def test_many_layers_are_merged_by_name_in_the_figure():
    one = (np.array([-2, -1]), np.array([1, 2]))
    layers = {f"net.block{i}.conv{j}": one for i in range(6) for j in range(4)}
    merged = drawing.grouped(layers)
    assert list(merged) == [f"net.block{i}" for i in range(6)]
    assert merged["net.block0"][1].tolist() == [4, 8]
    apart = drawing.grouped({"a.x": (np.array([0]), np.array([1])), "a.y": (np.array([3]), np.array([5]))}, most=1)
    assert apart["a"][0].tolist() == [0, 1, 2, 3]
    assert apart["a"][1].tolist() == [1, 0, 0, 5]


def test_weights_that_lose_their_updates_already_need_a_copy():
    """Held in BF16, a weight shows only the updates that BF16 kept: those it lost are told by their gradients."""
    weights = nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
    model = nn.Module()
    model.weights = weights
    model.forward = lambda x: model.weights * x  # type: ignore[method-assign]
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    pushes = torch.full((64,), 2.0**-10, dtype=torch.bfloat16)  # below half an ulp of 1
    for moving, verdict in ((64, "WEIGHTS no FP32 copy needed"), (32, "STAYS FP32"), (0, "STAYS FP32")):
        pushes[:moving] = 1.0
        with watch(model, optimizer, every=1) as seen:
            step(optimizer, model(pushes).sum())
        assert seen.lost().still == 64 - moving
        text = unbroken(seen.report())
        assert verdict in text
        still = f"and {64 - moving} weights with a gradient did not move in the format they are in, too many in 1 of 1"
        assert (still in text) == (moving < 64)
        weights.data.fill_(1)
        pushes.fill_(2.0**-10)


def test_a_step_without_a_learning_rate_loses_nothing():
    """The first step of a warm-up: no weight moves, and none was to move."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float(step))
    with watch(model, optimizer, every=1) as seen:
        for _ in range(2):
            step(optimizer, model(torch.ones(3, 4)).sum())
            warmup.step()
    assert (seen.lost().moved, seen.lost().still) == (10, 0)
    assert "did not move" not in unbroken(seen.report())


@pytest.mark.parametrize(("steps", "every", "few"), [(1, 1, 1), (4, 1, 0), (24, 8, 3), (25, 8, 0)])
def test_advice_from_few_steps_says_so(steps, every, few):
    """The first step of Adam moves every weight by the learning rate; that no weight stands still says nothing yet."""
    text = unbroken(run(steps, every=every).report())
    assert (f"few steps: the advice is about the {few} counted alone" in text) == bool(few)

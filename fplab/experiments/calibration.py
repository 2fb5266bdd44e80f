"""Calibration: INT8 and INT4 for a trained network, the ranges read off histograms, then training through them.

A convolutional net for the digits is trained in FP32. Histograms of every layer's inputs are collected over batches of
the training data, seven rules read a largest magnitude off them, and the net is run with integer weights and inputs:
post-training quantisation. Where that costs accuracy, one more epoch is trained through the quantisers, gradients
passing straight through, with the ranges fixed or learned. After H. Wu et al., Integer Quantization for Deep Learning
Inference (arXiv 2004.09602), and S. Esser et al., Learned Step Size Quantization (arXiv 1902.08153).

This net is so small a task that INT4 costs it little: the epoch starts from a range that the entropy rule spoils.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import draw, integers
from ..hardware.cases import Arrays, Case, Meta, philox_bits
from ..hardware.tensors import bits as bits_of
from ..hardware.tensors import tensor
from ..integers import CALIBRATORS, Affine, Histogram, grids
from ..integers.calibration import START, positive_levels
from ..words import COMMA, joined, say
from .base import Claims, Columns, Digested, Experiment, Tick, in_columns, sheet
from .outcomes import Outcome, Status, failed, passed, same_bits, verdict
from .statistics import equivalent, superior

if TYPE_CHECKING:
    from matplotlib.lines import Line2D
    from torch import nn

Progress = Callable[[float], None]
LAYERS = ("conv1", "conv2", "conv3", "linear")
RULES = tuple(rule.name for rule in CALIBRATORS)
BITS = (8, 4, 3)
INT8, INT4 = BITS.index(8), BITS.index(4)
MAX, ENTROPY = RULES.index("max"), RULES.index("entropy")
WITHIN = 0.01  # of the digits


class Scheme(NamedTuple):
    """``along``: what of the weights shares a scale. ``zero_point``: inputs with a zero point, on all codes."""

    along: str
    zero_point: bool

    @property
    def inputs(self) -> str:
        """How inputs are mapped."""
        return "affine" if self.zero_point else "symmetric"


SCHEMES = (Scheme("tensor", False), Scheme("tensor", True), Scheme("channel", False), Scheme("channel", True))


class Through(NamedTuple):
    """Training through quantisers: from which bits and rule, weights and inputs one symmetric scale each; learned?"""

    bits: int
    rule: str
    learned: bool


THROUGH = (Through(4, "entropy", False), Through(4, "entropy", True))
FEWER, MORE = (1024, 1500, 2000), (2048, 4096)  # bins from which entropy keeps the images' range in INT4, and does not


@dataclass(frozen=True)
class Params:
    """``epochs``, ``batch``, ``lr``, ``momentum``: the FP32 training; ``seeds``: how many such runs.

    ``bins``: of a histogram at first. ``collect``: images of a calibration batch. ``schemes``: how many are tried with
    the networks after the first. ``qat_lr``: the learning rate of the epoch through the quantisers; ``every``: steps of
    it between two evaluations.
    """

    epochs: int = 16
    batch: int = 64
    lr: float = 0.05
    momentum: float = 0.9
    seeds: int = 5
    bins: int = 2048
    collect: int = 256
    schemes: int = len(SCHEMES)
    qat_lr: float = 0.01
    every: int = 1


QUICK = Params(epochs=3, seeds=4, schemes=1, every=11)


def grid_names(bits: int, zero_point: bool) -> tuple[str, str]:
    """The grids of weights and of inputs: symmetric ones, for inputs with a zero point all codes, unsigned."""
    return f"int{bits}", f"uint{bits}" if zero_point else f"int{bits}"


@dataclass(frozen=True)
class Result:
    """By seed: ``fp32_right``, ``fp32_loss`` of the networks; ``right``, ``losses``, ``errors`` of :func:`quantised`;
    ``qat_right`` of :func:`trained_through` at ``steps``.

    Of the first network: ``amax`` of :func:`ranges`; ``kept``, the share of the images' range that entropy keeps in
    INT4 by the bins of FEWER and MORE; ``counts`` and ``widths`` of the layers' histograms, ``divergences`` of the
    entropy rule in INT4 (layer, cut); ``weights``, ``biases`` of the last layer and ``hidden``, its inputs; the test
    ``images``, of which there are ``tested``. ``levels``: how many levels magnitudes have, by bits and by whether
    inputs have a zero point: int64 (bits, 2).
    """

    params: Params
    fp32_right: np.ndarray
    fp32_loss: np.ndarray
    right: np.ndarray
    losses: np.ndarray
    errors: np.ndarray
    qat_right: np.ndarray
    steps: np.ndarray
    amax: np.ndarray
    kept: np.ndarray
    counts: np.ndarray
    widths: np.ndarray
    divergences: np.ndarray
    weights: np.ndarray
    biases: np.ndarray
    hidden: np.ndarray
    images: np.ndarray
    tested: np.ndarray
    levels: Digested

    def change(self, bits: int) -> np.ndarray:
        """The change of accuracy from FP32's, by seed, scheme and rule; NaN where it was not tried."""
        return np.asarray((self.right[:, bits] - self.fp32_right[:, None, None]) / self.tested[0])


def run(params: Params, tick: Tick) -> Result:
    """Train, calibrate, quantise and train through it, a seed after another."""
    from ..training.loop import one_thread

    with one_thread():
        nets = [one_run(params, seed, tick) for seed in range(params.seeds)]
    levels = np.array([[positive_levels(grids.get(grid_names(b, z)[1])) for z in (False, True)] for b in BITS])
    by_seed = {name: np.stack([by_seed[name] for by_seed, _ in nets]) for name in nets[0][0]}
    return Result(params, **by_seed, **nets[0][1], levels=levels)


def one_run(params: Params, seed: int, tick: Tick) -> tuple[Arrays, Arrays]:
    """One network: what is of every seed, and what is of the first alone."""
    import torch

    from .. import training
    from ..nn import observe

    def part(low: float, text: str) -> Progress:
        return lambda done: tick((seed + low + 0.3 * done) / params.seeds, text)

    train = training.digits("train")
    model = training.digits_net(seed)
    recipe = training.Recipe(params.epochs, params.batch, params.lr, params.momentum, seed)
    trained = part(0.0, "training")
    training.train(model, train, recipe, progress=lambda done, of: trained(done / of))
    images, _ = training.tensors(train)
    seen = observe(model, torch.split(images, params.collect), params.bins)
    logits, right, loss = evaluate(model)
    schemes = params.schemes if seed else len(SCHEMES)
    after = quantised(model, seen, logits, schemes, part(0.35, "post-training quantisation"))
    epoch, steps = trained_through(model, seen, params, seed, part(0.7, "training through integers"))
    every = {"fp32_right": np.array(right), "fp32_loss": np.array(loss), **after, **epoch}
    if seed:
        return every, {}
    size = max(len(h.counts) for h in seen.values())
    tested, _ = held_out()
    layer: Any = model[-1]
    return every, {
        "steps": steps,
        "amax": ranges(seen)[None],
        "kept": np.array([kept(images.numpy(), bins) for bins in FEWER + MORE]),
        "counts": np.stack([np.pad(h.counts, (0, size - len(h.counts))) for h in seen.values()]),
        "widths": np.array([h.width for h in seen.values()]),
        "divergences": np.stack([padded(seen[name].divergences("int4")[1], size) for name in LAYERS]),
        "weights": layer.weight.detach().numpy().copy(),
        "biases": layer.bias.detach().numpy().copy(),
        "images": tested.numpy(),
        "hidden": hidden(model, tested),
        "tested": np.array([len(tested)]),
    }


def kept(images: np.ndarray, bins: int) -> float:
    """The share of the range of images that the entropy rule keeps in INT4, by the bins of the histogram."""
    seen = Histogram(bins).collect(images)
    return seen.entropy("int4") / seen.max()


def padded(values: np.ndarray, size: int) -> np.ndarray:
    """Values with NaN behind them, up to a length."""
    return np.pad(values, (0, size - len(values)), constant_values=np.nan)


def hidden(model: nn.Module, images: Any) -> np.ndarray:
    """The inputs of the last layer, float32 (images, features)."""
    import torch

    with torch.no_grad():
        features: np.ndarray = torch.nn.Sequential(*list(model.children())[:-1])(images).numpy()
    return features


def ranges(seen: dict[str, Histogram]) -> np.ndarray:
    """The largest magnitude by bits, signed or not, rule and layer: float64 (bits, 2, rules, layers)."""
    return np.array(
        [
            [[[rule.amax(seen[x], grid_names(b, z)[1]) for x in LAYERS] for rule in CALIBRATORS] for z in (False, True)]
            for b in BITS
        ]
    )


@cache
def held_out() -> tuple[Any, Any]:
    """The test digits: images and labels, as tensors."""
    from .. import training

    return training.tensors(training.digits("test"))


def evaluate(model: nn.Module) -> tuple[np.ndarray, int, float]:
    """On the test digits: logits, how many are right, and the mean cross-entropy in nats."""
    import torch

    images, labels = held_out()
    with torch.no_grad():
        logits = model(images)
        loss = torch.nn.functional.cross_entropy(logits.double(), labels)
    return logits.numpy(), int((logits.argmax(1) == labels).sum()), float(loss)


def quantised(model: nn.Module, seen: dict[str, Histogram], logits: np.ndarray, schemes: int, tick: Progress) -> Arrays:
    """Post-training quantisation by bits, scheme and rule: right answers, loss, relative error of the logits.

    NaN in the schemes after the first so many.
    """
    from ..nn import Quantization, fake_quantized

    shape = (len(BITS), len(SCHEMES), len(RULES))
    right, losses, errors = np.full((3, *shape), np.nan)
    for b, bits in enumerate(BITS if schemes == len(SCHEMES) else BITS[:2]):
        tick(b / len(BITS))
        for s, (along, zero_point) in enumerate(SCHEMES[:schemes]):
            weights, inputs = grid_names(bits, zero_point)
            for r, rule in enumerate(RULES):
                how = Quantization(weights, inputs, along, rule, zero_point=zero_point)
                found, right[b, s, r], losses[b, s, r] = evaluate(fake_quantized(model, seen, how))
                errors[b, s, r] = np.linalg.norm(found - logits) / np.linalg.norm(logits)
    return {"right": right, "losses": losses, "errors": errors}


def trained_through(
    model: nn.Module, seen: dict[str, Histogram], params: Params, seed: int, tick: Progress
) -> tuple[Arrays, np.ndarray]:
    """One epoch through the quantisers for each of :data:`THROUGH`: right answers by step; and the steps."""
    from .. import training
    from ..nn import Quantization, fake_quantized

    data = training.digits("train")
    recipe = training.Recipe(1, params.batch, params.qat_lr, params.momentum, seed + 100)
    total = recipe.steps(len(data.labels))
    steps = sorted({*range(0, total, params.every), total})
    right = np.zeros((len(THROUGH), len(steps)), np.int64)
    for i, (bits, rule, learned) in enumerate(THROUGH):
        tick(i / len(THROUGH))
        how = Quantization(f"int{bits}", f"int{bits}", "tensor", rule, learned=learned)
        through = fake_quantized(model, seen, how)
        reached = {0: evaluate(through)[1]}

        def look(done: int, of: int, reached: dict[int, int] = reached, through: nn.Module = through) -> None:
            if done in steps:
                reached[done] = evaluate(through)[1]

        training.train(through, data, recipe, progress=look)
        right[i] = [reached[step] for step in steps]
    return {"qat_right": right}, np.array(steps)


def rows(result: Result) -> Columns:
    """A row for each width, scheme and rule: accuracy, loss and error of the logits, averages over the seeds."""
    names = ("bits", "weights_along", "inputs", "calibrator", "right", "right_fp32", "loss", "logit_error")
    tested, table = int(result.tested[0]), []
    for b, s, r in np.ndindex(result.right.shape[1:]):
        tried = np.isfinite(result.right[:, b, s, r])
        right, *others = (float(np.nanmean(x[:, b, s, r])) for x in (result.right, result.losses, result.errors))
        fp32 = float(result.fp32_right[tried].mean())
        scheme = SCHEMES[s]
        table.append((BITS[b], scheme.along, scheme.inputs, RULES[r], right / tested, fp32 / tested, *others))
    return in_columns(names, table)


# --- claims -----------------------------------------------------------------------------------------------------
CLAIMS = Claims()


@CLAIMS.library("fake quantisation and its straight-through gradient are torch's, per tensor and per channel")
def torch_fake(result: Result) -> Outcome:
    """The images and the last layer's inputs and weights through torch's operators and the lab's.

    Ranges keep three quarters, so that the gradient is zero somewhere.
    """
    import torch

    from ..nn import fake_quantize

    compared = 0
    for values, axis in ((result.images, None), (result.hidden, None), (result.weights, 0)):
        for bits in BITS:
            grid = grids.get(f"int{bits}")
            whole = integers.scheme(values, grid, "tensor" if axis is None else "channel")
            how = replace(whole, scale=whole.scale * np.float32(0.75))
            x, y = (torch.from_numpy(values.copy()).requires_grad_() for _ in range(2))
            scale = torch.from_numpy(how.scale.ravel())
            if axis is None:
                theirs = torch.fake_quantize_per_tensor_affine(x, float(how.scale), 0, grid.low, grid.high)
            else:
                zero = torch.zeros(len(scale), dtype=torch.int32)
                theirs = torch.fake_quantize_per_channel_affine(x, scale, zero, axis, grid.low, grid.high)
            ours = fake_quantize(y, scale, 0, grid, axis)
            for one in (theirs, ours):
                one.sum().backward()
            gradients = [np.asarray(one.grad) for one in (y, x)]
            codes = integers.dequantize(integers.quantize(values, how), how)
            want = theirs.detach().numpy()
            for mine, its in ((codes, want), (ours.detach().numpy(), want), gradients):
                outcome = same_bits(mine.view(np.uint32), its.view(np.uint32), "fp32")
                if outcome.status is not Status.PASS:
                    return failed(say("INT{bits}: {found}", bits=bits, found=outcome.detail))
                compared += values.size
    return passed(say("{n:,} values, every bit", n=compared))


@CLAIMS.proved("integer codes and fake-quantised FP32 compute the same layer, within FP32's rounding")
def integer_codes(result: Result) -> Outcome:
    """The last layer in INT8 codes against products of fake-quantised values, each of which FP32 rounds once."""
    x, w = result.hidden, result.weights
    top = np.float32(result.amax[0, INT8, 0, MAX, -1])
    hx, hw = integers.symmetric(top), integers.scheme(w, "int8", "channel")
    total = integers.int_matmul(integers.quantize(x, hx), integers.quantize(w, hw).T)
    exact = total * (float(hx.scale) * hw.scale.astype(np.float64).T)
    fake_x, fake_w = (integers.dequantize(integers.quantize(v, h), h) for v, h in ((x, hx), (w, hw)))
    found = fake_x.astype(np.float64) @ fake_w.astype(np.float64).T
    magnitudes = np.abs(fake_x).astype(np.float64) @ np.abs(fake_w).astype(np.float64).T
    roundings = 2 * 2.0**-24 + x.shape[1] * 2.0**-53  # of both operands, and in float64 of the sums
    bound = roundings / (1 - roundings) * magnitudes
    ratio = float((np.abs(found - exact) / np.maximum(bound, 1e-300)).max())
    return verdict(ratio <= 1, say("{n:,} sums, at most {ratio:.2g} of the bound", n=found.size, ratio=ratio))


@CLAIMS.measured("in INT8 every rule and scheme stays within 1% of FP32's accuracy")
def int8(result: Result) -> Outcome:
    """INT8 after training: of every network, the worst of the rules and schemes; the margin is the claim's."""
    change = result.change(INT8)
    worst = np.nanmin(change, axis=(1, 2))
    detail = say("{n} combinations, {low:+.2%} to {high:+.2%} of the digits", n=np.isfinite(change).sum())
    detail = detail.fill(low=worst.min(), high=np.nanmax(change))
    return equivalent(worst, np.zeros(len(worst)), WITHIN, detail)


@CLAIMS.measured("four bits fewer make the error of the logits about 16 times as large")
def four_bits(result: Result) -> Outcome:
    """The error of the logits at 4 bits over that at 8 bits, where the whole range is kept: four octaves, give or take
    one, of every scheme of the first network, and of the first scheme over networks.
    """
    octaves = np.log2(result.errors[:, INT4, :, MAX] / result.errors[:, INT8, :, MAX])
    shown = {f"{s.along}_{s.inputs}": 2**x for s, x in zip(SCHEMES, octaves[0], strict=True)}
    detail = say("tensor symmetric {tensor_symmetric:.0f}×, tensor affine {tensor_affine:.0f}×, channel symmetric "
                 "{channel_symmetric:.0f}×, channel affine {channel_affine:.0f}×").fill(**shown)  # fmt: skip
    if not (np.abs(octaves[0] - 4) < 1).all():
        return failed(detail)
    return equivalent(octaves[:, 0], np.full(len(octaves), 4.0), 1.0, say("{ratios}; octaves against 4", ratios=detail))


@CLAIMS.measured(
    "in INT4 the entropy rule keeps one of 17 grey values from a histogram of 2,048 bins, and all from one of 2,000"
)
def entropy_fails(result: Result) -> Outcome:
    """The images have 17 grey values. From 2,048 bins on the divergence vanishes where one of them is kept.

    The margin: three digits in ten.
    """
    shares = dict(zip(FEWER + MORE, result.kept.tolist(), strict=True))
    cut = float(result.amax[0, INT4, 0, ENTROPY, 0] / result.amax[0, INT4, 0, MAX, 0])
    listed = joined([say("{share:.0%} with {bins} bins", share=x, bins=bins) for bins, x in shares.items()], COMMA)
    detail = say("range kept of {n} grey values: {shares}", n=len(np.unique(result.images)), shares=listed)
    if min(shares[bins] for bins in FEWER) < 0.99 or max(cut, *(shares[bins] for bins in MORE)) > 0.1:
        return failed(detail)
    change = result.change(INT4)[:, 0]
    others = np.delete(change, ENTROPY, axis=1).min(axis=1)
    lost = say("{kept}; it loses {lost:.0%} of the digits, the worst other rule {other:.1%}", kept=detail)
    detail = lost.fill(lost=-change[:, ENTROPY].mean(), other=-others.mean())
    return superior(others, change[:, ENTROPY], 0.3, detail)


def through(result: Result, bits: int, rule: str, learned: bool) -> tuple[np.ndarray, np.ndarray]:
    """Right answers before and after the epoch through quantisers, by seed."""
    right = result.qat_right[:, THROUGH.index((bits, rule, learned))]
    return right[:, 0], right[:, -1]


@CLAIMS.measured("one epoch of training through INT4, ranges learned, wins back accuracy that a spoiled range cost")
def trained_back(result: Result) -> Outcome:
    """From the range that entropy spoils in INT4, and learned then: what the epoch wins back, measured after it.

    The margin: one digit in twenty; where no gradient passes straight through, next to nothing comes back. Of a range
    that stays fixed nothing is claimed: with other seeds the epoch won back 1% to 40% of the digits.
    """
    before, after = through(result, 4, "entropy", True)
    lost, gain = result.fp32_right - before, (after - before) / result.tested[0]
    detail = say("{lost:.0%} of the digits lost, then {gain:.0%} of all won back")
    detail = detail.fill(lost=(lost / result.tested[0]).mean(), gain=gain.mean())
    return superior(gain, np.zeros(len(gain)), 0.05, detail)


@CLAIMS.measured("a learned range wins back more than a fixed one does, by over a tenth of the digits")
def learned(result: Result) -> Outcome:
    """From the range that entropy spoils: learned it opens, fixed it stays behind, by more than a tenth of the digits.

    How near to FP32 a learned range comes is said and not claimed: now and then a network stays far below.
    """
    tested = result.tested[0]
    (before, fixed), (_, learned) = (through(result, 4, "entropy", x) for x in (False, True))
    change = [(x - result.fp32_right) / tested for x in (before, fixed, learned)]
    detail = say("{before:+.0%} before the epoch; after it {fixed:+.1%} fixed, {learned:+.1%} learned")
    detail = detail.fill(before=change[0].mean(), fixed=change[1].mean(), learned=change[2].mean())
    return superior(learned / tested, fixed / tested, 0.1, detail)


# --- what a GPU must compute ------------------------------------------------------------------------------------
GRIDS = ("int8", "uint8", "int4_full")
ZERO_POINTS = {"int8": 0, "uint8": 37, "int4_full": -3}
CHANNELS, LENGTH = 16, 256
STEP = np.float32(0.0371)


def case_inputs() -> Arrays:
    """FP32 values of all signs and sizes around the grids, half of them at ties; a scale for each channel."""
    n = CHANNELS * LENGTH
    unit = (philox_bits(520, n).astype(np.float64) - 2**31) / 2**31
    x = (unit * 6).astype(np.float32)
    ties = (philox_bits(521, n) % np.uint32(601)).astype(np.float32) / np.float32(2) - np.float32(150)
    x[::2] = ties[::2] * STEP
    scales = STEP * np.float32(2) ** np.arange(-CHANNELS // 2, CHANNELS // 2, dtype=np.float32)
    return {"x": x.reshape(CHANNELS, LENGTH).view(np.uint32), "scales": scales.view(np.uint32)}


def device_fake(inputs: Arrays, device: str) -> Arrays:
    """Both of torch's operators on each grid, and the gradient of the sum: values and masks as FP32 bits."""
    import torch

    x, scales = (tensor(inputs[name], "fp32", device) for name in ("x", "scales"))
    found = {}
    for name in GRIDS:
        grid, zero = grids.get(name), ZERO_POINTS[name]
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        one = torch.fake_quantize_per_tensor_affine(a, float(STEP), zero, grid.low, grid.high)
        zeros = torch.full((CHANNELS,), zero, dtype=torch.int32, device=device)
        each = torch.fake_quantize_per_channel_affine(b, scales, zeros, 0, grid.low, grid.high)
        for key, result, leaf in (("tensor", one, a), ("channel", each, b)):
            result.sum().backward()
            assert leaf.grad is not None
            found[f"{name}_{key}"], found[f"{name}_{key}_gradient"] = bits_of(result.detach()), bits_of(leaf.grad)
    return found


def lab_fake(inputs: Arrays, meta: Meta) -> Arrays:
    """Quantise and dequantise by the definition; the gradient is 1 where the code lies in the grid before clipping."""
    x, scales = (inputs[name].view(np.float32) for name in ("x", "scales"))
    found = {}
    for name in GRIDS:
        grid, zero = grids.get(name), ZERO_POINTS[name]
        for key, scale in (("tensor", STEP), ("channel", scales[:, None])):
            how = Affine(np.asarray(scale), np.asarray(zero), grid)
            values = integers.dequantize(integers.quantize(x, how), how)
            code = np.rint(x * (np.float32(1) / how.scale)) + np.float32(zero)
            inside = ((code >= grid.low) & (code <= grid.high)).astype(np.float32)
            found[f"{name}_{key}"], found[f"{name}_{key}_gradient"] = values.view(np.uint32), inside.view(np.uint32)
    return found


def special_inputs() -> Arrays:
    """NaN, both infinities, and 2^62, 2^63 and -2^63 steps."""
    x = np.array([np.nan, np.inf, -np.inf, 2.0**62, 2.0**63, -(2.0**63)], np.float32)
    return {"x": x.view(np.uint32)}


def device_special(inputs: Arrays, device: str) -> Arrays:
    """Both operators with a scale of 1 on the symmetric INT8 grid."""
    import torch

    x = tensor(inputs["x"], "fp32", device)
    one, zero = torch.ones(1, device=device), torch.zeros(1, dtype=torch.int32, device=device)
    return {
        "tensor": bits_of(torch.fake_quantize_per_tensor_affine(x, 1.0, 0, -127, 127)),
        "channel": bits_of(torch.fake_quantize_per_channel_affine(x[None], one, zero, 0, -127, 127)[0]),
    }


def saturates(inputs: Arrays, meta: Meta) -> Arrays:
    """Each value ends at its own side of the grid, NaN at the least code."""
    x = inputs["x"].view(np.float32)
    ends = np.where(x > 0, np.float32(127), np.float32(-127)).view(np.uint32)
    return {"tensor": ends, "channel": ends}


def converts_first(inputs: Arrays, meta: Meta) -> Arrays:
    """The per-channel kernel converts to int64 before it clips: from 2^63 on the least code, as on x86 processors."""
    x = inputs["x"].view(np.float32)
    fits = np.abs(x) < np.float32(2.0**63)
    turned = np.where(fits & (x > 0), np.float32(127), np.float32(-127))
    return {"tensor": saturates(inputs, meta)["tensor"], "channel": turned.view(np.uint32)}


def cases(params: Params) -> Iterator[Case]:
    """Values and gradients of fake quantisation, and an open question about values that no integer stands for."""
    names = [f"{g}_{key}{part}" for g in GRIDS for key in ("tensor", "channel") for part in ("", "_gradient")]
    yield Case("fake_quantize", case_inputs, device_fake, lab_fake, dict.fromkeys(names, "fp32"))
    yield Case(
        "fake_quantize_special", special_inputs, device_special, saturates, {"tensor": "fp32", "channel": "fp32"},
        open="what torch's fake quantisation makes of NaN, infinities and 2^63 steps on this device",
        hypotheses={"each saturates at its end": saturates, "converted to int64 first": converts_first},
    )  # fmt: skip


# --- figures ----------------------------------------------------------------------------------------------------
TITLES = [rule.title for rule in CALIBRATORS]
ACCURACY = [0, 50, 80, 90, 95, 98, 100]


def first_layers(result: Result) -> draw.Figure:
    """Histograms of the first two layers' inputs with the ranges."""
    return draw_ranges(result, (0, 1))


def last_layers(result: Result) -> draw.Figure:
    """Histograms of the last two layers' inputs with the ranges."""
    return draw_ranges(result, (2, 3))


def draw_ranges(result: Result, layers: Sequence[int]) -> draw.Figure:
    """Histograms above, what each rule cuts them to below."""
    from ..draw import calibration

    figure = draw.new_figure(8, 7.5)
    axes: Any = figure.subplots(2, len(layers), height_ratios=[1.2, 1], sharex="col", sharey="row")
    for (above, below), layer in zip(axes.T, layers, strict=True):
        calibration.magnitude_histogram(above, result.counts[layer], float(result.widths[layer]))
        above.set_title(f"{LAYERS[layer]}{': the images' if layer == 0 else ''}")
        amax = result.amax[0, :, 0, :, layer]
        calibration.ranges(below, TITLES, {"INT8": amax[INT8], "INT4": amax[INT4]})
        below.set_xlabel("magnitude of the layer's inputs")
    axes[0, 0].set_ylim(0.5, 4 * result.counts.max())
    axes[0, 0].set_ylabel("values")
    axes[1, 0].set_ylabel("range by rule")
    axes[1, -1].legend(loc="upper left")
    return figure


def by_rule(result: Result) -> draw.Figure:
    """Error of the logits and accuracy after post-training quantisation."""
    figure = draw.new_figure(8, 10)
    error, accuracy = figure.subplots(2, 1)
    draw_by_rule(error, 100 * np.nanmean(result.errors, axis=0))
    error.set_yscale("log")
    error.minorticks_off()
    error.yaxis.set_major_formatter("{x:g}")
    error.set(ylabel="error of the logits (%)", title=f"After training: error by rule ({result.params.seeds} networks)")
    draw_by_rule(accuracy, 100 * np.nanmean(result.right, axis=0) / int(result.tested[0]))
    accuracy_axis(accuracy, result)
    accuracy.set_title("After training: accuracy by rule (line: FP32's; grey: within 1%)")
    figure.legend(handles=handles(), loc="outside lower center", ncols=3)
    return figure


def stretched(y: np.ndarray) -> np.ndarray:
    """Room for what is near 100%: minus the logarithm of the error."""
    scaled: np.ndarray = -np.log(np.maximum(101.5 - np.asarray(y, np.float64), 1e-6))
    return scaled


def shrunk(y: np.ndarray) -> np.ndarray:
    """The inverse of :func:`stretched`."""
    back: np.ndarray = 101.5 - np.exp(-np.asarray(y, np.float64))
    return back


def accuracy_axis(ax: draw.Axes, result: Result) -> None:
    """An axis for accuracy, with FP32's, and one per cent of the digits below it."""
    theme, fp32 = draw.current(), 100 * result.fp32_right.mean() / int(result.tested[0])
    ax.set_yscale("function", functions=(stretched, shrunk))
    ax.set_ylim(0, 100)
    ax.set_yticks(ACCURACY)
    ax.set_ylabel("test digits right (%)")
    ax.axhspan(fp32 - 100 * WITHIN, fp32, color=theme.grid, zorder=0)
    ax.axhline(fp32, color=theme.ink, linewidth=1.0)


def draw_by_rule(ax: draw.Axes, values: np.ndarray) -> None:
    """Values (bits, schemes, rules) as points: colours for bits, markers for schemes, rules along the axis."""
    for b in range(len(BITS)):
        for s in range(len(SCHEMES)):
            x = np.arange(len(RULES)) + 0.24 * (b - 1) + 0.055 * (s - 1.5)
            ax.plot(
                x, values[b, s], linestyle="none", marker=draw.look(s).marker, color=draw.look(b).color, markersize=5.5
            )
    for edge in np.arange(len(RULES) - 1) + 0.5:
        ax.axvline(edge, color=draw.current().grid, linewidth=0.7)
    ax.set_xticks(np.arange(len(RULES)), TITLES)
    ax.set_xlim(-0.5, len(RULES) - 0.5)
    ax.grid(visible=False, axis="x")


def handles() -> list[Line2D]:
    """Legend handles: bits by colour, schemes by marker."""
    from matplotlib.lines import Line2D

    theme = draw.current()
    lines = [Line2D([], [], color=draw.look(b).color, linewidth=5, label=f"INT{bits}") for b, bits in enumerate(BITS)]
    for s, scheme in enumerate(SCHEMES):
        lines.append(Line2D([], [], linestyle="none", marker=draw.look(s).marker, color=theme.ink,
                            label=f"weights per {scheme.along}, inputs {scheme.inputs}"))  # fmt: skip
    return lines


def draw_divergences(ax: draw.Axes, result: Result) -> None:
    """The entropy rule's divergence against the cut, for INT4, in the first two layers."""
    for layer in (0, 1):
        found = result.divergences[layer]
        found = found[~np.isnan(found)]
        x = 100 * (np.arange(len(found)) + START) / (len(found) + START - 1)
        style = draw.look(1 - layer)
        shown = np.where(np.isfinite(found), np.maximum(found, 1e-4), np.nan)
        each = slice(None) if layer == 0 else slice(None, None, 8)  # the first layer's are few, the second's a curve
        ax.plot(x[each], shown[each], color=style.color, linestyle="none", marker=".", markersize=3)
        finite = np.flatnonzero(found == found.min())[-1]
        ax.plot(x[finite], shown[finite], marker=style.marker, markersize=9, color=style.color, linestyle="none",
                label=f"{LAYERS[layer]}: keeps {x[finite]:.0f}% of the range", clip_on=False)  # fmt: skip
    ax.set_yscale("log")
    ax.minorticks_off()
    ax.set_ylim(8e-5, None)
    ax.set_yticks([1e-4, 1e-3, 1e-2, 1e-1, 1], ["0", "0.001", "0.01", "0.1", "1"])
    ax.set(xlim=(0, 101), xlabel="bins kept (% of the range seen)", ylabel="divergence (nats), 0 at the bottom",
           title=f"Entropy in INT4, {result.params.bins:,} bins: cut to one grey value, all agrees")  # fmt: skip
    ax.legend(loc="lower right")


def draw_epoch(ax: draw.Axes, result: Result) -> None:
    """Accuracy over one epoch of training through the quantisers."""
    tested = int(result.tested[0])
    accuracy_axis(ax, result)
    for i, (bits, rule, learned) in enumerate(THROUGH):
        style = draw.look(1)
        right = 100 * result.qat_right[:, i].mean(axis=0) / tested
        ax.plot(result.steps, right, color=style.color, marker=style.marker, clip_on=False,
                linestyle="-" if learned else (0, (2, 1.5)), markerfacecolor=None if learned else "none",
                label=f"INT{bits} from {rule}, {'learned' if learned else 'fixed'} ranges")  # fmt: skip
    ax.set(xlim=(0, result.steps[-1]), xlabel="training step of one epoch",
           title="Training through integers (grey: within 1% of FP32)")  # fmt: skip
    ax.legend(loc="center right", bbox_to_anchor=(1.0, 0.34))


EXPERIMENT = Experiment(
    title=say("Calibration: INT8 and INT4 after training, and training for them"),
    question=say(
        "Which range should a tensor of integers have, and what does one epoch of training through it give back?"
    ),
    budget=8.0, full=Params(), quick=QUICK, result=Result, run=run, rows=rows, claims=CLAIMS,
    figures=(by_rule, first_layers, last_layers,
             sheet("through_integers", (8, 9.5), (2, 1), draw_divergences, draw_epoch)), cases=cases,
)  # fmt: skip

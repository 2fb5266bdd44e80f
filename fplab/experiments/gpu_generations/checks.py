"""The claims about one training run on three GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...hardware.cases import Arrays
from ..base import Evidence, Outcome, Status, failed, passed, same_bits
from ..legacy import Check
from ..statistics import superior
from .data import LOSS_SCALE, REFERENCE, RUNS, TENSORS, Machine, Params, differing, gpu_of, norm, right

V100, A100 = (RUNS.index(name) for name in ("V100", "A100"))
ONE, ALL = (RUNS.index(name) for name in ("one weight", "all weights"))
OTHERS = [V100, A100]
FEW, MANY = 0.05, 0.25  # what the claim's words mean, as shares


def product(gpu: str | None, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A B of float32 matrices, on a GPU of operands rounded to FP16; without one, torch's."""
    import torch

    from ... import floats
    from ...tensorcore import matmul

    if gpu is None:
        return np.asarray(torch.mm(torch.from_numpy(a), torch.from_numpy(b)).numpy())
    x, y = (np.asarray(floats.quantize(v, "fp16")) for v in (a, b))
    return np.asarray(matmul(x, y, gpu=gpu, inputs="fp16"))


def step_by_hand(
    gpu: str | None, weights: list[np.ndarray], velocities: list[np.ndarray], batch: Any, params: Params
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """TENSORS of a step and the weights after it, without autograd and without the emulation; the loss is torch's."""
    import torch

    x, layers = batch.inputs.numpy(), list(zip(weights[::2], weights[1::2], strict=True))
    inputs, outputs = [x], []
    for weight, bias in layers:
        if gpu is None:
            given = (torch.from_numpy(v) for v in (bias, inputs[-1], weight.T))
            outputs.append(torch.addmm(*given).numpy())
        else:
            outputs.append(product(gpu, inputs[-1], weight.T) + bias)
        inputs.append(np.maximum(outputs[-1], np.float32(0)))
    logits = torch.from_numpy(outputs[-1].copy()).requires_grad_()
    loss = torch.nn.functional.cross_entropy(logits, batch.targets)
    (loss * LOSS_SCALE).backward()
    assert logits.grad is not None
    slope, gradients = logits.grad.numpy(), []
    for i in reversed(range(len(layers))):
        gradients += [torch.from_numpy(slope).sum(0).numpy(), product(gpu, slope.T, inputs[i])]
        if i:
            slope = np.where(outputs[i - 1] > 0, product(gpu, slope, layers[i][0]), np.float32(0))
    gradients = [g * np.float32(1 / LOSS_SCALE) for g in gradients]
    after = []
    for w, v, g in zip(weights, velocities, reversed(gradients), strict=True):
        velocity = v * np.float32(params.momentum) + g
        after.append(w + velocity * np.float32(-params.lr))
    return [*outputs, loss.detach().numpy(), *gradients], after


def check_steps(arrays: Arrays, params: Params) -> Outcome:
    """Every tensor of the kept steps and every weight after them; and of what is drawn, the numbers of these steps."""
    from ...training.loop import one_thread

    shapes = [tuple(p.shape) for p in params.task.model(0).parameters()]
    batches, values, first = list(params.task.batches(0, params.steps)), 0, []
    for r, name in enumerate(RUNS):
        for k, step in enumerate(params.kept):
            weights, velocities = (parts(row, shapes) for row in arrays["before"][r, k])
            with one_thread():
                tensors, after = step_by_hand(gpu_of(name), weights, velocities, batches[step], params)
            for what, want, got in (("tensors", tensors, arrays["tensors"]), ("weights", after, arrays["after"])):
                flat = np.concatenate([w.ravel() for w in want])
                outcome = same_bits(got[r, k].view(np.uint32), flat.view(np.uint32), "fp32")
                if outcome.status is not Status.PASS:
                    return failed(f"{name}, step {step}, {what}: {outcome.detail}")
                values += flat.size
            if step == 0:
                first.append(tensors)
            h100 = arrays["after"][REFERENCE, k]
            drawn = (
                float(tensors[TENSORS.index("loss")]),
                differing(arrays["after"][r, k], h100),
                norm(arrays["after"][r, k] - h100) / norm(h100),
            )
            told = tuple(float(arrays[key][0, r, step]) for key in ("losses", "differ", "distance"))
            if told != drawn:
                return failed(f"{name}, step {step}: loss, share and distance {told} are not the weights' {drawn}")
        if not np.array_equal(arrays["answers"][0, r], answers_by_hand(parts(arrays["after"][r, -1], shapes), params)):
            return failed(f"{name}: the answers are not those of the last weights")
    shares = [[differing(x, y) for x, y in zip(one, first[REFERENCE], strict=True)] for one in first]
    if not np.array_equal(arrays["first"][0], shares):
        return failed("the shares of the first step are not those of its tensors")
    return passed(f"{values:,} numbers of steps {', '.join(map(str, params.kept))} of {len(RUNS)} runs, every bit")


def parts(flat: np.ndarray, shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    """A flat array as arrays of these shapes."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends), shapes, strict=True)]


def answers_by_hand(weights: list[np.ndarray], params: Params) -> np.ndarray:
    """What weights read on the test digits, in float64."""
    x = np.concatenate([batch.inputs.numpy() for batch in params.task.held_out()]).astype(np.float64)
    for i in range(0, len(weights), 2):
        x = (np.maximum(x, 0) if i else x) @ weights[i].T.astype(np.float64) + weights[i + 1]
    return np.asarray(x.argmax(axis=1))


def check_units(arrays: Arrays, params: Params) -> Outcome:
    """All products of all steps, by the report of the emulation."""
    own = arrays["own"]
    if not own.all():
        seed, run, step = np.argwhere(~own)[0]
        return failed(f"{RUNS[run]}, seed {seed}, step {step} and {int((~own).sum()) - 1} more: another unit")
    return passed(f"{own.size:,} steps of {len(RUNS)} runs")


def check_parting(arrays: Arrays, params: Params) -> Outcome:
    """The first product, and what the layer after it makes of it."""
    first = arrays["first"][:, OTHERS]
    text = "; ".join(
        f"{RUNS[run]}: {first[:, i, 0].mean():.2%} of layer 1, {first[:, i, 1].mean():.0%} of layer 2"
        for i, run in enumerate(OTHERS)
    )
    some = bool((first[:, :, 0] > 0).all() and (first[:, :, 0] < FEW).all())
    many = superior(first[:, :, 1].min(axis=1), np.full(params.seeds, MANY), 0.0, text)
    return many if some else failed(f"{text}; the share of layer 1 is not between 0 and {FEW:.0%} in every seed")


def check_growth(arrays: Arrays, params: Params) -> Outcome:
    """The distance of V100 and A100 from H100, after the first step and at the end; of each seed the smaller growth."""
    growth = arrays["distance"][:, OTHERS, -1] / arrays["distance"][:, OTHERS, 0]
    share = arrays["differ"][:, OTHERS, -1]
    detail = f"by {growth.min():,.0f} to {growth.max():,.0f} times; {share.min():.0%} to {share.max():.0%} at last"
    decades = np.log10(growth.min(axis=1))
    return superior(decades, np.zeros_like(decades), 2.0, detail)  # the claim's hundredfold is two decades


def check_noise(arrays: Arrays, params: Params) -> Outcome:
    """The distance between GPUs beside that of two runs on one GPU which begin one ulp apart, in decades.

    The margin is the claim's factor of ten; of both GPUs of a seed the one that is farther off counts.
    """
    last = arrays["distance"][:, :, -1]
    ratio = last[:, OTHERS] / last[:, [ALL]]
    detail = f"{ratio.min():.2g} to {ratio.max():.2g} times that distance"
    return superior(np.zeros(params.seeds), np.log10(ratio.max(axis=1)), -1.0, detail)


def check_swallowed(arrays: Arrays, params: Params) -> Outcome:
    """The first weight an ulp larger in FP32 is the same FP16 operand, by numpy's cast, so no output notices."""
    for seed in range(params.seeds):
        nudged, plain = (Machine(name, seed, params).weights()[0] for name in ("one weight", "H100"))
        if nudged == plain or nudged.astype(np.float16) != plain.astype(np.float16) or arrays["first"][seed, ONE].any():
            return failed(f"seed {seed}: {nudged!r} for {plain!r}, {arrays['first'][seed, ONE].max():.2%} differ")
    return passed(f"{params.seeds} seeds, all {len(TENSORS)} tensors of the first step")


def check_answers(arrays: Arrays, params: Params) -> Outcome:
    """Changed answers: on another GPU with the same seed, the larger number of both, and with the next seed."""
    answers = arrays["answers"]
    by_gpu = (answers[:, OTHERS] != answers[:, [REFERENCE]]).sum(axis=2).max(axis=1)
    by_seed = (answers[:, REFERENCE] != np.roll(answers[:, REFERENCE], 1, axis=0)).sum(axis=1)
    tested = len(arrays["labels"])
    detail = f"of {tested} digits {by_gpu.max()} at most by another GPU, {by_seed.min()} at least by another seed"
    return superior(by_seed, by_gpu, 0.0, detail)


def check_trained(arrays: Arrays, params: Params) -> Outcome:
    """Every run reads well above chance, by 40% of all digits: of each seed the machine that reads least."""
    share = right(arrays).min(axis=1) / len(arrays["labels"])
    fell = float((arrays["losses"][..., -1] / arrays["losses"][..., 0]).max())
    detail = f"at least {share.min():.1%} right, losses at most {fell:.2f} of the first"
    return superior(share, np.full_like(share, 0.1), 0.4, detail)


CHECKS = (
    Check("In the first, a middle and the last step every product, the unscaling and the update follow each GPU's "
          "rules", Evidence.PROVED, check_steps),
    Check("No product of any step, forward or backward, leaves the unit of its GPU", Evidence.PROVED, check_units),
    Check("The first product parts V100, A100 and H100 in few elements, the second layer in many", Evidence.MEASURED,
          check_parting),
    Check("From then on the runs part: their distance grows more than 100-fold", Evidence.MEASURED, check_growth),
    Check("They end less than 10 times as far apart, on average, as runs on one GPU whose weights begin one ulp apart",
          Evidence.MEASURED, check_noise),
    Check("One ulp of the first weight alone is lost where operands are rounded to FP16", Evidence.LIBRARY,
          check_swallowed),
    Check("Another seed changes more answers than another GPU", Evidence.MEASURED, check_answers),
    Check("The networks learn on every machine", Evidence.MEASURED, check_trained),
)  # fmt: skip

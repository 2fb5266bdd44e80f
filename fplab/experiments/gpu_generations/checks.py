"""The claims about one training run on four GPUs."""

from __future__ import annotations

import numpy as np

from ...hardware.cases import Arrays
from ..base import Check, Evidence, Outcome, failed, passed, verdict
from .data import GPUS, REFERENCE, RUNS, TENSORS, Machine, Params

V100, A100, B200 = (RUNS.index(name) for name in ("V100", "A100", "B200"))
ONE, ALL = (RUNS.index(name) for name in ("one weight", "all weights"))
SAMPLED = 16  # elements of the first layer that the oracle computes for each GPU


def first_layer() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The first layer's operands in the first step of seed 0, rounded to FP16 by numpy, and its bias: float32."""
    from ...training.tasks import DIGITS_MLP

    weight, bias, *_ = (p.detach().numpy() for p in DIGITS_MLP.model(0).parameters())
    pixels = next(DIGITS_MLP.batches(0, 1)).inputs.numpy()
    return pixels.astype(np.float16).astype(np.float32), weight.astype(np.float16).astype(np.float32), bias


def check_oracle(arrays: Arrays, params: Params) -> Outcome:
    """Elements of the first layer, among them some on which the GPUs differ, by the oracle on fractions."""
    from ...tensorcore import get, oracle

    pixels, weight, bias = first_layer()
    layer = arrays["layer1"]
    parted = np.argwhere((layer != layer[REFERENCE]).any(axis=0))
    spread = np.stack([np.arange(SAMPLED) * 7 % layer.shape[1], np.arange(SAMPLED) * 31 % layer.shape[2]], axis=1)
    places = np.concatenate([parted[:: max(1, len(parted) // SAMPLED)][:SAMPLED], spread])
    for g, gpu in enumerate(GPUS):
        model = get(gpu, "fp16")
        for i, j in places:
            found = oracle.dot([float(v) for v in pixels[i]], [float(v) for v in weight[j]], 0.0, model)
            total = np.uint32(oracle.bits(found)).view(np.float32) + bias[j]
            want, got = int(np.float32(total).view(np.uint32)), int(layer[g, i, j])
            if got != want:
                return failed(f"{gpu}, image {i}, unit {j}: {got:08x}, the oracle {want:08x}")
    return passed(f"{len(places)} outputs on each of {len(GPUS)} GPUs, {min(SAMPLED, len(parted))} where they differ")


def check_same_unit(arrays: Arrays, params: Params) -> Outcome:
    """H100 and B200 add up FP16 products alike."""
    steps = int((arrays["losses"][:, B200].view(np.uint32) != arrays["losses"][:, REFERENCE].view(np.uint32)).sum())
    weights = float(arrays["differ"][:, B200].max())
    total = arrays["losses"][:, B200].size
    return verdict(steps == 0 and weights == 0, f"{total} steps of {params.seeds} seeds: {steps} losses differ")


def check_parting(arrays: Arrays, params: Params) -> Outcome:
    """The first product, and what the layers after it make of it."""
    first = arrays["first"]
    text = "; ".join(
        f"{RUNS[run]}: {first[run, 0]:.2%} of layer 1, {first[run, 1]:.0%} of layer 2" for run in (V100, A100)
    )
    holds = all(0 < first[run, 0] < 0.05 and first[run, 1] > 0.3 for run in (V100, A100))
    return verdict(holds and not first[B200].any(), f"{text} (of {len(TENSORS)} tensors B200 differs in none)")


def check_growth(arrays: Arrays, params: Params) -> Outcome:
    """The distance of V100 and A100 from H100, after the first step and at the end."""
    growth = arrays["distance"][:, [V100, A100], -1] / arrays["distance"][:, [V100, A100], 0]
    share = arrays["differ"][:, [V100, A100], -1]
    detail = (
        f"by {growth.min():,.0f} to {growth.max():,.0f} times; at last {share.min():.0%} to {share.max():.0%} differ"
    )
    return verdict(bool((growth > 100).all() and (share > 0.5).all()), detail)


def check_noise(arrays: Arrays, params: Params) -> Outcome:
    """The distance between GPUs beside that of two runs on one GPU which begin one ulp apart."""
    last = arrays["distance"][:, :, -1]
    ratio = last[:, [V100, A100]] / last[:, [ALL]]
    detail = (
        f"{ratio.min():.2f} to {ratio.max():.2f} times that distance, {last[:, ALL].max():.1e} of the weights' norm"
    )
    return verdict(bool((ratio < 10).all()), detail)


def check_swallowed(arrays: Arrays, params: Params) -> Outcome:
    """One weight that is an ulp larger in FP32 rounds to the same FP16 operand, so no product notices."""
    nudged, plain = (Machine(name, 0, params).weights() for name in ("one weight", "H100"))
    same = nudged[0].astype(np.float16) == plain[0].astype(np.float16)
    count = arrays["differ"][:, ONE, -1] * plain.size
    holds = nudged[0] != plain[0] and same and not arrays["first"][ONE, :4].any()
    return verdict(bool(holds), f"at the end {count.min():.0f} to {count.max():.0f} of {plain.size:,} weights differ")


def check_matters(arrays: Arrays, params: Params) -> Outcome:
    """Right answers: between GPUs on the same seed, and between seeds on the same GPU."""
    right, tested = arrays["right"], int(arrays["tested"])
    between_gpus = int(np.ptp(right[:, : len(GPUS)], axis=1).max())
    between_seeds = int(np.ptp(right[:, REFERENCE]))
    limit = max(3, between_seeds)
    detail = f"of {tested} digits {between_gpus} at most between GPUs, {between_seeds} between {params.seeds} seeds"
    return verdict(between_gpus <= limit, detail)


def check_trained(arrays: Arrays, params: Params) -> Outcome:
    """The loss falls, and the network reads."""
    losses, right = arrays["losses"], arrays["right"].min() / arrays["tested"]
    fell = float((losses[..., -1] / losses[..., 0]).max())
    return verdict(
        bool(right > 0.7 and fell < 0.6), f"at least {right:.1%} right, losses at most {fell:.2f} of the first"
    )


EXACT, LIBRARY = Evidence.EXACT, Evidence.LIBRARY
CHECKS = (
    Check("The first layer has the bits of fractions added by each GPU's rules, and the bias in FP32", EXACT,
          check_oracle),
    Check("H100 and B200 train to the same bits, every step", EXACT, check_same_unit),
    Check("The first product parts V100, A100 and H100 in few elements, the second layer in most", EXACT,
          check_parting),
    Check("From then on the runs part: their distance grows more than 100-fold", EXACT, check_growth),
    Check("They are no farther apart than runs on one GPU whose weights begin one ulp apart", EXACT, check_noise),
    Check("One ulp of one weight alone is lost where operands are rounded to FP16", LIBRARY, check_swallowed),
    Check("It does not matter: the GPU changes no more answers than the seed (or 3)", EXACT, check_matters),
    Check("The networks learn on every machine", EXACT, check_trained),
)  # fmt: skip

"""The experiment's claims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import integers
from ...hardware.cases import Arrays
from ..base import Evidence, Outcome, Sample, absent, failed, measured, passed, verdict
from ..legacy import Check
from ..statistics import both, superior
from .data import DECOMPOSED, NAMES, SKIP, Params
from .planting import GAIN, norms_and_readers, outlier_dimensions, planted, untrained
from .published import BASELINE, LARGER, LEAST_LAYERS, LEAST_MAGNITUDE, LEAST_POSITIONS, TABLE1

# The paper's Table 1 once more, a size of the model a line, the methods in the order of the paper.
TRANSCRIPT = (
    "25.65 87.76 56.66 30.93 35.84 25.72 30.76 25.83 25.69",
    "15.91 16.55 16.24 17.08 16.82 15.94 16.19 15.93 15.92",
    "14.43 15.11 14.76 15.24 14.98 14.36 14.65 14.44 14.43",
    "13.30 14.59 13.49 14.13 14.13 13.38 13.25 13.24 13.24",
    "12.45 19.08 13.94 16.49 16.48 13.47 12.46 12.45 12.45",
)


def at(name: str) -> int:
    """The row of a method."""
    return NAMES.index(name)


def check_unchanged(arrays: Arrays, params: Params) -> Outcome:
    """The planted models' logits against those of the model as it was trained."""
    return verdict(
        bool((arrays["unchanged"] == 1).all()),
        f"every bit of the logits, {', '.join(map(str, params.dimensions))} dimensions made {GAIN:g} times as large",
    )


def check_planted(arrays: Arrays, params: Params) -> Outcome:
    """The paper's criterion for outlier features, and how large they are beside the other features, by network."""
    magnitude = np.abs(arrays["each_inputs"])
    positions = (magnitude >= LEAST_MAGNITUDE).mean(axis=2)  # (networks, layers, width)
    layers = (positions > 0).mean(axis=1)
    meets = (layers >= LEAST_LAYERS) & ((positions >= LEAST_POSITIONS).mean(axis=1) >= LEAST_LAYERS)
    want = np.zeros(params.width, np.bool_)
    want[outlier_dimensions(params.width, params.planted)] = True
    for found in meets[(meets != want).any(axis=1)]:
        there = np.flatnonzero(want).tolist()
        return failed(f"dimensions {np.flatnonzero(found).tolist()} meet it, {there} were planted")
    ratio = magnitude[..., want].max(axis=(1, 2, 3)) / magnitude[..., ~want].max(axis=(1, 2, 3))
    detail = (
        f"{want.sum()} dimensions in {layers[:, want].min():.0%} of the layers, {positions[..., want].mean():.0%} of "
        f"the positions, up to {magnitude.max():.0f}, {ratio.mean():.0f} times the largest other feature"
    )
    holds = bool((LARGER[0] <= ratio).all() and (ratio <= LARGER[1]).all())
    return measured(holds, detail, Sample(len(ratio), float(ratio.std()), LARGER[0]))


def check_int_mm(arrays: Arrays, params: Params) -> Outcome:
    """The codes of all activations and weights, multiplied by torch and by the lab."""
    import torch

    from ...nn.int8_layers import saturates_here

    if saturates_here():
        return absent("torch._int_mm saturates here, where oneDNN uses no VNNI instructions")
    w = arrays["weights"]
    weights = integers.quantize(w, integers.scheme(w, "int8", "column"))
    compared = 0
    for layer, x in enumerate(arrays["inputs"]):
        codes = integers.quantize(x, integers.scheme(x, "int8", "row"))
        theirs = torch._int_mm(torch.from_numpy(codes), torch.from_numpy(weights)).numpy()
        ours = integers.int_matmul(codes, weights)
        if not np.array_equal(ours, theirs):
            return failed(f"layer {layer}: {(ours != theirs).sum()} of {ours.size} sums differ")
        compared += ours.size
    return passed(f"{compared:,} INT32 sums")


def check_decomposition(arrays: Arrays, params: Params) -> Outcome:
    """Errors with the most outliers over those with none, by method, in octaves: the one that grows least, and most.

    The margins are those that the claim names.
    """
    if absence := too_few(arrays):
        return absence
    octaves = np.log2(arrays["each_errors"][..., -1] / arrays["each_errors"][..., 0])
    growth = 2 ** octaves.mean(axis=0)
    detail = ", ".join(f"{name} {growth[at(name)]:.1f}×" for name in ("absmax", "zeropoint", "vectorwise", "llm_int8"))
    apart = [i for i, method in enumerate(integers.METHODS) if method.decompose]
    rest = [i for i in range(len(NAMES)) if i not in apart]
    least, most = octaves[:, rest].min(axis=1), octaves[:, apart].max(axis=1)
    zero = np.zeros(len(octaves))
    return both(superior(least, zero, np.log2(3), f"{detail}; least of the plain ones, octaves"),
                superior(zero, most, -np.log2(1.2), "most of the decomposed ones, octaves below 0"))  # fmt: skip


Layers = Callable[[Any, Any, Any], Any]  # of a linear layer, its inputs and its bias or None


def counted(model: Any, layers: Layers, tokens: Any, targets: Any) -> tuple[float, float, float]:
    """Error of the products that read a norm, loss and divergence, where ``layers`` compute what linear ones do."""
    import torch

    linears = [x for name, x in model.named_modules() if isinstance(x, torch.nn.Linear) and name not in SKIP]
    reading = {reader for _, reader in norms_and_readers(model)}
    errors, logits = [], []

    def kept(linear: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if linear in reading:
            exact = inputs[0].double() @ linear.weight.double().T
            errors.append(float((layers(linear, inputs[0], None) - exact).norm() / exact.norm()))

    def replaced(linear: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        return layers(linear, inputs[0], linear.bias)

    with torch.no_grad():
        for hook in (kept, replaced):
            handles = [linear.register_forward_hook(hook) for linear in linears]
            logits.append(model(tokens).flatten(0, -2).double().log_softmax(1))
            for handle in handles:
                handle.remove()
    fp32, narrow = logits
    loss = -narrow[torch.arange(len(narrow)), targets.flatten()].mean()
    return float(np.mean(errors)), float(loss), float((fp32.exp() * (fp32 - narrow)).sum(1).mean())


def check_counted(arrays: Arrays, params: Params) -> Outcome:
    """Every error, loss and divergence of the first network by another route: its own layers call NumPy's products.

    Only sums of float64 numbers are taken in another order.
    """
    import torch

    from ...training.loop import one_thread

    model = untrained(params)
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(torch.from_numpy(arrays["parameters"]), model.parameters())
    windows = torch.from_numpy(arrays["tokens"]), torch.from_numpy(arrays["targets"])

    def by(*how: Any) -> Layers:
        def layer(linear: Any, x: Any, bias: Any) -> Any:
            product = torch.from_numpy(integers.matmul(x.flatten(0, -2).numpy(), linear.weight.numpy().T, *how))
            return (product if bias is None else product + bias).reshape(*x.shape[:-1], -1)

        return layer

    def grouped(group: int) -> Layers:
        def layer(linear: Any, x: Any, bias: Any) -> Any:
            weights = torch.from_numpy(integers.quantize_groups(linear.weight.numpy(), group).values())
            return torch.nn.functional.linear(x, weights, bias)

        return layer

    rows: list[tuple[str, tuple[int, ...], int, Layers]]
    rows = [("", (i, j), n, by(method)) for j, n in enumerate(params.dimensions) for i, method in enumerate(NAMES)]
    rows += [("threshold_", (i, k), params.planted, by(method, threshold))
             for k, threshold in enumerate(params.thresholds) for i, method in enumerate(DECOMPOSED)]  # fmt: skip
    rows += [("int4_", (g,), 0, grouped(group)) for g, group in enumerate(params.groups)]
    done = 0
    with one_thread():
        for of, place, n, layers in rows:
            found = counted(planted(model, n), layers, *windows)
            for name, want in zip((f"{of}errors", f"{of}losses", f"{of}divergences"), found, strict=True):
                if name not in arrays:
                    continue
                if not np.isclose(arrays[name][place], want, rtol=1e-9, atol=1e-13):
                    return failed(f"{name} {list(place)}: {arrays[name][place]!r}, counted again {want!r}")
                done += 1
        base = counted(model, lambda linear, x, bias: torch.nn.functional.linear(x, linear.weight, bias), *windows)[1]
    if not np.isclose(arrays["fp32_loss"][0], base, rtol=1e-9, atol=0):
        return failed(f"the loss in FP32 is {arrays['fp32_loss'][0]!r}, counted again {base!r}")
    return passed(f"{done:,} errors, losses and divergences")


def too_few(arrays: Arrays) -> Outcome | None:
    """Where there is one network only."""
    return absent("one seed says nothing about others") if len(arrays["each_errors"]) < 2 else None


def check_prediction(arrays: Arrays, params: Params) -> Outcome:
    """How far the predicted distributions move with the most outliers; the margin is the claim's factor of three."""
    if absence := too_few(arrays):
        return absence
    plain, apart = (arrays["each_divergences"][:, at(name), -1] for name in ("vectorwise", "llm_int8"))
    detail = f"divergence {1e3 * plain.mean():.2f} against {1e3 * apart.mean():.3f} millinats"
    return superior(np.log2(plain), np.log2(apart), np.log2(3), f"{detail}, octaves")


def check_threshold(arrays: Arrays, params: Params) -> Outcome:
    """A threshold between the ordinary features and the outliers: of the dimensions that leave INT8 each was planted,
    and of those planted nineteen in twenty leave. The margin: the error of a threshold that nothing reaches is thrice.
    """
    if absence := too_few(arrays):
        return absence
    shares, errors = arrays["each_int8_shares"], arrays["each_threshold_errors"]
    leaves = np.abs(arrays["each_inputs"]).max(axis=2) >= LEAST_MAGNITUDE  # (networks, layers, width)
    was_planted = np.zeros(params.width, np.bool_)
    was_planted[outlier_dimensions(params.width, params.planted)] = True
    mean, own = shares.mean(axis=0), errors[:, DECOMPOSED.index("llm_int8")].mean(axis=0)
    detail = f"at 6, {mean[1]:.1%} of the dimensions stay in INT8, error {own[1]:.2%}"
    detail += f"; at {params.thresholds[-1]:g}, {mean[-1]:.1%} and {own[-1]:.2%}; at 0, all in FP16, {own[0]:.3%}"
    if leaves[..., ~was_planted].any() or leaves[..., was_planted].mean() < 0.95:
        return failed(f"{detail}; other dimensions leave, or outliers stay")
    if not np.allclose(shares[:, 1], 1 - leaves.mean(axis=(1, 2)), rtol=0, atol=1e-12):
        return failed(f"{detail}; recounted, {1 - leaves.mean():.1%}")
    falls = np.log2(errors[..., 1:].min(axis=2) / errors[..., 0]).min(axis=1)
    gains = np.log2(errors[..., -1] / errors[..., 1]).min(axis=1)
    zero = np.zeros(len(gains))
    return both(superior(gains, zero, np.log2(3), f"{detail}; error saved at 6, octaves"),
                superior(falls, zero, 0.0, "saved once more at 0, octaves"))  # fmt: skip


def check_int4(arrays: Arrays, params: Params) -> Outcome:
    """Products of INT4 weights with the smallest and the largest groups; the margin is a quarter of an octave, 19%."""
    if absence := too_few(arrays):
        return absence
    small, large = arrays["each_int4_errors"].T
    detail = f"error in groups of {params.groups[0]}: {small.mean():.2%}, of {params.groups[-1]}: {large.mean():.2%}"
    return superior(np.log2(large), np.log2(small), 0.25, f"{detail}, octaves")


def check_table1(arrays: Arrays, params: Params) -> Outcome:
    """What is drawn against a second transcript of the paper's table, taken column by column."""
    again = np.array([line.split() for line in TRANSCRIPT], np.float64)
    if arrays["published"].shape != again.T.shape or not np.array_equal(arrays["published"], again.T):
        return failed("a number of the table differs from the second transcript")
    base, plain, apart, points = (again.T[list(TABLE1).index(n)] for n in
                                  (BASELINE, "vectorwise", "llm_int8", "zeropoint_llm_int8"))  # fmt: skip
    decomposed, worst = (np.abs(line / base - 1).max() for line in (apart, points))
    detail = f"at 13B vector-wise {plain[-1] / base[-1] - 1:+.0%}; "
    return passed(f"{detail}LLM.int8() within {decomposed:.1%}, with zero points within {worst:.1%}")


PROVED, LIBRARY, MEASURED = Evidence.PROVED, Evidence.LIBRARY, Evidence.MEASURED
CHECKS = (
    Check("planted outliers change no bit of what the FP32 model computes", PROVED, check_unchanged),
    Check("the planted dimensions, and no others, are outlier features by the paper's criterion and of its size",
          MEASURED, check_planted),
    Check("INT32 sums are torch._int_mm's", LIBRARY, check_int_mm),
    Check("errors, losses and divergences are those of integer products called from outside the layers", PROVED,
          check_counted),
    Check("with outliers every method's error grows at least threefold, a decomposed one's by less than a fifth",
          MEASURED, check_decomposition),
    Check("LLM.int8() predicts three times nearer to FP32 than vector-wise INT8", MEASURED, check_prediction),
    Check("at the paper's threshold of 6 outlier dimensions alone leave INT8, and most of the error with them",
          MEASURED, check_threshold),
    Check("INT4 weights err less in small groups than in large ones", MEASURED, check_int4),
    Check("the paper's Table 1 is drawn as published", LIBRARY, check_table1),
)  # fmt: skip

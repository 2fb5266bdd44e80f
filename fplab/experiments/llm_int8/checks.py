"""The experiment's claims."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from ... import integers
from ...hardware.cases import Arrays
from ...integers import grids, oracle
from ..base import Check, Evidence, Outcome, absent, failed, passed, verdict
from .data import DECOMPOSED, NAMES, Params
from .planting import GAIN, outlier_dimensions
from .published import BASELINE, LARGER, LEAST_LAYERS, LEAST_MAGNITUDE, LEAST_POSITIONS, TABLE1


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
    """The paper's criterion for outlier features, and how large they are beside the other features."""
    magnitude = np.abs(arrays["inputs"])
    positions = (magnitude >= LEAST_MAGNITUDE).mean(axis=1)  # (layers, width)
    layers = (positions > 0).mean(axis=0)
    meets = (layers >= LEAST_LAYERS) & ((positions >= LEAST_POSITIONS).mean(axis=0) >= LEAST_LAYERS)
    want = np.zeros(meets.size, np.bool_)
    want[outlier_dimensions(params.width, params.planted)] = True
    if not np.array_equal(meets, want):
        found, there = np.flatnonzero(meets).tolist(), np.flatnonzero(want).tolist()
        return failed(f"dimensions {found} meet it, {there} were planted")
    ratio = float(magnitude[..., want].max() / magnitude[..., ~want].max())
    detail = (
        f"{want.sum()} dimensions in {layers[want].min():.0%} of the layers, {positions[:, want].mean():.0%} of the "
        f"positions, up to {magnitude.max():.0f}, {ratio:.0f} times the largest other feature"
    )
    return verdict(LARGER[0] <= ratio <= LARGER[1], detail)


def check_oracle(arrays: Arrays, params: Params) -> Outcome:
    """Scales, codes, sums and results of vector-wise products of real activations against Fractions."""
    form, compared = grids.get("int8"), 0
    columns = slice(0, 6)
    for layer, x in enumerate(arrays["inputs"]):
        rows = x[:: max(1, len(x) // params.sample)][: params.sample]
        w = arrays["weights"][:, columns] if layer == 0 else arrays["weights"][:, -6:]
        found = integers.matmul(rows, w, "vectorwise")
        for i, row in enumerate(rows.tolist()):
            sx = float(oracle.symmetric(max(map(abs, row)), form))
            a = [oracle.quantize(v, sx, 0, form) for v in row]
            for j, column in enumerate(w.T.tolist()):
                sw = float(oracle.symmetric(max(map(abs, column)), form))
                b = [oracle.quantize(v, sw, 0, form) for v in column]
                want = oracle.scaled(sum(p * q for p, q in zip(a, b, strict=True)), sx, sw)
                if Fraction(float(found[i, j])) != want:
                    return failed(f"layer {layer}, row {i}, column {j}: {found[i, j]!r} against {float(want)!r}")
                compared += 1
    return passed(f"{compared} results of {arrays['inputs'].shape[-1]} products each, every bit")


def check_int_mm(arrays: Arrays, params: Params) -> Outcome:
    """The codes of all activations and weights, multiplied by torch and by the lab."""
    import torch

    from ...nn.int8_layers import saturates_here

    if saturates_here():
        return absent("torch._int_mm saturates on this CPU, which has no VNNI instructions")
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
    """Errors with the most outliers over those with none, by method."""
    growth = arrays["errors"][:, -1] / arrays["errors"][:, 0]
    detail = ", ".join(f"{name} {growth[at(name)]:.1f}×" for name in ("absmax", "zeropoint", "vectorwise", "llm_int8"))
    apart = [i for i, method in enumerate(integers.METHODS) if method.decompose]
    rest = [i for i in range(len(NAMES)) if i not in apart]
    return verdict(bool(growth[apart].max() < 1.2 and growth[rest].min() > 3), detail)


def check_prediction(arrays: Arrays, params: Params) -> Outcome:
    """How far the predicted distributions move with the most outliers."""
    last = arrays["divergences"][:, -1]
    plain, apart = last[at("vectorwise")], last[at("llm_int8")]
    loss = arrays["losses"][:, -1] - arrays["fp32_loss"][0]
    detail = (
        f"divergence {1e3 * plain:.2f} against {1e3 * apart:.3f} millinats; loss {1e3 * loss[at('vectorwise')]:+.1f} "
        f"against {1e3 * loss[at('llm_int8')]:+.1f}, absmax {1e3 * loss[at('absmax')]:+.1f} millinats"
    )
    symmetric = [i for i, method in enumerate(integers.METHODS) if not method.zero_point]
    return verdict(bool(apart * 3 < plain and apart == last[symmetric].min()), detail)


def check_threshold(arrays: Arrays, params: Params) -> Outcome:
    """A threshold between the ordinary features and the outliers: exactly the planted dimensions leave INT8."""
    thresholds, shares, by_method = (arrays[n] for n in ("thresholds", "int8_shares", "threshold_errors"))
    own = DECOMPOSED.index("llm_int8")
    errors = by_method[own]
    six = int(np.flatnonzero(thresholds == LEAST_MAGNITUDE)[0])
    want = 1 - params.planted / params.width
    detail = f"at 6, {shares[six]:.1%} of the dimensions stay in INT8, error {errors[six]:.2%}; at {thresholds[-1]:g}, "
    detail += f"{shares[-1]:.1%} and {errors[-1]:.2%}; at 0, all in FP16, {errors[0]:.3%}"
    at_six = (arrays["threshold_losses"][own, six], arrays["threshold_losses_int8_rows"][six])
    losses = [1e3 * (loss - arrays["fp32_loss"][0]) for loss in at_six]
    detail += f"; at 6 the loss is {losses[0]:+.2f} millinats, with the outliers' weights kept in INT8 {losses[1]:+.2f}"
    rising = np.diff(shares) >= 0
    falls = (by_method[:, 0] < by_method[:, six]) & (by_method[:, six] < by_method[:, -1] / 3)
    return verdict(bool(abs(shares[six] - want) < 1e-12 and rising.all() and falls.all()), detail)


def check_table1(arrays: Arrays, params: Params) -> Outcome:
    """What the published table itself says."""
    base = TABLE1[BASELINE]
    worst = max(abs(x / y - 1) for x, y in zip(TABLE1["zeropoint_llm_int8"], base, strict=True))
    decomposed = max(abs(x / y - 1) for x, y in zip(TABLE1["llm_int8"], base, strict=True))
    plain = TABLE1["vectorwise"][-1] / base[-1] - 1
    detail = f"at 13B vector-wise {plain:+.0%}; LLM.int8() within {decomposed:.1%}, with zero points within {worst:.1%}"
    return verdict(np.array_equal(arrays["published"], np.array(list(TABLE1.values()))) and decomposed < plain, detail)


CHECKS = (
    Check("planted outliers change no bit of what the FP32 model computes", Evidence.EXACT, check_unchanged),
    Check("the planted dimensions, and no others, are outlier features by the paper's criterion and of its size",
          Evidence.EXACT, check_planted),
    Check("INT8 products are the definition's: scale, codes, sum and result", Evidence.EXACT, check_oracle),
    Check("INT32 sums are torch._int_mm's", Evidence.LIBRARY, check_int_mm),
    Check("with outliers every method's error grows at least threefold, a decomposed one's by less than a fifth",
          Evidence.EXACT, check_decomposition),
    Check("LLM.int8() predicts nearest to FP32 of the symmetric methods, three times nearer than vector-wise",
          Evidence.EXACT, check_prediction),
    Check("at the paper's threshold of 6 exactly the outlier dimensions leave INT8, and most of the error with them",
          Evidence.EXACT, check_threshold),
    Check("the paper's Table 1 is shown as published", Evidence.EXACT, check_table1),
)  # fmt: skip

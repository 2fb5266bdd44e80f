"""Claims about mixed-precision training: sums, underflow, loss scaling, autocast, accuracy."""

import csv
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..arithmetic import add, mul
from ..experiments.statistics import compared
from ..floats import quantize
from ..formats import get
from ..nn.autocast_lists import RULES, Rule
from ..sums import dot
from ..tensorcore import models
from ..widgets.gradients import sample
from ..words import say, verbatim
from .base import Part, beside, equal, part, tries, untried

INEXACT, UNDERFLOW = 1, 2  # flags
RATE = np.float32(1e-3)  # Adam's usual learning rate


def fp16(x: Any) -> np.ndarray:
    return np.asarray(quantize(x, "fp16"))


def share(mask: Any) -> str:
    return f"{float(np.mean(mask)):.1%}"


# --- sums -------------------------------------------------------------------------------------------------------
@tries("fp32-partials")
def fp32_partials() -> Iterator[Part]:
    """A long sum of FP16 products with each accumulator, stored as FP16; and what Tensor Cores keep between blocks."""
    x, y = np.ones(8192), fp16(np.full(8192, 0.1))
    exact = float(np.sum(y))
    got = {a: float(dot(x, y, "fp16", accumulate=a)) for a in ("fp16", "fp32")}
    kept = models.get("V100", "fp16", "fp32").kept_bits
    yield part(say("8192 products of 1 and 0.1, added in FP32, stored in FP16"), str(float(quantize(exact, "fp16"))),
               str(got["fp32"]), got["fp32"] == float(quantize(exact, "fp16")))  # fmt: skip
    yield part(say("the same, added in FP16"), say("fails"), str(got["fp16"]), abs(got["fp16"] / exact - 1) > 0.5)
    yield equal(say("fraction bits of a Tensor Core's FP32 sum"), get("fp32").fraction_bits, kept)


@tries("half-partials")
def half_partials() -> Iterator[Part]:
    """The square of FP16's next number after 1, in FP16 and in FP32; and how long products get."""
    x = 1 + 2.0**-10
    kept = {"FP16": float(fp16(x * x)) == x * x, "FP32": float(np.float32(x * x)) == x * x}
    bits = (2047**2).bit_length()
    yield part(say("(1 + 2^-10)² is held by"), "FP16", ", ".join(name for name in kept if kept[name]), kept["FP16"])
    yield beside(say("significand bits of a product: needed, FP16, FP32"),
                 f"{bits}, {get('fp16').significand_bits}, {get('fp32').significand_bits}")  # fmt: skip


@tries("all-underflow")
def all_underflow() -> Iterator[Part]:
    """Which flags each technique's losses raise: of products, and of sums.

    Micikevicius et al. 2018, section 3.1, name both reasons for a master copy: an update that is below FP16's range,
    and one that is lost when it is added.
    """
    claimed = say("underflow")
    names = {1: say("inexact only"), 3: say("underflow, inexact")}
    cases = (
        (say("loss scaling: gradient 2^-20 times 2^-10"), mul, 2**-20, 2**-10),
        (say("master copy: gradient 2^-16 times rate 2^-10"), mul, 2**-16, 2**-10),
        (say("master copy: weight 1 plus update 2^-12"), add, 1, 2**-12),
        (say("FP32 sums: a product of 2^-13 and 2^-13"), mul, 2**-13, 2**-13),
        (say("FP32 sums: 2048 plus 1"), add, 2048, 1),
    )
    for about, operation, a, b in cases:
        flags = int(operation(a, b, "fp16", flags=True)[1])
        raised = names.get(flags, say("flags {flags}", flags=flags))
        yield part(about, claimed, raised, bool(flags & UNDERFLOW), bool(flags & INEXACT))


# --- underflow and loss scaling ---------------------------------------------------------------------------------
@tries("small-gradients")
def small_gradients() -> Iterator[Part]:
    """Recorded gradients in FP16 and in BF16."""
    lost = {kind: fp16(sample(kind)) == 0 for kind in ("activation", "weight")}
    yield part(say("non-zero activation gradients that FP16 makes zero"), "> 0", share(lost["activation"]),
               bool(lost["activation"].any()))  # fmt: skip
    yield part(
        say("non-zero weight gradients that FP16 makes zero"), "> 0", share(lost["weight"]), bool(lost["weight"].any())
    )


def sgd_step(gradients: np.ndarray) -> np.ndarray:
    """Learning rate times gradient, in FP64."""
    return RATE * gradients.astype(np.float64)


@tries("histogram-shift")
def histogram_shift() -> Iterator[Part]:
    """A scale of 2^12 before the cast to FP16, its inverse after it, in FP32; and SGD's step in between."""
    g = sample("activation")
    scaled = g * np.float32(4096)
    back = fp16(scaled).astype(np.float32) / np.float32(4096)
    kept = bool((np.frexp(scaled)[0] == np.frexp(g)[0]).all() and (np.frexp(scaled)[1] - np.frexp(g)[1] == 12).all())
    normal = np.abs(scaled) >= get("fp16").smallest_normal
    near = np.abs(back[normal] / g[normal] - 1).max()
    yield part(say("a factor of 2^12 changes significands"), say("no: a shift"),
               say("none of 16,384") if kept else say("some"), kept)  # fmt: skip
    yield part(say("zeros in FP16: without the scale, with it"), say("fewer"),
               f"{share(fp16(g) == 0)}, {share(back == 0)}",
               np.mean(back == 0) < np.mean(fp16(g) == 0) / 10)  # fmt: skip
    yield part(
        say("largest relative error after the way back, of normal numbers"), "≤ 2^-11", f"{near:.2g}", near <= 2**-11
    )
    early, right = (float(np.linalg.norm(sgd_step(x))) for x in (fp16(scaled), g))
    yield part(say("SGD's step before the way back, of the step without a scale"), "1", f"{early / right:.0f}",
               abs(early / right - 1) < 0.01)  # fmt: skip


@tries("gradient-times-lr")
def gradient_times_lr() -> Iterator[Part]:
    """Gradients of weights that FP16 holds, times a learning rate."""
    g = fp16(sample("weight"))
    lost = (g != 0) & (fp16(g * RATE) == 0)
    yield part(say("weight gradients that FP16 holds, but not times 0.001"), "> 0", share(lost), bool(lost.any()))


# --- training ---------------------------------------------------------------------------------------------------
@tries("compute-and-storage")
def compute_and_storage() -> Iterator[Part]:
    """What CUDA's autocast casts to FP16, and what it does in FP32."""
    low = ("matmul", "linear", "conv2d", "bmm")
    high = ("softmax.int", "layer_norm", "group_norm", "log_softmax.int", "sum")
    lower = [name for name in low if RULES.get(name) is Rule.LOWER]
    wide = [name for name in high if RULES.get(name) in (Rule.FP32, Rule.FP32_DTYPE)]
    yield part(say("in the lower precision"), ", ".join(low), ", ".join(lower), lower == list(low))
    yield part(say("in FP32"), ", ".join(high), ", ".join(wide), wide == list(high))
    yield part(say("batch norm"), "FP32", say("in no list") if "batch_norm" not in RULES else str(RULES["batch_norm"]),
               RULES.get("batch_norm") in (Rule.FP32, Rule.FP32_DTYPE), "batch_norm" not in RULES)  # fmt: skip


@tries("half-is-faster")
def half_is_faster() -> Iterator[Part]:
    """A question for GPUs; what the paper measured on Volta (DeepBench's operations) stands beside it."""
    yield untried(say("matrix products on a GPU of yours"), say("a multiple"))
    yield beside(say("operations of DeepBench on Volta, half against FP32, as published"), say("2 to 6 times"))


@tries("pytorch-names")
def pytorch_names() -> Iterator[Part]:
    """The order of a GradScaler's step, and what torch says to the old names."""
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.amp.GradScaler(enabled=False)
    old = [w.category.__name__ for w in caught if "deprecated" in str(w.message)]
    scaler, p = torch.amp.GradScaler("cpu", init_scale=1024.0), torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([p], lr=0.5)
    scaler.scale(p.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    once = float(p.detach()[0])
    p.grad = torch.full((1,), float("inf"))
    scaler.step(optimizer)
    scaler.update()
    yield part(say("scale, backward, step, update: 1 − 0.5 · 1"), "0.5", f"{once:g}", once == 0.5)
    yield part(say("infinite gradients: weight, scale"), say("skipped, halved"),
               f"{float(p.detach()[0]):g}, {scaler.get_scale():g}",
               (float(p.detach()[0]), scaler.get_scale()) == (once, 512))  # fmt: skip
    yield part(verbatim("torch.cuda.amp.GradScaler"), say("the name to use"), old[0] if old else "-", not old,
               hasattr(torch.cuda.amp, "GradScaler"))  # fmt: skip
    yield untried(say("TensorFlow's policy mixed_float16"), say("its name"), say("TensorFlow is not part of the lab"))


# Micikevicius et al. 2018 (arXiv 1710.03740), Table 1: ILSVRC12 top-1 in per cent, FP32 and mixed.
TOP_1 = {
    "AlexNet": (56.77, 56.93), "VGG-D": (65.40, 65.43), "GoogLeNet": (68.33, 68.43), "Inception v2": (70.03, 70.02),
    "Inception v3": (73.85, 74.13), "ResNet50": (75.92, 76.04),
}  # fmt: skip


@tries("same-accuracy")
def same_accuracy() -> Iterator[Part]:
    """The paper's table, and the lab's own runs as the experiment formats_in_training left them."""
    differences = [mixed - full for full, mixed in TOP_1.values()]
    worst = f"{min(differences):+.2f} … {max(differences):+.2f}"
    yield part(say("the paper's six networks, mixed − FP32, points"), say("none worse"), worst, min(differences) > -0.1)
    runs = rows_of("formats_in_training")
    digits = [row for row in runs if row["task"] == "digits"]
    top = {name: np.array([float(row["top1"]) for row in digits if row["policy"] == name])
           for name in ("fp32", "fp16", "pure_fp16")}  # fmt: skip
    about = say("digits, here: FP16 with master weights − FP32, points")
    if any(len(scores) < 2 for scores in top.values()):
        yield untried(about, "-", say("fewer than 2 runs drawn here"))
        return
    against = {name: compared(top[name], top["fp32"], top["fp32"]) for name in ("fp16", "pure_fp16")}

    def shown_range(name: str) -> str:
        comparison = against[name]
        return f"{100 * comparison.low:+.2f} … {100 * comparison.high:+.2f} (±{100 * comparison.band:.1f})"

    claimed = say("within FP32's variation")
    if against["fp16"].verdict == "undecided":
        yield untried(about, claimed, shown_range("fp16"))
        return
    yield part(about, claimed, shown_range("fp16"), against["fp16"].verdict == "within")
    yield beside(say("the same of pure FP16"), shown_range("pure_fp16"))


def rows_of(experiment: str) -> list[dict[str, str]]:
    """The data of an experiment's figure, as ``fplab run`` left it; empty where there is none."""
    from ..course import folders

    for folder in folders():
        if (path := folder / f"{experiment}.csv").is_file():
            with path.open(encoding="utf-8", newline="") as file:
                return list(csv.DictReader(file))
    return []


@tries("fp16-or-bf16")
def fp16_or_bf16() -> Iterator[Part]:
    """What each format loses: at the ends of the range, and between two neighbours."""
    g = sample("activation")
    lost = {name: np.mean(np.asarray(quantize(g, name)) == 0) for name in ("fp16", "bf16")}
    big = {name: float(quantize(1e5, name)) for name in ("fp16", "bf16")}
    error = {
        name: float(np.abs(np.asarray(quantize(np.linspace(1, 2, 4097), name)) - np.linspace(1, 2, 4097)).max())
        for name in ("fp16", "bf16")
    }
    yield part(say("gradients lost without a scale: FP16, BF16"), say("BF16 none"),
               f"{lost['fp16']:.1%}, {lost['bf16']:.1%}", lost["bf16"] == 0 < lost["fp16"])  # fmt: skip
    yield part(say("an activation of 1e5: FP16, BF16"), say("BF16 holds it"), f"{big['fp16']:g}, {big['bf16']:g}",
               np.isinf(big["fp16"]) and np.isfinite(big["bf16"]))  # fmt: skip
    yield part(say("within the range, largest error: FP16, BF16"), say("FP16 smaller"),
               f"{error['fp16']:.2g}, {error['bf16']:.2g}", error["fp16"] < error["bf16"])  # fmt: skip

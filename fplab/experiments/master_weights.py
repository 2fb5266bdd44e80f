"""Where updates go when weights are held in 16 bits: FP16 and BF16 weights with four ways of adding an update.

Everything but the weights is FP32 here, so whatever happens is the weights' doing. The same network is trained with
ever smaller steps and ever more of them, lr * steps held constant: in FP32 that changes little. Claims after
Micikevicius et al. 2018 (arXiv 1710.03740), section 3.1, and Zamirai et al. 2020 (arXiv 2010.06192).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .. import draw, exact, formats, numeric
from ..hardware.cases import Arrays, Case, philox_bits
from ..hardware.programs import cast, program
from ..hardware.tensors import bits, tensor
from ..words import CLAUSE, joined, say
from . import lost_updates
from .frame import Experiment, Params, Result
from .outcomes import Outcome, Part, Sample, failed, measured, verdict
from .panels import dots, line, with_
from .quantities import above, alike, of, superior, together

HALVES = ("fp16", "bf16")
WORDS = {"nearest": "nearest", "stochastic": "stochastic", "kahan": "Kahan", "master": "FP32 copy"}
VARIANTS = (("fp32", "nearest"), *((fmt, update) for fmt in HALVES for update in WORDS))
# What is kept of a step, of all weights: the parameters, what is updated (FP32 with a copy), velocities and Kahan's
# compensations before it, the gradients, and all but these after it.
STEP = ("parameter", "weight", "velocity", "compensation", "gradient", "new parameter", "new weight", "new velocity",
        "new compensation")  # fmt: skip
RATIOS = np.arange(33) / 8 - 1  # of |w|/|u|, as exponents from p on, at which lost updates are counted

# ``rates``: learning rates, falling; ``distance``: lr * steps. ``width``: of the network's hidden layers. ``every``:
# steps between two counts of lost updates. ``sample``: how many pairs of weight and update the oracle and the figure
# take. ``slow``: a rate at which BF16's weights stall, and how many steps are taken with it.
E = Experiment(
    "Master weights", "Which updates does a 16-bit weight lose, and which of three remedies brings them back?",
    budget=7.0, one_thread=True,
    full={"rates": (2.0**-4, 2.0**-6, 2.0**-8, 2.0**-10), "distance": 6.0, "width": 128, "momentum": 0.9, "batch": 128,
          "seeds": 3, "every": 8, "sample": 2048, "slow": (2.0**-9, 1024)},
    quick={"rates": (2.0**-3, 2.0**-5), "distance": 4.0, "width": 32, "seeds": 4, "every": 16, "slow": (2.0**-8, 384)},
)  # fmt: skip


# --- the runs ---------------------------------------------------------------------------------------------------
@E.measure("training_loss", "loss_along", "test_accuracy", "updates_lost", "median_drift", "largest_drift",
           axes={"weights": ("fp32", *HALVES), "update": WORDS, "lr": "rates", "seed": "seeds"})  # fmt: skip
def runs(p: Params, weights: str, update: str, lr: float, seed: int) -> tuple[float, ...] | None:
    """Training loss of the last steps and of all; accuracy; the share of updates lost; drift in ulps, see Trained."""
    if (weights, update) not in VARIANTS:
        return None
    first = seed == 0 and lr == p.rates[-1]
    run = observed(p, weights, update) if first else train(p, weights, update, lr, steps_of(p, lr), seed)
    return last_losses(run.losses), float(run.losses.mean()), run.top1, run.lost, *run.drift


@E.measure(axes={"update": ("FP32", "nearest", "master"), "seed": "seeds", "step": ...})
def stalled(p: Params, update: str, seed: int) -> dict[int, float]:
    """The training loss with FP32's or BF16's weights at the slow rate, the mean of 16 steps each."""
    weights = "fp32" if update == "FP32" else "bf16"
    rate, steps = p.slow
    losses = train(p, weights, "nearest" if weights == "fp32" else update, rate, steps, seed).losses
    return {16 * i + 8: float(x) for i, x in enumerate(losses.reshape(-1, 16).mean(axis=1, dtype=np.float64))}


@E.measure(axes={"format": HALVES, "ratio": ...}, digested=True)
def survival(p: Params, format: str) -> dict[float, float]:
    """Of weights of every significand, the share that an update |w|/ratio leaves as they are, by ratio.

    Updates point away from zero and are rounded to nearest; counted over a binade's significands by integers alone.
    """
    form = formats.get(format)
    units = np.arange(2**form.fraction_bits, 2**form.significand_bits, dtype=np.float64)  # weights in ulps
    lost = [(units / r < 0.5) | ((units / r == 0.5) & (units % 2 == 0)) for r in ratios(format)]
    return dict(zip(RATIOS.tolist(), [float(x.mean()) for x in lost], strict=True))


def ratios(fmt: str) -> np.ndarray:
    """The ratios at which :func:`survival` counts: from a binade below the rule of 2**p to three above."""
    return np.asarray(2.0 ** (formats.get(fmt).significand_bits + RATIOS))


@E.cache
def observed(p: Params, weights: str, update: str) -> Trained:
    """The first seed's run at the last rate, of which pairs and steps are looked at."""
    return train(p, weights, update, p.rates[-1], steps_of(p, p.rates[-1]), 0)


class Trained(NamedTuple):
    """A run. ``lost``: the share of the moving updates that left their weight as it was, at the counted steps.

    ``drift``: how far weights are from where their own updates, added exactly, would have led, median and largest, in
    ulps of the largest magnitude a weight has had; a Kahan weight counts with its compensation. ``pairs``: float32
    (3, n), a sample of weights, moving updates and new weights. ``steps``: float32 (kept steps, STEP, n).
    """

    losses: np.ndarray
    top1: float
    lost: float
    drift: tuple[float, float]
    pairs: np.ndarray
    steps: np.ndarray


class Ledger:
    """What happens to every update of a run, by parameter; the observer of an optimizer.

    ``total``: the first weights and all updates, in float64, whether or not they reached the weight. ``peak``: the
    largest magnitude each weight has had. ``pairs``: weights, updates and new weights at every counted step.
    """

    def __init__(self, every: int) -> None:
        self.total, self.peak, self.calls = dict[int, Any](), dict[int, Any](), dict[int, int]()
        self.pairs: list[np.ndarray] = []
        self.every = every

    def __call__(self, parameter: Any, before: np.ndarray, update: np.ndarray, after: np.ndarray) -> None:
        """Note one parameter's step."""
        place, pair = id(parameter), (before.ravel(), update.ravel(), after.ravel())
        self.total[place] = self.total.get(place, pair[0].astype(np.float64)) + pair[1]
        self.peak[place] = np.maximum(self.peak.get(place, np.abs(pair[0])), np.abs(pair[2]))
        self.calls[place] = self.calls.get(place, -1) + 1
        if self.calls[place] % self.every == 0:
            self.pairs.append(np.stack(pair))


def steps_of(p: Params, rate: float) -> int:
    """How many steps a learning rate takes."""
    steps: int = round(p.distance / rate)
    return steps


def kept_steps(p: Params, steps: int) -> list[int]:
    """The steps of which everything is kept: the first, a middle and the last that are counted, and the last."""
    counted = (steps - 1) // p.every
    return sorted({0, counted // 2 * p.every, counted * p.every, steps - 1})


def train(p: Params, weights: str, update: str, rate: float, steps: int, seed: int) -> Trained:
    """Train the network once."""
    import torch

    from ..training import digits, tensors
    from ..training.optimizers import SGD
    from ..training.tasks import DIGITS_MLP, Batch, digits_mlp, epochs

    model = digits_mlp(seed, p.width)
    parts = list(model.parameters())
    whole = in_one(parts)
    parameters = parts if update == "stochastic" else [whole]  # a word goes by its parameter's place
    optimizer = SGD(parameters, rate, p.momentum, weights=weights, update=update, seed=seed)
    optimizer.observer = ledger = Ledger(p.every)
    images, labels = tensors(digits("train"))
    losses, kept = np.zeros(steps, np.float32), []
    for step, index in enumerate(epochs(len(labels), p.batch, seed, steps)):
        model.zero_grad()
        loss = DIGITS_MLP.loss(model, Batch(images[index].flatten(1), labels[index]))
        loss.backward()
        whole.grad = torch.cat([x.grad.ravel() for x in parts if x.grad is not None])
        before = state_vectors(optimizer, parameters) if step in kept_steps(p, steps) else []
        optimizer.step()
        if before:
            kept.append(np.stack([*before, whole.grad.numpy(), *state_vectors(optimizer, parameters)]))
        losses[step] = loss.item()
    pairs = np.hstack(ledger.pairs)
    pairs = pairs[:, pairs[1] != 0]
    drifts = []
    for x in parameters:
        end = x.detach().double() + (optimizer.state[x]["compensation"] if update == "kahan" else 0)
        away = np.abs(end.numpy().ravel() - ledger.total[id(x)])
        drifts.append(away / numeric.ulp(ledger.peak[id(x)], weights))
    drift = np.concatenate(drifts)
    sampled = pairs[:, :: max(1, pairs.shape[1] // (64 * p.sample))]
    return Trained(losses, DIGITS_MLP.evaluate(model), float((pairs[0] == pairs[2]).mean()),
                   (float(np.median(drift)), float(drift.max())), sampled, np.stack(kept))  # fmt: skip


def in_one(parameters: list[Any]) -> Any:
    """A parameter whose parts the others become: of arrays this small an optimizer's step costs as much for each."""
    import torch

    whole = torch.nn.Parameter(torch.cat([x.detach().ravel() for x in parameters]))
    for x, part in zip(parameters, whole.detach().split([x.numel() for x in parameters]), strict=True):
        x.data = part.view(x.shape)
    return whole


def state_vectors(optimizer: Any, parameters: list[Any]) -> list[np.ndarray]:
    """Parameters, what is updated, velocities and compensations, each as one float32 array, 0 before there is any."""
    rows = []
    for x in parameters:
        state, value = optimizer.state[x], x.detach().numpy()
        nothing = np.zeros_like(value)
        others = (("master", value), ("velocity", nothing), ("compensation", nothing))
        rows.append([np.asarray(y).ravel().copy() for y in (value, *(state.get(key, other) for key, other in others))])
    return [np.concatenate(row) for row in zip(*rows, strict=True)]


def last_losses(losses: np.ndarray) -> float:
    """The mean of the last tenth, of eight steps at least."""
    return float(losses[-max(len(losses) // 10, 8) :].mean())


# --- claims -----------------------------------------------------------------------------------------------------
fp32 = {"weights": "fp32", "update": "nearest"}
final, lost = of("training_loss", lr=-1), of("updates_lost", weights=[*HALVES], update="nearest")
drift = of("median_drift", weights=[*HALVES], lr=-1)
E.claim(
    superior("learning", "The network learns in FP32 at every learning rate",
             of("test_accuracy", **fp32).min("lr"), 0.1, by=0.3),  # well above chance: what is lost is not lost by FP32
)  # fmt: skip


@E.proved("In the first, a middle and the last step gradients, velocities and the sums of every way are the rule's own")
def steps(r: Result) -> Iterator[Part]:
    """The kept steps of the first seed at the last rate: gradients by autograd, the update, and the rule's own sums."""
    from ..training import digits, tensors
    from ..training.tasks import epochs

    p, total = r.p, steps_of(r.p, r.p.rates[-1])
    images, labels = tensors(digits("train"))
    order = [*epochs(len(labels), p.batch, 0, total)]
    for weights, update in VARIANTS:
        for step, row in zip(kept_steps(p, total), observed(p, weights, update).steps, strict=True):
            given = dict(zip(STEP, row, strict=True))
            batch = images[order[step]].flatten(1), labels[order[step]]
            wanted = {"gradient": gradient(p, given["parameter"], *batch)} | after(p, weights, update, given)
            for what, want in wanted.items():
                name = say("{way}, step {step}, {what}", way=f"{weights}, {update}", step=step, what=what)
                yield name, given[what].view(np.uint32), want.view(np.uint32), "fp32"


def gradient(p: Params, parameters: np.ndarray, images: Any, labels: Any) -> np.ndarray:
    """Of the mean cross-entropy of a batch, float32 (n,), by autograd on functions."""
    import torch
    from torch.nn.functional import cross_entropy, linear

    widths = (64, p.width, p.width, 10)
    sizes = [n for wide, high in itertools.pairwise(widths) for n in (high * wide, high)]
    leaves = [x.clone().requires_grad_() for x in torch.from_numpy(parameters).split(sizes)]
    for i, wide in enumerate(widths[:-1]):
        images = linear(images.relu() if i else images, leaves[2 * i].view(-1, wide), leaves[2 * i + 1])
    return np.concatenate([g.numpy() for g in torch.autograd.grad(cross_entropy(images, labels), leaves)])


def after(p: Params, weights: str, update: str, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a step ends with: numpy's float32 for velocity and update, the rule's sums each rounded once.

    Of stochastic rounding not the weight, which another claim is about.
    """
    velocity = given["velocity"] * np.float32(p.momentum) + given["gradient"]
    change, w = velocity * np.float32(-p.rates[-1]), given["weight"]
    fmt = "fp32" if update == "master" else weights

    def rounded(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.asarray(a + b if fmt == "fp32" else numeric.quantize(a.astype(np.float64) + b, fmt), np.float32)

    results = {"new velocity": velocity}
    if update == "kahan":
        corrected = rounded(change, given["compensation"])
        summed = rounded(w, corrected)
        left = rounded(corrected, -rounded(summed, -w))
        results |= {"new weight": summed, "new parameter": summed, "new compensation": left}
    elif update != "stochastic":
        summed = rounded(w, change)
        results |= {"new weight": summed, "new parameter": np.asarray(numeric.quantize(summed, weights), np.float32)}
    return results


TEXTBOOK = (  # FP16: weight, update, sum
    (1.0, 2.0**-11, 1.0),  # a ratio of 2048, and a tie that goes to the even neighbour, the weight
    (1.0, 2.0**-11 * (1 + 2.0**-10), 1 + 2.0**-10),
    (1 + 2.0**-10, 2.0**-11, 1 + 2.0**-9),  # the same update: a tie again, and now the even neighbour is above
    (1.5, 1.5 / 2048, 1.5 + 2.0**-10),  # a ratio of 2048 exactly, and not lost
)


@E.proved("A ratio |w|/|u| of 2048 may survive in FP16: the rule is half an ulp, ties to even")
def textbook(r: Result) -> Iterator[Outcome]:
    for w, u, want in TEXTBOOK:
        code = exact.round_to(exact.of(Fraction(w) + Fraction(u)), "fp16")[0]
        got = float(numeric.add(w, u, "fp16"))
        yield verdict(got == want == float(numeric.decode(np.uint16(code), "fp16")), f"{w!r} + {u!r} = {got!r}")


def nearest(r: Result, fmt: str, update: str = "nearest") -> np.ndarray:
    """Weights, updates and new weights of the run that rounds to nearest: float64 (3, n)."""
    return observed(r.p, fmt, update).pairs.astype(np.float64)


@E.library("The runs' sums are numpy's and torch's own in half precision")
def library_sums(r: Result) -> Iterator[Part]:
    """numpy rounds the FP16 run's float64 sums the same; torch adds the same once the update is a half number too."""
    w, u, summed = nearest(r, "fp16")
    yield "numpy", numeric.encode(summed, "fp16"), (w + u).astype(np.float16).view(np.uint16), "fp16"
    for fmt in HALVES:
        codes = [numeric.encode(x, fmt) for x in nearest(r, fmt)[:2]]
        a, b = (tensor(c, fmt, "cpu") for c in codes)
        ours = numeric.add(numeric.decode(codes[0], fmt), numeric.decode(codes[1], fmt), fmt)
        yield f"torch, {fmt}", numeric.encode(ours, fmt), bits(a + b), fmt


def sums(r: Result) -> Iterator[lost_updates.Sums]:
    """Of both formats weights that are not zero, their updates, and whether the sum is the weight."""
    for fmt in HALVES:
        w, u, summed = nearest(r, fmt)[:, nearest(r, fmt)[0] != 0]
        yield fmt, w, u, summed == w


E.proved("|u| < ulp(w)/2, half that below a power of two, names every lost update", "half_gap")(
    lambda r: lost_updates.half_gap(sums(r)))  # fmt: skip
E.proved("The 2048 rule (BF16: 256) is where loss begins; it is certain only at twice that", "ratio_rule")(
    lambda r: lost_updates.ratio_rule(sums(r)))  # fmt: skip


@E.proved("In between, the weight's significand decides: 2^x - 1 of all are lost at ratio 2^(p+x)")
def survivors(r: Result) -> Iterator[Outcome]:
    for fmt in HALVES:
        most = float(np.abs(r.survival.sel(format=fmt) - np.clip(2.0**r.survival.ratio - 1, 0, 1)).max())
        yield verdict(
            most <= 2.0 ** -formats.get(fmt).fraction_bits, say("{fmt}: {most:.3g} apart", fmt=fmt, most=most)
        )


E.claim(
    superior("smaller_steps", "The smaller the step, the larger the share of updates that rounding to nearest loses",
             lost.then("least increase of updates_lost", lambda x: x.diff("lr").min(["weights", "lr"]))),
)  # fmt: skip


@E.measured("Stochastic rounding's errors on the runs' updates cancel: their sum is within 5 standard deviations of 0")
def unbiased(r: Result) -> Outcome:
    """Each rounding is a draw of its own. Rounding to nearest, beside it, errs against the update."""
    texts, most, draws = [], 0.0, 0
    for fmt in HALVES:
        w, u, summed = nearest(r, fmt, "stochastic")
        below, above = (numeric.quantize(w + u, fmt, rounding).astype(np.float64) for rounding in ("rtn", "rtp"))
        gap = above - below
        inexact = gap > 0
        share, went = ((x - below)[inexact] / gap[inexact] for x in (w + u, summed))
        if not np.isin(went, (0.0, 1.0)).all():
            return failed(say("{fmt}: a result is no neighbour of the sum", fmt=fmt))
        z = float((np.sign(u[inexact]) * (went - share)).sum() / np.sqrt((share * (1 - share)).sum()))
        w, u, summed = nearest(r, fmt)
        bias = float(((summed - w - u) * -np.sign(u)).sum() / np.abs(u).sum())
        detail = say("{fmt}: {z:+.1f} standard deviations (nearest loses {bias:.0%} of the way)", fmt=fmt)
        texts.append(detail.fill(z=z, bias=bias))
        most, draws = max(most, abs(z)), draws + int(inexact.sum())
    return measured(most < 5, joined(texts, CLAUSE), Sample(draws, 1.0, 5.0))


@E.proved("With an FP32 copy a weight ends within half an ulp of its exact sum, but for the copy's own roundings")
def copy(r: Result) -> Iterator[Outcome]:
    """How far a rounded copy ends from the exact sum of its updates: the copy is FP32, and rounded at every step.

    Each of its roundings is at most half an ulp of FP32, 2^(p - 25) ulps of a format of p bits; the last one, to the
    format, half an ulp of that. Some weight comes near the bound, else the distance would be in the wrong unit.
    """
    for fmt in HALVES:
        for lr, most in r.largest_drift.sel(weights=fmt, update="master").groupby("lr"):
            bound = 0.5 + steps_of(r.p, lr) * 2.0 ** (formats.get(fmt).significand_bits - 25)
            low, high = float(most.min()), float(most.max())
            detail = say("{fmt}: {low:.4f} to {high:.4f} ulps; the bound is {bound:.4f}", fmt=fmt, low=low, high=high)
            yield verdict(low >= 0.45 and high <= bound, detail.fill(bound=bound))


descent = of("stalled").then("descent of the loss", lambda x: x[..., 0] - x[..., -1])  # (update, seed)
E.claim(
    together("kahan_nearest", "With Kahan's compensation it ends nearest, in the median within a tenth of an ulp",
             above(0.1, drift.at(update="kahan").max("weights")),
             above(drift.at(update=["nearest", "stochastic", "master"]).min("weights", "update"),
                   drift.at(update="kahan").max("weights"))),
    superior("behind", "BF16 rounded to nearest trains with a higher loss than FP32, on average over the steps",
             of("loss_along", weights="bf16", update="nearest", lr=-1) / of("loss_along", lr=-1, **fp32), 1),
    together("remedies", "FP32 copy, Kahan and stochastic rounding each end within 3% of FP32's loss",
             *(alike((final.at(weights=fmt, update=update) / final.at(**fp32)).named(f"{fmt} {update}"), 1,
                     within=0.03) for fmt in HALVES for update in [*WORDS][1:])),
    together("stalls",
             "At a small rate BF16 rounded to nearest descends less than half as far as FP32, with an FP32 copy as far",
             above(descent.at(update="FP32") * 0.5, descent.at(update="nearest")),
             alike(descent.at(update="master") / descent.at(update="FP32"), 1, within=0.05)),
)  # fmt: skip
E.answer("BF16 weights take {nearest:.2f} nats off the loss, with an FP32 copy {copy:.2f}, as FP32 does, at a small "
         "learning rate", nearest=descent.at(update="nearest"), copy=descent.at(update="master"),
)  # fmt: skip


# --- what a GPU must compute ------------------------------------------------------------------------------------
LR = 0.0625 * 1.1  # not a power of two, so that the product with it is rounded
GIVEN = {f"{fmt}_{name}": fmt for fmt in HALVES for name in ("weight", "update")}
SUMMED = ("corrected", "summed", "moved", "compensation")


def pairs(n: int, lift: int = 0) -> Arrays:
    """Weights and updates of both formats: codes of weights, and of updates around half an ulp of them, ties included.

    ``lift``: by how many binades the updates are larger; by 4, they are gradients, which times LR are updates.
    """
    codes: list[np.ndarray] = []
    for fmt in HALVES:
        fraction = formats.get(fmt).fraction_bits
        w, r = philox_bits(401 + fraction, 2, n)
        field = (15 if fmt == "fp16" else 127) + (w >> 16) % 4  # weights between 1 and 16
        weights = (w & 1) << 15 | field << fraction | (w >> 1) & ((1 << fraction) - 1)
        below = fraction - lift + (r >> 16) % 4  # the update's exponent lies that far below the weight's
        tie = (r >> 20) % 4 == 0  # every fourth is a power of two
        significand = np.where(tie, 0, (r >> 1) & ((1 << fraction) - 1))
        codes += [weights, (r & 1) << 15 | (field - below) << fraction | significand]
    return dict(zip(GIVEN, [x.astype(np.uint16) for x in codes], strict=True))


def masters(n: int) -> Arrays:
    """FP32 weights: signs, exponents of 2**-10 to 2, any significand, and midpoints of both formats."""
    raw = philox_bits(409, n)
    values = raw & np.uint32(0x807FFFFF) | ((raw >> 9) % 11 + 117) << np.uint32(23)
    for share, fraction in ((3, 10), (5, 7)):
        half = np.uint32(1 << (22 - fraction))
        values[::share] = values[::share] & ~np.uint32(2 * half - 1) | half
    return {"master": values.astype(np.uint32)}


def kahan(**given: Any) -> dict[str, Any]:
    """Two compensated additions of the same update in half precision, operation by operation."""
    results: dict[str, Any] = {}
    for fmt in HALVES:
        w, u = given[f"{fmt}_weight"], given[f"{fmt}_update"]
        lost = w - w
        for _ in range(2):
            corrected = u + lost
            summed = w + corrected
            moved = summed - w
            lost, w = corrected - moved, summed
        results |= {f"{fmt}_{name}": x for name, x in zip(SUMMED, (corrected, summed, moved, lost), strict=True)}
    return results


def sgd(**given: Any) -> dict[str, Any]:
    """torch's own update of a half weight, ``weight.add_(gradient, alpha=-lr)``."""
    return {fmt: given[f"{fmt}_weight"].clone().add_(given[f"{fmt}_update"], alpha=-LR) for fmt in HALVES}


def sgd_by_lab(**given: np.ndarray) -> dict[str, np.ndarray]:
    """w - lr * g in FP32 and then rounded to the format: twice, so it is not always the nearest half number.

    Whether the product was rounded before the sum cannot be seen here: it moves the sum by 2**-37 of the weight.
    """
    return {fmt: numeric.fma(given[f"{fmt}_update"], np.float32(-LR), given[f"{fmt}_weight"], "fp32") for fmt in HALVES}


@E.hardware
def cases(p: Params) -> Iterator[Case]:
    halves, n = {fmt: fmt for fmt in HALVES}, p.sample
    summed = {f"{fmt}_{x}": fmt for fmt in HALVES for x in SUMMED}
    copies: Any = lambda master: {fmt: cast(master, fmt) for fmt in HALVES}  # noqa: E731
    yield program("kahan", partial(pairs, n), GIVEN, kahan, summed)
    yield program("master_copies", partial(masters, n), {"master": "fp32"}, copies, halves)
    yield program("sgd_on_half_weights", partial(pairs, n, lift=4), GIVEN, sgd, halves, sgd_by_lab)


# --- figures ----------------------------------------------------------------------------------------------------
NAMES = {**WORDS, "fp16": "FP16", "bf16": "BF16"}


def rates(r: Result) -> dict[Any, str]:
    """What ticks and legends are called; of rates powers of two with their steps."""
    return NAMES | {rate: f"$2^{{{np.log2(rate):.0f}}}$\n{steps_of(r.p, rate):,} steps" for rate in r.p.rates}


def by_ratio(ax: draw.Axes, r: Result) -> None:
    """The runs' own updates, by ratio of weight and update: how many are lost."""
    edges = np.arange(-1, 3.01, 0.125)
    for i, (fmt, w, u, gone) in enumerate(sums(r)):
        form = formats.get(fmt)
        ratio = np.log2(np.abs(w) / np.abs(u)) - form.significand_bits
        normal = np.abs(w) >= form.smallest_normal
        (many, _), (lost, _) = (np.histogram(ratio[which], edges) for which in (normal, normal & gone))
        ax.plot(edges[:-1] + 0.0625, lost / np.maximum(many, 1), linestyle="none", color=draw.look(i + 1).color,
                marker=draw.look(i + 1).marker, label=f"{fmt.upper()} run")  # fmt: skip
    ax.set_xticks(range(-1, 4), ["$2^{p-1}$", "$2^{p}$", "$2^{p+1}$", "$2^{p+2}$", "$2^{p+3}$"])
    ax.legend()


def lost_map(ax: draw.Axes, r: Result) -> None:
    w, u, summed = observed(r.p, "bf16", "nearest").pairs
    lost_updates.draw_lost_updates(ax, w, u, summed == w, "bf16", (-13, 0, -32, -6))
    ax.set_title("BF16: what half an ulp of the weight decides", pad=24)


sixteen = {"weights": [*HALVES]}
E.figure(
    "training",
    line("stalled", x="step", hue="update", names={"nearest": "BF16", "master": "BF16 with FP32 copy"},
         xlabel="training step", ylabel="training loss",
         title="BF16 weights without an FP32 copy stall where updates are small"),
    dots(of("training_loss", **sixteen) / of("training_loss", **fp32), x="lr", hue="update", marker="weights",
         names=rates, xlabel="learning rate", ylabel="final training loss / FP32's",
         title="The smaller the learning rate, the more it costs: a point a network"),
)  # fmt: skip
E.figure(
    "updates",
    dots(of("updates_lost", update="nearest", **sixteen), x="lr", hue="weights", names=rates, xlabel="learning rate",
         ylabel="share of updates lost", ylim=(0, None),
         title="The smaller the learning rate, the more updates are lost"),
    dots(of("median_drift", **sixteen), x="lr", hue="update", marker="weights", names=rates, log="y",
         xlabel="learning rate", ylabel="median distance (ulps)", title="Weights from the exact sum of their updates"),
)  # fmt: skip
E.figure(
    "criterion", lost_map,
    with_(line(of("survival", format="fp16"), x="ratio"), by_ratio,
          lambda ax, r: ax.set(xlabel="ratio $|w|/|u|$ (FP16: $2^p$ = 2048, BF16: 256)", ylabel="share of updates lost",
                               title="From $2^p$ to $2^{p+1}$ the weight's significand decides")),
    size=(8, 9),
)  # fmt: skip

"""The call ``rollout_gap(trainer, rollout, prompts)``: log-probabilities of one policy, computed in two ways."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...columns import REPORT, folded, grid
from ...errors import LabError, integer, quotes_call, reason
from ...storage import contents
from ...words import Text, joined, say
from .. import recipes
from ..emulation.model_parts import multiplies, parts
from ..ranks import demand_in_one_process
from ..reporting import Progress, Report, printed
from ..scopes import OUTPUT_HEAD
from .explain import explain, logits
from .explain_report import Explanation
from .hybrids import Hybrids, Way, different, way_of

Tensor = torch.Tensor
SHOWN = 10
ORDERS = ("rows", "plan", "tensor_parallel", "rowwise")  # parts of a way that decide the order of a sum
GAP = say(
    "{n:,} tokens of {sequences:,} sequences: the rollout's log-probability less the trainer's is {mean:+.2e} nats on "
    "average, {size:.2e} in magnitude, at most {most:.2e}."
)
KL = say("KL divergence of the rollout from the trainer, estimated from these tokens: {kl:.2e} nats a token.")
WEIGHTS = say(
    "Importance weights, trainer over rollout: {mean:.6g} on average, at most {most:.4g}; the effective sample is "
    "{effective:.2%} of the tokens."
)
TRUNCATED = say(
    "Truncated at {cap:g}, {cut:.2%} of the tokens have the weight {cap:g}, the average is {mean:.6g}, and the "
    "effective sample is {effective:.2%}; the log-probabilities stay apart."
)
REMEDY = say("{name}: {size:.2e} nats in magnitude, {share:.1%} of the gap.")
LOGGED = say("The log-probabilities that were logged are {size:.2e} nats from the rollout as it is computed here.")
FP16, HEAD = say("FP16 instead of BF16 on both sides"), say("FP32 output head on both sides")
INVARIANT = say("the rollout in the trainer's order of sums (batch-invariant)")
HEADS = (
    say("sequence"), say("position"), say("token"), say("trainer's log-probability"), say("the rollout's"),
    say("difference"),
)  # fmt: skip
LOG = "a list, one entry a sequence: the log-probabilities of its last tokens, or {'tokens': [...], 'logprobs': [...]}"


@dataclass(frozen=True)
class Token:
    """One token that was scored, in nats. ``position``: in its sequence, from 0."""

    sequence: int
    position: int
    token: int
    trainer: float
    rollout: float

    @property
    def gap(self) -> float:
        """The rollout's log-probability less the trainer's."""
        return self.rollout - self.trainer


@dataclass(frozen=True)
class Weights:
    """Importance weights of tokens. ``effective``: (sum of w)² / (n sum of w²), 1 where all are equal."""

    mean: float
    most: float
    effective: float


@dataclass(frozen=True)
class Remedy:
    """What would be changed, and the mean magnitude of the gap then, in nats."""

    name: Text
    size: float


@dataclass(frozen=True, repr=False)
class RolloutGap(Report):
    """How far two computations of one policy's log-probabilities are apart, token by token.

    ``ways``: the trainer's and the rollout's; ``cut``: the share of the tokens whose weight is above ``cap``.
    ``explanation``: which layers and causes part the two ways, along the root mean square of the gap; None of what was
    logged alone. ``logged``: the mean magnitude between the log and the rollout's way, NaN without both.
    """

    FILE = "rollout_gap"
    ROW = Token

    ways: tuple[str, str]
    rows: tuple[Token, ...]
    cap: float
    weights: Weights
    truncated: Weights
    cut: float
    remedies: tuple[Remedy, ...]
    explanation: Explanation | None
    logged: float

    @property
    def size(self) -> float:
        """The mean magnitude of the gap, in nats."""
        return math.fsum(abs(row.gap) for row in self.rows) / len(self.rows)

    @property
    def kl(self) -> float:
        """KL(rollout || trainer) a token, if the rollout drew the tokens: the mean of exp(-gap) - 1 + gap."""
        return math.fsum(_expm1(-row.gap) + row.gap for row in self.rows) / len(self.rows)

    @property
    def text(self) -> Text:
        """All but the tables."""
        gaps, size = [row.gap for row in self.rows], self.size
        sequences = len({row.sequence for row in self.rows})
        gap = GAP.fill(n=len(gaps), sequences=sequences, mean=math.fsum(gaps) / len(gaps), size=size)
        lines = [gap.fill(most=max(map(abs, gaps))), KL.fill(kl=self.kl)]
        weights, less = self.weights, self.truncated
        lines.append(WEIGHTS.fill(mean=weights.mean, most=weights.most, effective=weights.effective))
        lines.append(TRUNCATED.fill(cap=self.cap, cut=self.cut, mean=less.mean, effective=less.effective))
        lines += [REMEDY.fill(name=r.name, size=r.size, share=r.size / size if size else 0.0) for r in self.remedies]
        if not math.isnan(self.logged):
            lines.append(LOGGED.fill(size=self.logged))
        return joined(lines, "\n")

    def paragraphs(self) -> Iterator[list[str]]:
        """What is said, the tokens that are furthest apart, and the explanation."""
        yield folded(str(self.text).split("\n"))
        worst = sorted(self.rows, key=lambda row: -abs(row.gap))[:SHOWN]
        cells = [[str(r.sequence), str(r.position), str(r.token), f"{r.trainer:.6f}", f"{r.rollout:.6f}",
                  f"{r.gap:+.2e}"] for r in worst]  # fmt: skip
        yield grid([[*map(str, HEADS)], *cells], REPORT)
        if self.explanation is not None:
            yield from self.explanation.paragraphs()


@quotes_call
def rollout_gap(
    trainer: nn.Module | Way, rollout: nn.Module | Way | Mapping[str, Any] | None, prompts: Any = None, *,
    logged: str | Path | Sequence[Any] | None = None, start: int | Sequence[int] = 1, cap: float = 2.0,
    most: int | None = None, progress: Progress | None = None,
) -> RolloutGap:  # fmt: skip
    """Token by token how far a rollout's log-probabilities are from its trainer's, why, and what would change it.

    ``trainer``: a causal language model, or a :class:`Way` with ``model=``. ``rollout``: the way in which the rollout
    computes the same weights, or its model; None where only what a server logged is known. ``prompts``: token ids,
    (sequences, n) or lists of other lengths, each a prompt and its response; the first ``start`` tokens of each (one
    number, or one a sequence) are not scored. ``logged``: a file of JSON or of JSON lines, or a list: an entry a
    sequence, the log-probabilities of its last tokens (null: not logged), or {"tokens": ids, "logprobs": ...}, which
    needs no ``prompts``. Those that were logged are the rollout's, and ``rollout`` is the guess that is held to them.

    The gap's parts by layer and cause are :func:`explain`'s, ``most`` layers of them; ``cap``: where importance
    weights are truncated. Remedies are computed: FP16 in place of BF16, an FP32 head, a rollout with the trainer's
    order of sums. All of it is computed here, emulated; no GPU has run it.

    >>> head = nn.Linear(8, 8, bias=False)
    >>> model, tokens = nn.Sequential(nn.Embedding(8, 8), head), torch.arange(8).reshape(1, 8)
    >>> gap = rollout_gap(Way(model=model), {"gpu": "H100", "inputs": "bf16"}, tokens, progress=str)
    >>> len(gap.rows), gap.size < 0.02, [row.layer for row in gap.explanation.rows]
    (7, True, ['1'])
    """
    mine = trainer if isinstance(trainer, Way) else Way(model=_demand_model(trainer))
    if mine.model is None:
        raise LabError("trainer is a way without a model; pass the model, or Way(model=model, ...).")
    demand_in_one_process("rollout_gap", mine.model)
    if rollout is None and logged is None:
        raise LabError("rollout is None and nothing was logged; pass a way, a model, or logged=.")
    if not cap > 0:
        raise LabError(f"cap={cap!r} is not possible; allowed: numbers above 0, such as 2.")
    theirs = Way(model=rollout) if isinstance(rollout, nn.Module) else way_of("rollout", rollout or {})
    theirs = Way(**{"model": mine.model, **theirs.parts})
    tokens, log = _given(prompts, logged)
    scored = _logged_positions(tokens, log) if log is not None else _positions(tokens, start)
    output = _Scores(tokens, scored)
    ways = mine, theirs
    try:
        values = [_scores(ways, side, output) for side in range(1 if rollout is None else 2)]
    except IndexError as error:
        raise LabError(f"a token is not in the model's vocabulary ({reason(error)}).") from None
    numbers = torch.tensor([x for _, _, x in _entries(log) if x is not None], dtype=torch.float64) if log else values[1]
    off = float((numbers - values[1]).abs().mean()) if log and rollout is not None else math.nan
    explanation, remedies = None, list[Remedy]()
    if rollout is not None and not torch.equal(values[0], values[1]):
        for name, changed in _remedies(*ways):
            (progress or printed)(name)
            x, y = (_scores(changed, side, output) for side in (0, 1))
            remedies.append(Remedy(name, float((y - x).abs().mean())))
        explanation = explain(mine.model, None, *ways, output, most=most, progress=progress)
    ratio = (values[0] - numbers).exp()
    rows = tuple(Token(s, p, int(tokens[s][p]), a, b)
                 for (s, p), a, b in zip(scored, values[0].tolist(), numbers.tolist(), strict=True))  # fmt: skip
    return RolloutGap(
        (repr(mine), "-" if rollout is None else repr(theirs)), rows, float(cap), _weights(ratio),
        _weights(ratio.clamp(max=cap)), float((ratio > cap).double().mean()), tuple(remedies), explanation, off,
    )  # fmt: skip


def log_probabilities(model: nn.Module, tokens: Tensor) -> Tensor:
    """Of each token but the first its log-probability after those before it, (rows, n - 1), from the logits in FP32."""
    scores: Tensor = logits(model, tokens[:, :-1])
    if tokens.max() >= scores.shape[-1]:
        raise LabError(f"a token is not in the model's vocabulary ({tokens.max()} of {scores.shape[-1]}).")
    return scores.float().log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]


class _Scores:
    """The output that is explained: the log-probabilities of scored tokens; sequences of one length are one batch."""

    def __init__(self, tokens: list[Tensor], scored: list[tuple[int, int]]) -> None:
        self.tokens, self.scored = tokens, scored
        lengths = dict.fromkeys(map(len, tokens))
        self.batches = [[i for i, row in enumerate(tokens) if len(row) == n] for n in lengths]

    def __call__(self, model: nn.Module, _: Any) -> Tensor:
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        rows = dict[int, Tensor]()
        for batch in self.batches:
            found = log_probabilities(model, torch.stack([self.tokens[i] for i in batch]).to(device))
            rows |= dict(zip(batch, found, strict=True))
        return torch.stack([rows[s][p - 1] for s, p in self.scored])


def _scores(ways: Sequence[Way], side: int, output: _Scores) -> Tensor:
    model = ways[0].model
    assert model is not None
    found = Hybrids(model, None, ways, output).run(lambda _: side, learns=True)
    if not found.isfinite().all():
        raise LabError(f"{('trainer', 'rollout')[side]} gives log-probabilities that are NaN or infinite.")
    return found


def _weights(ratio: Tensor) -> Weights:
    effective = ratio.sum().square() / (len(ratio) * ratio.square().sum())
    return Weights(float(ratio.mean()), float(ratio.max()), float(effective))


def _expm1(x: float) -> float:
    return math.expm1(x) if x < 700 else math.inf


# --- what would change it -----------------------------------------------------------------------------------------


def _remedies(a: Way, b: Way) -> Iterator[tuple[Text, tuple[Way, Way]]]:
    """Remedies that these ways can take, each as the two ways with it."""
    if any("bf16" in (way.settings.get("inputs"), _dtype(way.model)) for way in (a, b)):
        yield FP16, (_in_fp16(a), _in_fp16(b))
    heads = [_heads(way.model) for way in (a, b) if way.model is not None]
    if heads[0] and heads[0] == heads[1]:
        yield HEAD, (_with_head(a, heads[0]), _with_head(b, heads[0]))
    in_order = b
    for name in ORDERS:
        in_order = in_order.having(name, a)
    if different(b, in_order):
        yield INVARIANT, (a, in_order)


def _dtype(model: Any) -> str:
    return "bf16" if any(p.dtype == torch.bfloat16 for p in model.parameters()) else ""


def _in_fp16(way: Way) -> Way:
    model = copy.deepcopy(way.model).half() if way.model is not None and _dtype(way.model) else way.model
    inputs = {"inputs": "fp16"} if way.settings.get("inputs") == "bf16" else {}
    return Way(**{**way.parts, "model": model, **inputs})


def _heads(model: nn.Module) -> list[str]:
    return [path for path, part in parts(model, multiplies).items() if part.name == OUTPUT_HEAD]


def _with_head(way: Way, heads: list[str]) -> Way:
    """A way whose heads hold FP32 weights, untied, are given FP32 and multiply it."""
    model = copy.deepcopy(way.model)
    assert model is not None
    for path in heads:
        layer = model.get_submodule(path)
        for name, value in list(layer.named_parameters(recurse=False)):
            setattr(layer, name, nn.Parameter(value.detach().float(), requires_grad=value.requires_grad))
        layer.register_forward_pre_hook(lambda _, args: (args[0].float(), *args[1:]))
    if not way.settings:
        return Way(**{**way.parts, "model": model})
    full, others = recipes.bf16(name="fp32", high="fp32"), way.settings.get("layers") or {}
    layers = {**dict.fromkeys(heads, full), **{name: one for name, one in others.items() if name not in heads}}
    return Way(**{**way.parts, "model": model, "layers": layers})


# --- what was given -----------------------------------------------------------------------------------------------


def _demand_model(model: Any) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise LabError(f"trainer is a {type(model).__name__}; pass a torch.nn.Module, or Way(model=model, ...).")
    return model


def _given(prompts: Any, logged: Any) -> tuple[list[Tensor], list[list[float | None]] | None]:
    """The sequences, and what was logged of each."""
    log = None if logged is None else _log(logged)
    if prompts is None:
        if log is None or any(tokens is None for tokens, _ in log):
            raise LabError(f"prompts=None: no tokens are known; pass prompts=, or in logged= {LOG}.")
        prompts = [tokens for tokens, _ in log]
    try:
        rows = [torch.as_tensor(row) for row in prompts]
    except (TypeError, ValueError, RuntimeError) as error:
        raise LabError(f"prompts are no token ids ({reason(error)}); pass (sequences, n) or a list of lists.") from None
    for i, row in enumerate(rows):
        if (
            row.dim() != 1
            or row.is_floating_point()
            or row.dtype == torch.bool
            or len(row) < 2
            or bool((row < 0).any())
        ):
            raise LabError(f"sequence {i} of prompts is {tuple(row.shape)} of {row.dtype}; pass two token ids or more.")
    if not rows or (log is not None and len(log) != len(rows)):
        raise LabError(f"prompts has {len(rows)} sequences" + (f", and {len(log)} were logged." if log else "."))
    return [row.long() for row in rows], None if log is None else [values for _, values in log]


def _log(given: Any) -> list[tuple[Any, list[float | None]]]:
    """The tokens, or None, and the log-probabilities of each sequence of a log."""
    if isinstance(given, (str, Path)):
        try:
            text = contents(Path(given)).decode("utf-8", "replace")
            given = json.loads(text) if text.lstrip().startswith("[") else [*map(json.loads, text.splitlines())]
        except (OSError, ValueError) as error:
            raise LabError(f"{given} is no JSON ({reason(error)}); it must hold {LOG}.") from None
    if not isinstance(given, (list, tuple)) or not given:
        raise LabError(f"logged is a {type(given).__name__} of no sequences; pass {LOG}.")
    result = []
    for i, entry in enumerate(given):
        tokens, values = (entry.get("tokens"), entry.get("logprobs")) if isinstance(entry, Mapping) else (None, entry)
        if not isinstance(values, (list, tuple)) or not all(x is None or _is_log_probability(x) for x in values):
            raise LabError(f"sequence {i} of logged has no log-probabilities, finite and at most 0; pass {LOG}.")
        result.append((tokens, list(values)))
    return result


def _is_log_probability(x: Any) -> bool:
    return type(x) in (int, float) and -math.inf < x <= 1e-3  # rounding may take one above 0


def _entries(log: list[list[float | None]]) -> Iterator[tuple[int, int, float | None]]:
    """Sequence, place counted from the end, and value of each."""
    for s, values in enumerate(log):
        yield from ((s, i - len(values), x) for i, x in enumerate(values))


def _logged_positions(tokens: list[Tensor], log: list[list[float | None]]) -> list[tuple[int, int]]:
    result = [(s, len(tokens[s]) + place) for s, place, x in _entries(log) if x is not None]
    for s, position in result:
        if position < 1:
            raise LabError(f"sequence {s} has {len(tokens[s])} tokens and {len(log[s])} log-probabilities: too many.")
    if not result:
        raise LabError("no log-probability was logged; all are null.")
    return result


def _positions(tokens: list[Tensor], start: Any) -> list[tuple[int, int]]:
    starts = list(start) if isinstance(start, (list, tuple)) else [start] * len(tokens)
    if len(starts) != len(tokens):
        raise LabError(f"start has {len(starts)} numbers, and there are {len(tokens)} sequences.")
    firsts = [integer("start", n, 1, len(row) - 1) for n, row in zip(starts, tokens, strict=True)]
    return [(s, p) for s, (first, row) in enumerate(zip(firsts, tokens, strict=True)) for p in range(first, len(row))]

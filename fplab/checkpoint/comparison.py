"""Two files of weights: what a release changed against its original, and by which rule it rounded."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ..columns import REPORT, folded, grid
from ..errors import LabError, quotes_call
from ..floats import quantize
from ..formats import NAMES
from ..kernels.weights import compare as difference
from ..nn.reporting import Progress, Report, printed
from ..scaled import RULES as SCALE_RULES
from ..scaled import SCHEMES, VARIANTS
from ..stored import STORED
from ..words import say
from .choices import INTEGERS, NOTHING, Choice, choices, decibels, parts, pieces
from .files import Paths, listed
from .joined import Joined
from .tensor import FLOATS, Tensor

SAMPLE = 1 << 17  # elements, of the first rows, by which a rule is recognised
SURE = 0.99  # the share of them that a rule has to reproduce
HEADS = say("tensor, most changed first"), say("before"), say("after"), say("error"), say("rule"), say("reproduced")
CHANGED = say("{n} of {all} tensors that both have were changed.")
RULE = say("{n} tensors follow {rule}.")
UNKNOWN = say("{n} follow none of {rules} rules that were tried; the nearest is shown.")
LONELY = say("Only one of the two has: {names}.")
# llama.cpp's names of a layer's tensors, and those of the models that it converts.
BLOCK = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


@dataclass(frozen=True)
class Change:
    """What became of a tensor: ``rule``: the one that reproduces most of it; ``share``: of the sample, how much."""

    tensor: str
    before: str
    after: str
    bits: float
    error: float
    snr: float
    largest: float
    rule: str
    share: float


@dataclass(frozen=True, repr=False)
class Comparison(Report):
    """``rows``: the tensors that both files have, most changed first; ``alone``: those that one of them has."""

    FILE = "comparison"
    ROW = Change

    rows: tuple[Change, ...]
    alone: tuple[str, ...]
    tried: int

    def paragraphs(self) -> Iterator[list[str]]:
        """How many changed and by which rules, and a table."""
        changed = [row for row in self.rows if row.error]
        sure = [row.rule for row in changed if row.share >= SURE]
        lines = [CHANGED.fill(n=len(changed), all=len(self.rows))]
        lines += [RULE.fill(n=sure.count(rule), rule=rule) for rule in dict.fromkeys(sure)]
        if len(sure) < len(changed):
            lines.append(UNKNOWN.fill(n=len(changed) - len(sure), rules=self.tried))
        if self.alone:
            lines.append(LONELY.fill(names=", ".join(self.alone[:6])))
        yield folded(map(str, lines))
        rows = [[r.tensor, r.before, r.after, f"{r.error:.1e}", r.rule, f"{r.share:.1%}"] for r in self.rows]
        yield grid([[*map(str, HEADS)], *rows[:48]], REPORT)


@quotes_call
def compare(original: Paths, released: Paths, *, progress: Progress | None = None) -> Comparison:
    """What a release changed against its original, tensor by tensor, and the rule that it follows.

    ``original``, ``released``: as for :func:`fplab.checkpoint.survey`. Tensors meet by name; llama.cpp's names of a
    Llama's are known (its rows of q and k are in another order, and follow no rule). A rule is recognised where it
    reproduces 99 % of the first 131,072 values, to the bit.

    >>> import tempfile
    >>> import numpy as np
    >>> from fplab import scaled
    >>> w = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/a.npz", w=w)
    ...     np.savez(f"{folder}/b.npz", w=scaled.quantize(w, "mxfp4").dequantize())
    ...     found = compare(f"{folder}/a.npz", f"{folder}/b.npz", progress=str)
    >>> found.rows[0].rule
    'mxfp4 (floor, torchao)'
    """
    before, after = ({_common(one.name): one for one in listed(path)} for path in (original, released))
    names = [name for name, one in before.items() if name in after and one.has_values and after[name].has_values]
    rules, rows = [*_rules()], []
    for name in names:
        (progress or printed)(say("comparing {name}", name=name))
        rows.append(_change(name, before[name], after[name], rules))
    rows.sort(key=lambda row: -row.error)
    return Comparison(tuple(rows), tuple(sorted(before.keys() ^ after.keys())), len(rules))


def _common(name: str) -> str:
    """A name as models have it, from llama.cpp's."""
    base, _, last = name.rpartition(".")
    found = re.fullmatch(r"blk\.(\d+)\.(\w+)", base)
    inner = f"model.layers.{found[1]}.{BLOCK[found[2]]}" if found and found[2] in BLOCK else WHOLE.get(base, base)
    return f"{inner}.{last}" if base else name


def _change(name: str, old: Tensor, new: Tensor, rules: Sequence[Choice]) -> Change:
    if old.count != new.count:
        raise LabError(f"tensor {name!r} has the shapes {old.shape} and {new.shape}.")
    rows, k = old.rows
    step, whole = pieces(rows, k, 1)
    sums, norm, most = [], 0.0, np.zeros(1, np.float32)
    for start, stop in parts(old.count, step, k, whole):
        x, y = (np.ascontiguousarray(one.values(start, stop)) for one in (old, new))
        sums.append(difference(x, y, NOTHING, 1))
        norm += float(np.square(x, dtype=np.float64).sum())
        most = np.fmax(most, np.abs(x).max(initial=0))
    error = math.sqrt(math.fsum(one[0] for one in sums) / norm) if norm else 0.0
    rule, share = "", 1.0
    if error:
        n = max(min(rows, SAMPLE // k), 1) * k
        x, y, share = old.values(0, n).reshape(-1, k), new.values(0, n), 0.0
        for one in sorted(rules, key=lambda one: one.name != new.stored):  # the file's own format first
            if one.fits(k):
                made = one.applied(x, most[: one.scale == "tensor"])[0]
                made = quantize(made, new.stored, overflow="saturate") if new.stored in FLOATS else made
                equal = float((made == y).mean())
                rule, share = (one.name, equal) if equal > share else (rule, share)
        for nearest, made in new.nearest(x) if isinstance(new, Joined) else ():
            equal = float((made == y[: made.size]).mean())
            rule, share = (nearest, equal) if equal > share else (rule, share)
    bits = 8 * new.size / new.block
    return Change(name, old.stored, new.stored, bits, error, decibels(error), max(one[1] for one in sums), rule, share)


def _rules() -> Iterator[Choice]:
    """Every rule: schemes with all rules and variants, stored formats, number formats, integers."""
    for scheme in dict.fromkeys(SCHEMES.values()):
        for rule, variant in product(SCALE_RULES[scheme.kind], VARIANTS[scheme.kind]):
            if not rule.startswith("4over6") or variant == "te":
                yield Choice(f"{scheme.name} ({rule}, {variant})", replace(scheme, rule=rule, variant=variant))
    yield from choices([*STORED, *NAMES[1:-1], *INTEGERS]).values()

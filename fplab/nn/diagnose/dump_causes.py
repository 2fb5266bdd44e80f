"""Why two programs' dumps part: what both have, the first tensors that differ, and which computation gives B's bits.

Tensors that have equal values in both are one, whatever the operations, modules and shapes around them are called. Of
the first two that should be one and are not, each is made from such common tensors by a few operations, its cone. B's
cone is computed from A's operands on this machine, in further ways where that does not give B's bits; its result then
takes the place of A's, the rest of A is computed again, and the search goes on from there: so every cause has its part
of the difference at the output, and what is left is stated.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cached_property
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ...errors import LabError
from ...floats import quantize
from ...tensorcore.plan import Plan
from ...words import Text, joined, say, verbatim
from ..emulation import emulate
from . import capturing
from .compiled import Fused
from .dumps import Dump, Operation, function
from .tensors import COMPLEX, FLOATS, norm, spelt

Tensor = torch.Tensor
Compute = Callable[[Any, Any, Any], Any]  # function, args, kwargs -> result
NamedWay = tuple[Text, Compute]
Facts = dict[str, tuple[str, str]]  # what differs, by name: how in a, how in b
NEAR = 0.3  # relative difference up to which tensors of one size may be the same quantity
MOVES = {"view", "_unsafe_view", "t", "transpose", "permute", "expand", "reshape", "clone", "detach", "alias", "slice",
         "select", "split", "split_with_sizes", "chunk", "unbind", "squeeze", "unsqueeze", "contiguous",
         "as_strided"}  # fmt: skip
PRODUCTS = re.compile(r"mm$|^linear$|^convolution$|scaled_dot_product|^addmv$|^mv$")
NORMS = re.compile(r"rsqrt|layer_norm|rms_norm|group_norm|batch_norm")
PATTERNS = {"softmax": r"softmax", "attention": r"scaled_dot_product", "normalisation": NORMS.pattern,
            "activation": r"gelu|silu|sigmoid|tanh", "product": r"mm\b|convolution|\bmv\b"}  # fmt: skip
MASKS = {"where", "masked_fill", "triu", "tril", "full", "zeros", "scalar_tensor", "arange", "le", "ge", "gt", "lt"}
GPU_NAMES = ("V100", "T4", "A100", "Ada", "H100", "B200", "MI300X")
SPLITS = (2, 3, 4, 8, 16)
ROUNDED = ("tf32", "bf16", "fp16")
PRECISIONS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
ROLES = {
    "rotary embedding": say("rotary embedding"), "softmax": say("softmax"), "attention": say("attention"),
    "normalisation": say("normalisation"), "activation": say("activation"), "product": say("product"),
    "operands": say("operands"),
}  # fmt: skip
PRECISION, OPERATIONS = say("precision of {role}"), say("operations of {role}")
KINDS = {
    "parallel": say("tensor-parallel split"), "fused attention": say("fused attention"),
    "bias": say("rounding before the bias"), "arithmetic": say("arithmetic"),
    "weights": say("weights"), "data": say("data"), "random numbers": say("random numbers"), "scale": say("scale"),
    "added number": say("added number"), "saturation": say("saturation"), "mask": say("mask"),
    "order": say("order of reduction"), "layout": say("layout of operands in memory"),
    "optimizer": say("optimizer's hyperparameters"), "compiled": verbatim(capturing.COMPILED),
}  # fmt: skip
IN_ROWS = say("{n} rows at a time")
IN_RANKS = say("tensor parallel over {n} ranks, parts rounded, then all-reduced")
BIAS_SHARED = say("tensor parallel over {n} ranks, each with its part of the bias, then all-reduced")
IN_SLICES = say("split-K {n}, parts added in FP32")
ROUNDED_ONCE, BIAS_AFTER = say("FP32 sums, rounded once"), say("bias added after the rounding")
OPERANDS, IN_DTYPE = say("operands rounded to {name}"), say("computed in {name}")
FUSED = say("operations fused, what goes from one to the next kept in FP32")
THREADS, ON_GPU = say("{n} threads"), say("{gpu}, split-K {n}")


class Side:
    """One program. ``values``: of tensors as they are computed here, None where that has not the bits noted.

    ``way``: how its operations are computed, with its name, if not as on this machine. ``stray``: the first operation
    that then gives other bits than were noted, or -1. ``instead``: results that are put in place of an operation's.
    """

    def __init__(
        self, dump: Dump, way: NamedWay | None = None, instead: dict[int, dict[int, Tensor]] | None = None,
        base: Side | None = None,
    ) -> None:  # fmt: skip
        self.dump, self.way, self.stray, self.instead = dump, way, -1, instead or {}
        raw = dump.run(self._instead if instead or way else None)
        self.values: list[Tensor | None] = list(raw)
        for n, (x, note) in enumerate(zip(raw, dump.tensors, strict=True)):
            known = note.get("digest")
            operands = self._operands(n)
            if x is None or (not instead and known and known[:16] != f"{capturing.digest(_dense(x)):016x}"):
                self.values[n] = dump.whole(n)
                if x is not None and self.stray < 0:
                    self.stray = dump.producers.get(n, -1)
            elif (base is not None and base.values[n] is None) or (
                not known and any(self.values[m] is None for m in operands)
            ):
                self.values[n] = None
        self.keys = [set(self._keys(n)) for n in range(len(raw))]

    def _instead(self, number: int, func: Any, args: Any, kwargs: Any) -> Any:
        result = self.way[1](func, args, kwargs) if self.way else func(*args, **kwargs)
        for place, x in self.instead.get(number, {}).items():
            tree_leaves(result)[place].copy_(x.reshape(tree_leaves(result)[place].shape))
        return result

    def _operands(self, n: int) -> list[int]:
        made, same = self.dump.producers.get(n, -1), self.dump.tensors[n].get("same", -1)
        return [*(self.dump.operations[made].operands if made >= 0 else ()), *([same] if same >= 0 else [])]

    def _keys(self, n: int) -> Iterator[Any]:
        x, note = self.values[n], self.dump.tensors[n]
        if x is not None:
            wide = x if x.dtype in COMPLEX else x.double() if x.is_floating_point() else x.long()
            yield x.numel(), capturing.digest(_dense(torch.view_as_real(wide) if wide.is_complex() else wide))
        if "digest" in note and not self.instead:
            yield note["dtype"], note["digest"]

    def maker(self, n: int) -> Operation | None:
        """The operation that made a tensor."""
        made = self.dump.producers.get(n, -1)
        return self.dump.operations[made] if made >= 0 else None

    def known(self, n: int) -> tuple[Tensor, Any] | None:
        """Values of a tensor, and of which rows they are: None of all."""
        if (x := self.values[n]) is not None:
            return x, None
        note = self.dump.tensors[n]
        return (self.dump.kept[n], note["rows"]) if note["kept"] == "rows" and not self.instead else None


def computed(dump: Dump) -> Side:
    """A program as this machine computes it, or in the way that has the bits of its first product that it has not."""
    side = Side(dump)
    if side.stray < 0 or not is_product(dump.operations[side.stray]):
        return side
    target = dump.operations[side.stray].results[0]
    own = [True] * len(dump.tensors)
    one = cone(side, target, own)
    operands = {n: x for n in one.common if (x := side.values[n]) is not None}
    fitting = list[NamedWay]()
    for way in ways(one):
        try:
            x = one.compute(operands, way[1])
        except (LabError, RuntimeError):  # that this way is none for these operands
            continue
        if x is not None and dump.has_bits(target, x):
            fitting.append(way)
    best, name = side, [way[0] for way in fitting]
    for _, compute in fitting:
        other = Side(dump, (joined(name, say(" or ")), compute))
        best = max(best, other, key=lambda one: one.stray if one.stray >= 0 else len(dump.operations))
    return best


def _dense(x: Tensor) -> Tensor:
    return x.detach().resolve_conj().resolve_neg().contiguous()


@dataclass(eq=False)
class Cone:
    """``operations``: by which a tensor, ``target``, is made from ``common`` tensors and from ``outside``."""

    side: Side
    target: int
    operations: list[int] = field(default_factory=list)
    common: set[int] = field(default_factory=set)
    outside: set[int] = field(default_factory=set)

    @cached_property
    def ops(self) -> list[Operation]:
        """The operations, those that only move values left out."""
        all_ = (self.side.dump.operations[n] for n in self.operations)
        return [op for op in all_ if op.short not in MOVES]

    def module(self, exchanged: bool = False) -> str:
        """The module of the first operation that is no mask's; of the last product where ranks exchange its parts."""
        ops = [op for op in self.ops if op.short not in MASKS]
        products = list(filter(is_product, ops)) if exchanged else []
        op = products[-1] if products else ops[0] if ops else self.side.maker(self.target)
        return op.module if op else self.side.dump.tensors[self.target].get("name", "")

    @property
    def names(self) -> str:
        """The operations by name."""
        each = list(dict.fromkeys(op.short for op in self.ops))
        return ", ".join(each[:8] + ["..."] * (len(each) > 8)) or "-"

    def dtypes(self) -> str:
        """The floating-point dtypes of what is made on the way."""
        made = {n for k in self.operations for n in self.side.dump.operations[k].results if n >= 0}
        names = {self.side.dump.tensors[n]["dtype"] for n in made}
        return ", ".join(sorted(name for name in names if "float" in name))

    def compute(self, values: dict[int, Tensor], way: Compute | None = None, last: bool = False) -> Tensor | None:
        """The target from other values of the common tensors, operations in another way, or the last product alone."""
        dump = self.side.dump
        inner = {n for k in self.operations for n in (*dump.operations[k].results, *dump.operations[k].changed)}
        kept = {n: x for n, x in values.items() if n not in inner}
        kept |= {n: x for n in self.outside if (x := self.side.values[n]) is not None}
        tensors = [{**t, "kept": "whole"} if n in kept else t for n, t in enumerate(dump.tensors)]
        if any("same" in tensors[n] for n in kept):
            tensors = [{k: v for k, v in t.items() if k != "same"} if n in kept else t for n, t in enumerate(tensors)]
        producers = {n: k for n, k in dump.producers.items() if n in inner}
        chosen = set(self.operations)
        ops = [op if k in chosen else _NOTHING for k, op in enumerate(dump.operations[: max(chosen, default=-1) + 1])]
        part = Dump(dump.path, dump.state, {}, tensors, ops, kept, self.target, False, producers)
        only = max((k for k in self.operations if is_product(dump.operations[k])), default=-1) if last else -1

        def instead(number: int, func: Any, args: Any, kwargs: Any) -> Any:
            here = way is not None and only in (-1, number)
            return way(func, args, kwargs) if here and way is not None else func(*args, **kwargs)

        return part.run(instead)[self.target]


_NOTHING = Operation("nothing", "", 0, [], {}, [], [])


def cone(side: Side, target: int, common: list[bool]) -> Cone:
    """The operations that make a tensor of common ones."""
    result, waiting, seen = Cone(side, target), [target], {target}
    chosen = set()
    while waiting:
        n = waiting.pop()
        if n != target and common[n]:
            result.common.add(n)
            continue
        op, same = side.dump.producers.get(n, -1), side.dump.tensors[n].get("same", -1)
        before = [same] if same >= 0 else []
        by = side.dump.tensors[n].get("by", -1)
        if op < 0 and same < 0:
            result.outside.add(n)
            continue
        if op >= 0 and side.dump.operations[op].from_outside:
            result.outside.add(n)
        for k in (op, by):
            if k >= 0:
                chosen.add(k)
                before += side.dump.operations[k].operands
        waiting += [m for m in before if m not in seen]
        seen |= set(before)
    result.operations = sorted(chosen)
    return result


def distance(a: Side, i: int, b: Side, j: int) -> float:
    """The relative difference of two tensors in the rows that are known of both; infinite where none are."""
    x, y = a.known(i), b.known(j)
    return math.inf if x is None or y is None else apart(x, y)


def apart(x: tuple[Tensor, Any], y: tuple[Tensor, Any]) -> float:
    """The relative difference of values, each with the rows that they are, None of all."""
    (one, rows), (other, those) = x, y
    if rows is None and those is not None:
        one, rows = _rows(one, those), those
    elif those is None and rows is not None:
        other, those = _rows(other, rows), rows
    if rows != those or one.numel() != other.numel() or not one.numel():
        return math.inf
    p, q = (t.detach().reshape(-1).to(torch.complex128 if t.is_complex() else torch.float64) for t in (one, other))
    if torch.equal(p, q):
        return 0.0
    size = norm(torch.view_as_real(p) if p.is_complex() else p)
    rest = p - q
    far = norm(torch.view_as_real(rest) if rest.is_complex() else rest)
    return far / size if size and math.isfinite(far) else math.inf


def _rows(x: Tensor, rows: list[int]) -> Tensor:
    table = x.reshape(-1, x.shape[-1] if x.dim() else 1)
    return table[rows] if not rows or max(rows) < len(table) else table[:0]


def collective(op: Operation) -> bool:
    """Whether an operation exchanges tensors between ranks."""
    return op.name.startswith(("c10d", "_c10d"))


def is_compiled(op: Operation) -> bool:
    """Whether an operation is a whole compiled module, or its backward pass."""
    return op.name.startswith(capturing.COMPILED)


class Search:
    """Both programs side by side as far as causes are found: ``a`` with what was put in place, ``b`` as it is."""

    def __init__(self, a: Side, b: Side, twins: dict[int, int]) -> None:
        self.a, self.b, self.twins = a, b, twins
        every = [set().union(*side.keys) for side in (a, b)]
        self.common = [self._common(side, other) for side, other in ((a, every[1]), (b, every[0]))]

    def _common(self, side: Side, other: set[Any]) -> list[bool]:
        """Which tensors have values that the other program has; views of such, and wider copies, too."""
        result = list[bool]()
        for n, keys in enumerate(side.keys):
            op = side.maker(n)
            moved = op is not None and op.short in MOVES and bool(op.operands) and not op.changed
            result.append(bool(keys & other) or (moved and all(m < n and result[m] for m in op.operands)))  # type: ignore[union-attr]
        return result

    def pair(self) -> tuple[int, int] | None:
        """The first tensors of both that should be one and are not."""
        mine, theirs = ([n for n in range(len(side.keys)) if not common[n] and self._counts(side, n)]
                        for side, common in zip((self.a, self.b), self.common, strict=True))  # fmt: skip
        open_ = set(mine)
        by_size: dict[int, list[int]] = {}
        for n in mine:
            by_size.setdefault(math.prod(self.a.dump.tensors[n]["shape"]), []).append(n)
        for j in theirs:
            twin = self.twins.get(j, -1)
            if twin in open_:
                return twin, j
            size = math.prod(self.b.dump.tensors[j]["shape"])
            near = [(distance(self.a, i, self.b, j), i) for i in by_size.get(size, ())] if size > 1 else []
            far, i = min(near, default=(math.inf, -1))
            if far < NEAR and j not in self.twins:
                return i, j
        outputs = self.a.dump.output, self.b.dump.output
        sizes = [math.prod(s.dump.tensors[n]["shape"]) if n >= 0 else -1
                 for s, n in zip((self.a, self.b), outputs, strict=True)]  # fmt: skip
        apart = sizes[0] == sizes[1] >= 0 and not any(c[n] for c, n in zip(self.common, outputs, strict=True))
        return outputs if apart else None

    @staticmethod
    def _counts(side: Side, n: int) -> bool:
        """Whether a tensor is a result to be compared: of floating-point numbers, and not only moved."""
        op, note = side.maker(n), side.dump.tensors[n]
        dtype = getattr(torch, note["dtype"])
        if op is not None and op.short in MOVES and op.operands:  # a part of a result, as a joined projection's
            whole = side.dump.tensors[op.operands[0]]["shape"]
            return math.prod(note["shape"]) < math.prod(whole) and Search._counts(side, op.operands[0])
        made = op is not None and op.short not in {*MOVES, "_to_copy"} and (collective(op) or not op.from_outside)
        return made and dtype in FLOATS | COMPLEX

    def operands(self, of: Cone) -> dict[int, Tensor] | None:
        """A's values of the tensors that a cone of B is made from; None where one is not known."""
        result, mine = {}, self._by_key
        for n in of.common:
            keys = [mine[key] for key in of.side.keys[n] if key in mine]
            x = self.a.values[keys[0]] if keys else of.side.values[n]
            if x is None:
                return None
            note = of.side.dump.tensors[n]
            result[n] = x.reshape(note["shape"]).to(getattr(torch, note["dtype"]))
        return result

    @cached_property
    def _by_key(self) -> dict[Any, int]:
        return {key: n for n in reversed(range(len(self.a.keys))) for key in self.a.keys[n]
                if self.a.values[n] is not None}  # fmt: skip


def twins(a: Dump, b: Dump) -> dict[int, int]:
    """From results of b to those of a at the same place in the order of operations."""
    names = [{op.module for op in dump.operations} for dump in (a, b)]
    alike = 2 * len(names[0] & names[1]) > max(map(len, names))

    def token(dump: Dump, op: Operation) -> Any:
        shapes = tuple(tuple(dump.tensors[n]["shape"]) for n in (*op.operands, *op.results) if n >= 0)
        return op.short, shapes, (op.module, op.call) if alike else ""

    mine, theirs = ([token(dump, op) for op in dump.operations] for dump in (a, b))
    result = dict[int, int]()
    for i, j, n in SequenceMatcher(None, mine, theirs, autojunk=False).get_matching_blocks():
        for k in range(n):
            x, y = a.operations[i + k], b.operations[j + k]
            result |= dict(zip((*y.results, *y.changed), (*x.results, *x.changed), strict=False))
    return result


# --- in words: what two cones do otherwise ----------------------------------------------------------------------------


def facts(a: Cone, b: Cone) -> tuple[Text, Facts]:
    """The kind of cause, a name of the field, and what differs."""
    both = [*a.ops, *b.ops]
    dtypes, names = (a.dtypes(), b.dtypes()), (a.names, b.names)
    (numbers, alone), role = _numbers(a, b), _role(a, b)
    for kind, has in (("parallel", collective), ("compiled", is_compiled)):
        if any(map(has, both)):
            return KINDS[kind], {"operations": names}
    if other := _hyperparameters(a, b):
        return KINDS["optimizer"], other
    if foreign := _outside(a, b):
        return foreign
    if any("clamp" in op.short for op in alone):
        return KINDS["saturation"], {"operations": names}
    if role == "softmax" and alone and {op.short for op in alone} <= MASKS | {"add", "_to_copy"}:
        return KINDS["mask"], {"operations": names}
    if dtypes[0] != dtypes[1] and not numbers:
        return PRECISION.fill(role=ROLES[role]), {
            "dtypes": dtypes,
            **({"operations": names} if names[0] != names[1] else {}),
        }
    if numbers:
        kind = next(iter(numbers))
        if role == "normalisation" and kind in ("added number", "eps"):
            kind = "eps"
        return KINDS.get(kind) or verbatim(kind), numbers
    sdpa = ["scaled_dot_product" in name for name in names]
    if sdpa[0] != sdpa[1]:
        return KINDS["fused attention"], {"operations": names}
    counts = [sum(map(is_product, one.ops)) for one in (a, b)]
    if counts[0] != counts[1] and min(counts) == 1 and {"add", "add_", "cat", "sum"} & {op.short for op in both}:
        return KINDS["order"], {"operations": names, "products": (str(counts[0]), str(counts[1]))}
    bias = [{"addmm", "baddbmm"} & {op.short for op in one.ops} for one in (a, b)]
    if bool(bias[0]) != bool(bias[1]):
        return KINDS["bias"], {"operations": names}
    told = [", ".join(f"{n} {name}" for name, n in Counter(op.short for op in one.ops).items()) for one in (a, b)]
    if told[0] != told[1]:
        return OPERATIONS.fill(role=ROLES[role]), {"operations": (told[0], told[1])}
    shapes = [" ".join(str(one.side.dump.tensors[n]["shape"]) for op in one.ops for n in op.results[:1] if n >= 0)
              for one in (a, b)]  # fmt: skip
    if shapes[0] != shapes[1]:
        return KINDS["order"], {"shapes": (shapes[0], shapes[1])}
    machines = [str(one.side.way[0]) if one.side.way else "-" for one in (a, b)]
    if machines != ["-", "-"]:
        return KINDS["arithmetic"], {"computed as": (machines[0], machines[1])}
    strides = [" ".join(str(one.side.dump.tensors[n]["stride"]) for op in one.ops for n in op.operands)
               for one in (a, b)]  # fmt: skip
    if strides[0] != strides[1]:  # by which torch's kernels take vectors or elements, or another order of sums
        return KINDS["layout"], {"strides": (strides[0], strides[1])}
    return KINDS["arithmetic"], {}


def _hyperparameters(a: Cone, b: Cone) -> Facts:
    """What differs between the optimizers whose steps made both."""
    paths = [op.module for one in (b, a) if (op := one.side.maker(one.target)) is not None]
    path = next((path for path in paths if "optimizer" in b.side.dump.modules.get(path, {})), "")
    mine, theirs = (one.side.dump.modules.get(path, {}).get("optimizer", {}) for one in (a, b))
    return {name: (str(x), str(theirs[name])) for name, x in mine.items() if theirs.get(name, x) != x}


def _role(a: Cone, b: Cone) -> str:
    """What the operations are for: by what they are, else by what is done with their result, or what they are given."""
    own, users = (" ".join(op.short for one in (a, b) for op in given(one)) for given in (lambda one: one.ops, _users))
    for both, patterns in ((own, PATTERNS), ("", {}), (users, PATTERNS)):
        if not both and (
            re.search(r"\b(cos|sin)\b", own) or any(_made_of(x, re.compile("^(cos|sin)$")) for x in (a, b))
        ):
            return "rotary embedding"
        for name, pattern in patterns.items():
            if re.search(pattern, both):
                return name
    return "operands"


def _users(of: Cone) -> list[Operation]:
    """The operations that read what a cone makes, and what is made of it in up to three steps within its module."""
    reached, result, here = {of.target}, list[Operation](), of.module()
    for op in of.side.dump.operations[max(of.operations, default=0) + 1 :][:8]:
        if op.module == here and reached & set(op.operands):
            reached |= set(op.results)
            result.append(op)
    return result[:3]


def _made_of(one: Cone, names: re.Pattern[str], depth: int = 6) -> bool:
    waiting = [(n, 0) for n in one.common]
    while waiting:
        n, far = waiting.pop()
        op = one.side.maker(n)
        if op is not None and far < depth and not PRODUCTS.search(op.short):
            if names.search(op.short):
                return True
            waiting += [(m, far + 1) for m in op.operands]
    return False


def _outside(a: Cone, b: Cone) -> tuple[Text, Facts] | None:
    """What comes from outside of the programs and differs: weights, data, random numbers."""
    for one, other in ((b, a), (a, b)):
        for n in sorted(one.outside):
            op, note = one.side.maker(n), one.side.dump.tensors[n]
            twin = next((m for m in sorted(other.outside) if other.side.dump.tensors[m].get("name") == note.get("name")
                         and other.side.dump.tensors[m]["shape"] == note["shape"]), None)  # fmt: skip
            if twin is None and any(_holds(one.side.values[n], other.side.values[m]) for m in other.outside):
                continue  # the same weights, joined or laid out otherwise
            sides = ((one, n), (other, twin)) if one is a else ((other, twin), (one, n))
            said = tuple(_described(side, m, sides[0] if side is b else None) for side, m in sides)
            if op is not None:
                seeds = a.side.dump.state.get("seed"), b.side.dump.state.get("seed")
                return KINDS["random numbers"], {op.short: (f"seed {seeds[0]}", f"seed {seeds[1]}")}
            return KINDS["weights" if "name" in note else "data"], {note.get("name", "input"): said}  # type: ignore[dict-item]
    return None


def _holds(x: Tensor | None, y: Tensor | None) -> bool:
    """Whether all values of the smaller of two tensors are in the larger."""
    if x is None or y is None or x.dtype != y.dtype or min(x.numel(), y.numel()) < 2:
        return False
    few, many = sorted((x, y), key=torch.numel)
    return bool(torch.isin(few, many).all())


def _described(of: Cone, n: int | None, base: tuple[Cone, int | None] | None) -> str:
    """A tensor from outside: its dtype, and what rounding of the other's it is."""
    if n is None:
        return "-"
    note, x = of.side.dump.tensors[n], of.side.values[n]
    text = f"{note['dtype']} {note['shape']}"
    y = None if base is None or base[1] is None else base[0].side.values[base[1]]
    if x is None or y is None or x.shape != y.shape or not (x.is_floating_point() and y.is_floating_point()):
        return text
    for name in ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"):
        if torch.equal(y.to(getattr(torch, name)).double(), x.double()):
            return f"{text}, a's rounded to {name}"
    return f"{text}, {apart((y, None), (x, None)):.1e} from a's"


def _numbers(a: Cone, b: Cone) -> tuple[Facts, list[Operation]]:
    """Numbers and names among the arguments of operations that both have, where they differ, and operations of one.

    A lone operation that scales counts among the numbers.
    """
    result: Facts = {}
    mine, theirs = ([op for op in one.ops if op.short not in ("_to_copy", "full", "arange")] for one in (a, b))
    alone: list[list[Operation]] = [[], []]
    matcher = SequenceMatcher(None, [x.short for x in mine], [x.short for x in theirs], autojunk=False)
    for tag, i, k, j, n in matcher.get_opcodes():
        if tag != "equal":
            alone = [alone[0] + mine[i:k], alone[1] + theirs[j:n]]
        for x, y in zip(mine[i:k], theirs[j:n], strict=True) if tag == "equal" else ():
            p, q = _named(x), _named(y)
            for name in dict.fromkeys((*p, *q)):
                if (u := p.get(name)) != (v := q.get(name)):
                    result.setdefault(_called(x.short, name), (_shown(u), _shown(v)))
    ones = [*alone[0], *alone[1]]
    if not result and len(ones) == 1 and ones[0].short in ("mul", "div") and len(ones[0].operands) == 1:
        factor = _shown(next(iter(_named(ones[0]).values()), None))
        result["scale"] = (factor, "-") if alone[0] else ("-", factor)
    return result, ones


def _called(short: str, name: str) -> str:
    """What a number is, by the operation whose argument it is."""
    if name not in ("other", "exponent", "value"):
        return name
    return {"mul": "scale", "div": "scale", "add": "added number", "pow": "exponent"}.get(short, short)


def _named(op: Operation) -> dict[str, Any]:
    """The numbers and names among an operation's arguments, those left out as torch takes them."""
    try:
        given = {x.name: x.default_value if x.has_default_value() else None for x in function(op)._schema.arguments}
    except LabError:
        return {}
    given = {name: {"f": x.hex()} if isinstance(x, float) else x for name, x in given.items()}
    given |= {**dict(zip(given, op.args, strict=False)), **op.kwargs}
    plain = {name: x for name, x in given.items() if isinstance(x, (bool, int, str)) or _is_float(x)}
    return {name: float(x) if type(x) is int and name in ("other", "scale", "eps") else x for name, x in plain.items()}


def _is_float(x: Any) -> bool:
    return isinstance(x, dict) and "f" in x


def _shown(x: Any) -> str:
    return (
        f"{float.fromhex(x['f']):.9g}"
        if _is_float(x)
        else "-"
        if x is None
        else f"{x:.9g}"
        if isinstance(x, float)
        else str(x)
    )


# --- ways in which one operation may have been computed ---------------------------------------------------------------


def ways(of: Cone) -> Iterator[NamedWay]:
    """Ways to compute a cone's operations otherwise, by name: products first, then all in other precisions."""
    products = list(filter(is_product, of.ops))
    shapes = [of.side.dump.tensors[n]["shape"] for op in products[:1] for n in op.operands[:3]]
    rows = max((shape[-2] for shape in shapes if len(shape) > 1), default=1)
    if products:
        yield from ((IN_ROWS.fill(n=n), _in_rows(n)) for n in (1, 2, 4, 8, 16, 32, 64) if n < rows)
        for n in SPLITS:
            yield IN_RANKS.fill(n=n), _in_parts(n, False)
            yield BIAS_SHARED.fill(n=n), _in_parts(n, False, True)
            yield IN_SLICES.fill(n=n), _in_parts(n, True)
        yield ROUNDED_ONCE, _products(_widened(torch.float32))
        yield BIAS_AFTER, _bias_after
        yield from ((OPERANDS.fill(name=name.upper()), _products(_rounded_operands(name))) for name in ROUNDED)
    yield from ((IN_DTYPE.fill(name=spelt(dtype)), _widened(dtype)) for dtype in PRECISIONS)
    yield from ((THREADS.fill(n=n), _threads(n)) for n in (1, 2, 4, 8) if n != torch.get_num_threads())
    for gpu in GPU_NAMES if products else ():
        yield verbatim(gpu), _on(gpu, Plan())
        yield from ((ON_GPU.fill(gpu=verbatim(gpu), n=n), _on(gpu, Plan(split_k=n))) for n in (2, 4))


def fused(of: Cone, values: dict[int, Tensor]) -> NamedWay:
    """The way of a compiler's fused kernels; how many operations read each result is counted in a run of the cone."""
    modes = [Fused()]

    def way(func: Any, args: Any, kwargs: Any) -> Any:
        with modes[-1]:
            return func(*args, **kwargs)

    of.compute(values, way)
    modes.append(Fused(users=modes[0].counted))
    return FUSED, way


def is_product(op: Operation) -> bool:
    """Whether an operation multiplies matrices."""
    return PRODUCTS.search(op.short) is not None


def _is_product(func: Any) -> bool:
    return PRODUCTS.search(func.name().removeprefix("aten::").partition(".")[0]) is not None


def _products(way: Compute) -> Compute:
    return lambda func, args, kwargs: way(func, args, kwargs) if _is_product(func) else func(*args, **kwargs)


def _matrices(func: Any, args: Any) -> tuple[Tensor | None, Tensor, Tensor] | None:
    """C, A and B of a plain matrix product; None for others."""
    name = func.name().removeprefix("aten::").partition(".")[0]
    if name in ("mm", "bmm"):
        return None, args[0], args[1]
    return (args[0], args[1], args[2]) if name in ("addmm", "baddbmm") else None


def _in_rows(n: int) -> Compute:
    def way(func: Any, args: Any, kwargs: Any) -> Any:
        found = _matrices(func, args)
        if found is None or found[1].shape[-2] <= n:
            return func(*args, **kwargs)
        c, a, b = found
        lead = [] if c is None else [c]
        if c is not None and c.dim() == a.dim() and c.shape[-2] == a.shape[-2] > 1:
            pieces = [func(c[..., i : i + n, :], a[..., i : i + n, :], b, **kwargs) for i in range(0, a.shape[-2], n)]
        else:
            pieces = [func(*lead, a[..., i : i + n, :], b, **kwargs) for i in range(0, a.shape[-2], n)]
        return torch.cat(pieces, -2)

    return way


def _in_parts(n: int, wide: bool, shared: bool = False) -> Compute:
    """k in so many contiguous parts, each a product of its own; their sums added in order, in FP32 or as stored.

    ``shared``: each part begins with its part of C, as DTensor's do; else C is added at the end.
    """

    def way(func: Any, args: Any, kwargs: Any) -> Any:
        found = _matrices(func, args)
        if found is None or found[1].shape[-1] < n or (shared and found[0] is None):
            return func(*args, **kwargs)
        c, a, b = found
        dtype = a.dtype
        a, b = (a.float(), b.float()) if wide else (a, b)
        pieces = zip(a.tensor_split(n, -1), b.tensor_split(n, -2), strict=True)
        first, *rest = [func(c / n, x, y, **kwargs) if shared and c is not None else x @ y for x, y in pieces]
        for part in rest:
            first = first + part
        if c is not None and not shared:
            first = first + (c.float() if wide else c)
        return first.to(dtype)

    return way


def _bias_after(func: Any, args: Any, kwargs: Any) -> Any:
    found = _matrices(func, args)
    return func(*args, **kwargs) if found is None or found[0] is None else found[1] @ found[2] + found[0]


def _widened(dtype: torch.dtype) -> Compute:
    def way(func: Any, args: Any, kwargs: Any) -> Any:
        if kwargs.get("dtype") is not None or func.name().startswith("aten::_to_copy"):
            return func(*args, **kwargs)
        was = next((x.dtype for x in tree_leaves(args) if isinstance(x, Tensor) and x.is_floating_point()), None)

        def cast(to: torch.dtype) -> Callable[[Any], Any]:
            return lambda x: x.to(to) if isinstance(x, Tensor) and x.is_floating_point() else x

        if was is None or func._schema.is_mutable:
            return func(*args, **kwargs)
        return tree_map(cast(was), func(*tree_map(cast(dtype), args), **kwargs))

    return way


def _rounded_operands(name: str) -> Compute:
    def rounded(x: Any) -> Any:
        if not isinstance(x, Tensor) or x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return x
        return torch.from_numpy(quantize(x.detach().float().contiguous().numpy(), name)).to(x.dtype)

    return lambda func, args, kwargs: func(*tree_map(rounded, args), **kwargs)


def _threads(n: int) -> Compute:
    def way(func: Any, args: Any, kwargs: Any) -> Any:
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(n)
            return func(*args, **kwargs)
        finally:
            torch.set_num_threads(before)

    return way


def _on(gpu: str, plan: Plan) -> Compute:
    def way(func: Any, args: Any, kwargs: Any) -> Any:
        with emulate(gpu, plan=plan):
            return func(*args, **kwargs)

    return _products(way)

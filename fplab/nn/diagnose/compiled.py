"""What ``torch.compile`` changes: fused operations, whose intermediate results are not rounded to BF16 or FP16.

As Inductor writes kernels for a CPU: element by element operations, and the normalisations and softmax among them, are
computed in FP32, and what goes from one to the next is not rounded, also where it is a tensor of the program that a
later kernel computes once more. A result is stored, and so rounded, where a product or another operation of a library
reads it, where several read it that itself reads more than ``READS`` stored tensors, and where it reads more than
``MOST``. The loops that store a result go on with it unrounded: a sum over its rows, as a normalisation begins with,
where these loops are rows; the next loops read what was stored. They are rows where something that they read is laid
out otherwise (an embedding, a bias), else one loop over all. Sums of fewer than ``UNROLLED`` terms are no loops.

torch's own FP32 and FP64 ``sqrt`` on a CPU is that of Intel's vector library, which is not correctly rounded: 17% of
FP32 results were one ulp off on an AMD EPYC, whatever ATEN_CPU_CAPABILITY was (torch 2.13, MKL 2024.2), those of
``rsqrt`` were not. Inductor's kernels take the processor's instruction, which is, and so does this way.

Not modelled: sums in another order (FP32's means and softmax), functions whose last bits are others, such as erf and
exp, breaks of the graph, and what a backward pass computes once more in place of storing it.
:class:`~fplab.nn.diagnose.explain_report.Explanation` says how near a way comes to what ``torch.compile`` gives.

Measured here, in BF16, (3, 7) and (2, 16) tokens, AVX512, torch 2.13: all bits of GPT-2, BERT and Llama of up to four
layers, and of Mixtral of two.
"""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

READS = 4  # torch._inductor.config.realize_reads_threshold, of what several operations read
MOST = 12  # torch._inductor.config.realize_cpu_acc_reads_threshold, of what one reads
UNROLLED = 8  # torch._inductor.config.unroll_reductions_threshold: sums of fewer elements are no loops
LOW = (torch.bfloat16, torch.float16)
MOVES = {
    "_unsafe_view",
    "reshape",
    "clone",
    "contiguous",
    "cat",
    "embedding",
    "index",
    "alias",
    "detach",
}  # besides views
SUMS = {"mean", "sum", "var", "var_mean"}
STATISTICS = {
    "native_layer_norm": 2,
    "_softmax": 2,
    "_log_softmax": 2,
    "_fused_rms_norm": 1,
    "native_layer_norm_backward": 2,
    "_softmax_backward_data": 1,
    "_log_softmax_backward_data": 1,
    "_fused_rms_norm_backward": 1,
}  # sums, which are stored
FUSED = SUMS | STATISTICS.keys()
Tensor = torch.Tensor
Place = Callable[[], Hashable]  # where in the model the next operation is


Stored = frozenset[int]  # numbers of stored tensors
NONE: Stored = frozenset()


@dataclass(frozen=True)
class _Origin:
    """Where values come from. ``reads``: the stored tensors that they are computed from.

    ``loops``: those whose own loops can compute them, too; ``after``: those that another loop or a library has read.
    """

    reads: Stored = NONE
    loops: Stored = NONE
    after: Stored = NONE

    def read_by_another(self, reads: Stored) -> _Origin:
        """The origin of what another loop or a library makes and stores."""
        return _Origin(reads, NONE, self.after | self.loops)


@dataclass(eq=False)
class _Value:
    """What is known of a tensor, at a ``version``. ``wide``: its values before they were rounded, None: as they are.

    ``inside``: those that its ``origin.loops`` go on with, where what they store is not rounded; ``even``: whether all
    that it is computed from lies in memory as it does, one loop over all of it. ``name``: the same in every run.
    """

    tensor: Any
    version: int
    origin: _Origin
    wide: Tensor | None = None
    name: Hashable = None
    inside: Tensor | None = None
    even: bool = True


def fuses(func: Any) -> bool:
    """Whether ``torch.compile`` makes an operation part of a kernel of its own."""
    return torch.Tag.pointwise in func.tags or _short(func) in FUSED | {"copy_"}


class Fused(TorchDispatchMode):
    """Within the block operations are computed as if they were fused, but for those at the ``place`` None.

    ``users``: how many operations read each result, from ``counted`` of an earlier run; None: not known, and then what
    reads many is stored.
    """

    def __init__(self, place: Place = lambda: "", users: Counter[Hashable] | None = None) -> None:
        super().__init__()
        self.place, self.users, self.counted = place, users, Counter[Hashable]()
        self._values: dict[int, _Value] = {}
        self._results, self._stored = Counter[Hashable](), itertools.count()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would load its compiler for every block

    def _value(self, x: Tensor) -> _Value:
        value = self._values.get(id(x))
        if value is None or value.tensor() is not x or value.version != _version(x):
            value = self._note(x, _Origin(self._own()))
            value.even = x.is_contiguous()
        limit = READS if self.users is None or self.users[value.name] > 1 else MOST
        own = self._own() if len(value.origin.reads) > limit else None
        if own is not None and value.wide is None:
            value.origin = replace(value.origin, reads=own)
        elif own is not None:
            value.wide, value.inside = None, None if value.even else value.wide
            value.origin = replace(value.origin.read_by_another(own), loops=NONE if value.even else own)
            value.even = x.is_contiguous()
        return value

    def _note(self, x: Tensor, origin: _Origin, wide: Tensor | None = None, name: Hashable = None) -> _Value:
        def forget(_: Any, key: int = id(x)) -> None:
            self._values.pop(key, None)

        self._values[id(x)] = _Value(weakref.ref(x, forget), _version(x), origin, wide, name)
        return self._values[id(x)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, _short(func)
        if self.place() is None:  # what the compiled program gave is stored
            self._values.clear()
            return func(*args, **kwargs)
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        values = {id(x): self._value(x) for x in tensors}
        self.counted.update(value.name for value in values.values())
        origins = [value.origin for value in values.values()]
        origin = _Origin(*(NONE.union(*(getattr(one, part) for one in origins)) for part in _Origin.__match_args__))
        for _ in range(STATISTICS.get(name, 0)):
            origin = replace(origin, reads=origin.reads | self._own())
        moves, low = func.is_view or name in MOVES, any(x.dtype in LOW for x in tensors)

        def wide(x: Any) -> Any:
            if not isinstance(x, Tensor) or x.dtype not in LOW:
                return x
            known = values[id(x)].wide
            return x.float() if known is None else known

        def inside(x: Any) -> Any:
            known = values[id(x)].inside if isinstance(x, Tensor) else None
            return wide(x) if known is None else known

        if func._schema.is_mutable:
            if not (fuses(func) and args and isinstance(args[0], Tensor) and args[0].dtype in (*LOW, torch.float32)):
                return func(*args, **kwargs)
            changed = wide(args[0]).clone()
            func(changed, *tree_map(wide, args[1:]), **tree_map(wide, kwargs))
            args[0].copy_(changed)
            value = self._note(args[0], origin.read_by_another(origin.reads), changed if low else None, self._name())
            value.version += not args[0].is_inference()  # torch counts the change once this has returned
            return args[0]
        if not (moves or fuses(func) or name == "_to_copy"):
            result = func(*args, **kwargs)
            for x in tree_leaves(result):
                if isinstance(x, Tensor):  # of numbers alone they are made in every kernel anew
                    made = origin.read_by_another(self._own()) if tensors else origin
                    self._note(x, made, None, self._name() if not tensors else None)
            return result
        narrows = name == "_to_copy" and kwargs.get("dtype") in LOW and args[0].dtype in (*LOW, torch.float32)

        def computed(operand: Callable[[Any], Any]) -> Any:
            return operand(args[0]) if narrows else _rooted(func, *tree_map(operand, args), **tree_map(operand, kwargs))

        result, within = _rooted(func, *args, **kwargs), None
        terms = args[0].numel() // max(result.numel(), 1) if name in SUMS and isinstance(result, Tensor) else 0
        sums = name in SUMS and not 0 < terms < UNROLLED
        if terms and not sums:  # it is no loop, and each of its terms reads places of its own
            origin = replace(origin, reads=NONE.union(*(self._own() for _ in range(terms * len(origin.reads)))))
        if origin.loops and not origin.loops & origin.after and (not sums or _in_rows(*args[:2])):
            within = computed(inside)
        full = within if sums and within is not None else computed(wide) if low or narrows else result
        even = name not in ("embedding", "index") and all(value.even for value in values.values())
        size = max((x.numel() for x in tensors if values[id(x)].inside is not None), default=0)

        def fused(x: Any, exact: Any, loop: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            wide_ = exact if x.dtype in LOW and exact.dtype == torch.float32 else None
            reads = self._own() if sums and x.dtype not in LOW else origin.reads
            own = within is not None and not (sums or name in STATISTICS) and loop.numel() == size
            made = exact if x.dtype not in LOW else x if moves else exact.to(x.dtype)
            value = self._note(made, origin if own else origin.read_by_another(reads), wide_, self._name())
            value.inside = loop if own else None
            value.version = _version(tensors[0]) if func.is_view else value.version  # torch shares it once this returns
            value.even = even and x.is_contiguous() and all(t.numel() in (1, x.numel()) for t in tensors)
            return made

        return tree_map(fused, result, full, result if within is None else within)

    def _own(self) -> Stored:
        """The reads of a tensor that is stored."""
        return frozenset([next(self._stored)])

    def _name(self) -> Hashable:
        place = self.place()
        self._results[place] += 1
        return place, self._results[place]


def _in_rows(x: Tensor, dims: Any = None, *_: Any) -> bool:
    """Whether a sum is over the last dimensions: it reads a tensor in the order of its loops."""
    over = {d % x.dim() for d in ([dims] if isinstance(dims, int) else dims or range(x.dim()))}
    return over == set(range(x.dim() - len(over), x.dim()))


def _rooted(func: Any, *args: Any, **kwargs: Any) -> Any:
    """What an operation gives, FP32's square root rounded once."""
    x = args[0] if args and _short(func) == "sqrt" else None
    if not isinstance(x, Tensor) or x.dtype != torch.float32:
        return func(*args, **kwargs)
    return func(x.double()).float()


def _short(func: Any) -> str:
    return str(func.name().partition("::")[2].partition(".")[0])


def _version(x: Tensor) -> int:
    return 0 if x.is_inference() else x._version

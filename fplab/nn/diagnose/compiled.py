"""What ``torch.compile`` changes: fused operations, whose intermediate results are not rounded to BF16 or FP16.

As Inductor writes kernels for a CPU: element by element operations, and the normalisations and softmax among them, are
computed in FP32, and what goes from one to the next is not rounded, also where it is a tensor of the program that a
later kernel computes once more. A result is stored, and so rounded, where a product or another operation of a library
reads it, and where several read it that itself reads more than ``READS`` stored tensors.

torch's own FP32 and FP64 ``sqrt`` on a CPU is that of Intel's vector library, which is not correctly rounded: 17% of
FP32 results were one ulp off on an AMD EPYC, whatever ATEN_CPU_CAPABILITY was (torch 2.13, MKL 2024.2), those of
``rsqrt`` were not. Inductor's kernels take the processor's instruction, which is, and so does this way.

Not modelled: sums in another order (FP32's means and softmax), functions whose last bits are others, such as erf and
exp, the kernel that makes a stored result and goes on with it unrounded, where its loops are one, and breaks of the
graph. :class:`~fplab.nn.diagnose.explain_report.Explanation` says how near a way comes to what ``torch.compile`` gives.

Measured here, in BF16, (3, 7) and (2, 16) tokens, AVX512: all bits of GPT-2 and BERT of one, two and four layers, and
of Llama of one; of Llama of two and four layers 34% to 67% of the difference between eager and compiled is left; of
Mixtral, whose routers break the graph, nothing is explained.
"""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

READS = 4  # torch._inductor.config.realize_reads_threshold
LOW = (torch.bfloat16, torch.float16)
MOVES = {"_unsafe_view", "reshape", "clone", "contiguous", "cat", "embedding", "alias", "detach"}  # besides views
SUMS = {"mean", "sum", "var", "var_mean"}
STATISTICS = {"native_layer_norm": 2, "_softmax": 2, "_log_softmax": 2, "_fused_rms_norm": 1}  # sums, which are stored
FUSED = SUMS | STATISTICS.keys()
Tensor = torch.Tensor
Place = Callable[[], Hashable]  # where in the model the next operation is


@dataclass(eq=False)
class _Value:
    """What is known of a tensor, at a ``version``. ``wide``: its values before they were rounded, None: as they are.

    ``reads``: the stored tensors that it is computed from; ``name``: the same in every run of the model.
    """

    tensor: Any
    version: int
    reads: frozenset[int]
    wide: Tensor | None = None
    name: Hashable = None


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
            value = self._note(x, None, self._own())
        many = len(value.reads) > READS and (self.users is None or self.users[value.name] > 1)
        if value.wide is not None and many:
            value.wide, value.reads = None, self._own()
        return value

    def _note(self, x: Tensor, wide: Tensor | None, reads: frozenset[int], name: Hashable = None) -> _Value:
        def forget(_: Any, key: int = id(x)) -> None:
            self._values.pop(key, None)

        self._values[id(x)] = _Value(weakref.ref(x, forget), _version(x), reads, wide, name)
        return self._values[id(x)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, _short(func)
        if self.place() is None:  # what the compiled program gave is stored
            self._values.clear()
            return func(*args, **kwargs)
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        values = {id(x): self._value(x) for x in tensors}
        self.counted.update(value.name for value in values.values())
        reads = frozenset[int]().union(*(value.reads for value in values.values()))
        for _ in range(STATISTICS.get(name, 0)):
            reads |= self._own()
        moves, low = func.is_view or name in MOVES, any(x.dtype in LOW for x in tensors)

        def wide(x: Any) -> Any:
            if not isinstance(x, Tensor) or x.dtype not in LOW:
                return x
            known = values[id(x)].wide
            return x.float() if known is None else known

        if func._schema.is_mutable:
            if not (low and fuses(func) and args and isinstance(args[0], Tensor) and args[0].dtype in LOW):
                return func(*args, **kwargs)
            changed = wide(args[0]).clone()
            func(changed, *tree_map(wide, args[1:]), **tree_map(wide, kwargs))
            args[0].copy_(changed)
            value = self._note(args[0], changed, reads, self._name())
            value.version += not args[0].is_inference()  # torch counts the change once this has returned
            return args[0]
        if name == "_to_copy":
            source = wide(args[0])
            result = func(source, **kwargs)
            narrow = result.dtype in LOW and source.dtype == torch.float32
            return self._made(result, source if narrow else None, reads)
        if not (moves or fuses(func)):
            result = func(*args, **kwargs)
            for x in tree_leaves(result) if not tensors else ():  # made of numbers, in every kernel anew
                self._made(x, None, frozenset())
            return result
        result = _rooted(func, *args, **kwargs)
        full = _rooted(func, *tree_map(wide, args), **tree_map(wide, kwargs)) if low else result

        def fused(x: Any, exact: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            if x.dtype not in LOW:
                return self._made(exact, None, self._own() if name in SUMS else reads)
            return self._made(x if moves else exact.to(x.dtype), exact if exact.dtype == torch.float32 else None, reads)

        return tree_map(fused, result, full)

    def _own(self) -> frozenset[int]:
        """The reads of a tensor that is stored."""
        return frozenset([next(self._stored)])

    def _name(self) -> Hashable:
        place = self.place()
        self._results[place] += 1
        return place, self._results[place]

    def _made(self, x: Any, wide: Tensor | None, reads: frozenset[int]) -> Any:
        if isinstance(x, Tensor):
            self._note(x, wide, reads, self._name())
        return x


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

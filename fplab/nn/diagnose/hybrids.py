"""A model whose layers each run in one of two ways: what emulation is asked for, a context, another model, few rows.

A layer's own work is what runs in it and in no layer inside it. A run builds the model anew of shallow copies: each
layer's copy is of the model of its way, shares its weights, and has the other copies as its children. So nothing of
the user's is changed, and a child may run in another way than what is around it. Where it does, tensors that come in
or go out are cast to the dtypes that they have there when all runs in one way.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from ...errors import LabError, door, integer, unknown
from ...words import Text
from ..emulation import Emulation, emulate
from ..tracer import is_compiled
from .compiled import Fused
from .layer_errors import undisturbed
from .tensors import dense, equal, floating, laid_out, norm, spelt, wide

OWN = ("model", "around", "rows", "tensor_parallel", "rowwise", "sequence_parallel", "expert_parallel", "compiled")
ROWWISE = ("*o_proj", "*out_proj", "*down_proj", "*c_proj", "*linear2", "*fc2", "*.down", "*.o", "*.wo", "*.w2")
EXPERTS = ["hidden_states", "top_k_index", "top_k_weights"]  # what transformers call a layer's experts with
SETTINGS = tuple(inspect.signature(emulate).parameters)


@door
class Way:
    """One of the two ways that :func:`explain` compares.

    ``settings``: of :func:`fplab.nn.emulate` (``gpu="H100", inputs="bf16"``); none is torch's own arithmetic. Every run
    begins with ``state``, which delayed scaling needs.
    ``model``: another model with layers of the same names, such as ``copy.deepcopy(model).half()``; None is the model
    that is explained. ``around``: makes a context manager that is open while layers compute in this way, such as
    ``lambda: torch.autocast("cpu", torch.bfloat16)``. ``rows``: layers without layers inside them are called with so
    many rows of the batch at a time, but for recurrent ones, whose states have no rows first. ``tensor_parallel``:
    linear layers whose path fits a pattern of ``rowwise`` (None: the usual names, :data:`ROWWISE`) compute as so many
    ranks do: each a slice of k with its part of the bias, stored; then these are added in the order of the ranks, or
    with ``sequence_parallel=True`` by a ring's reduce-scatter over the tokens, each of its parts ending at its rank.
    ``expert_parallel``: experts as transformers keep them, modules with ``num_experts`` that are called with tokens,
    their experts and weights, lie on so many ranks, neighbours together; the ranks' sums are added in their order.
    ``compiled``: True for what ``torch.compile`` changes: results that fused operations do not round to BF16 or FP16
    (see :mod:`fplab.nn.diagnose.compiled`).

    >>> Way(gpu="H100", inputs="bf16")
    Way(gpu='H100', inputs='bf16')
    """

    def __init__(
        self, *, model: nn.Module | None = None, around: Callable[[], AbstractContextManager[Any]] | None = None,
        rows: int | None = None, tensor_parallel: int | None = None, rowwise: Sequence[str] | None = None,
        sequence_parallel: bool | None = None, expert_parallel: int | None = None, compiled: bool | None = None,
        **settings: Any,
    ) -> None:  # fmt: skip
        for name in settings:
            if name not in SETTINGS:
                raise unknown("setting of a way", name, [*SETTINGS, *OWN])
        if model is not None and not isinstance(model, nn.Module):
            raise LabError(f"model={type(model).__name__} in a way; pass a torch.nn.Module.")
        if around is not None and not callable(around):
            raise LabError(f"around={type(around).__name__}; pass a function that makes a context manager.")
        if isinstance(settings.get("state"), Emulation):
            settings["state"] = settings["state"].state_dict()  # as it is now; every run begins with it
        if isinstance(rowwise, str):
            raise LabError(f"rowwise={rowwise!r} is one name; pass names or patterns, such as ({rowwise!r},).")
        self.model, self.around, self.settings = model, around, settings
        self.rows = None if rows is None else integer("rows", rows, 1, 1 << 30)
        ranks = None if tensor_parallel is None else integer("tensor_parallel", tensor_parallel, 1, 1 << 10)
        self.tensor_parallel, self.rowwise = ranks, None if rowwise is None else tuple(rowwise)
        self.expert_parallel = (
            None if expert_parallel is None else integer("expert_parallel", expert_parallel, 1, 1 << 10)
        )
        for name, given in (("compiled", compiled), ("sequence_parallel", sequence_parallel)):
            if given not in (None, False, True):
                raise LabError(f"{name}={given!r} is not possible; allowed: True, False.")
        if sequence_parallel and ranks is None:
            raise LabError("sequence_parallel=True without ranks; say how many: tensor_parallel=4.")
        self.compiled, self.sequence_parallel = compiled or None, sequence_parallel or None
        self.emulation()  # refuses what the GPU has no unit for

    def emulation(self) -> Emulation | None:
        """A new emulation, as every run needs one of its own; None for torch's own arithmetic.

        What its recipe leaves high is told once, by the explanation.
        """
        if not self.settings:
            return None
        result = emulate(**self.settings)
        result.warned = True
        return result

    @property
    def parts(self) -> dict[str, Any]:
        """All that is not left out, by name."""
        own = {name: getattr(self, name) for name in OWN}
        return {**self.settings, **{name: value for name, value in own.items() if value is not None}}

    def having(self, name: str, other: Way) -> Way:
        """This way with one part of another."""
        parts = {**self.parts, **({name: other.parts[name]} if name in other.parts else {})}
        return Way(**{key: value for key, value in parts.items() if key != name or name in other.parts})

    def written(self, name: str) -> str:
        """One part as a user would write it."""
        value = self.parts.get(name)
        if name == "state" and value is not None:
            return f"{{'step': {value['step']}, ...}}"
        return type(value).__name__ if isinstance(value, nn.Module) else f"{value!r}" if name in self.parts else "-"

    def __repr__(self) -> str:
        return f"Way({', '.join(f'{name}={self.written(name)}' for name in self.parts)})"


def way_of(name: str, given: Way | Mapping[str, Any]) -> Way:
    """A way, or the one whose parts a mapping names."""
    if isinstance(given, Way):
        return given
    if isinstance(given, Mapping) and all(isinstance(key, str) for key in given):
        return Way(**given)
    raise LabError(f"{name} is a {type(given).__name__}; pass Way(gpu='H100') or a mapping such as {{'gpu': 'H100'}}.")


def different(a: Way, b: Way) -> list[str]:
    """The parts in which two ways differ."""
    return [name for name in dict.fromkeys((*a.parts, *b.parts)) if not _same(a.parts.get(name), b.parts.get(name))]


def _same(x: Any, y: Any) -> bool:
    return x is y or (type(x) is type(y) and not isinstance(x, nn.Module) and bool(x == y))


Tensor = torch.Tensor
Output = Callable[[nn.Module, Any], Any]
Of = Callable[[str], int]  # from a layer to its way, 0 or 1
OUTSIDE = ""  # what the function of the output computes itself, outside of the model


class Hybrids:
    """Two ways, a batch and an output. ``layers``: the names of all layers, a model itself by its class."""

    def __init__(self, model: nn.Module, batch: Any, ways: Sequence[Way], output: Output) -> None:
        self.batch, self.ways, self.output = batch, ways, output
        self.models = [way.model or model for way in ways]
        self.modules = [dict(item.named_modules(remove_duplicate=False)) for item in self.models]
        for mine, theirs, name in ((0, 1, "b"), (1, 0, "a")):
            for path in self.modules[mine]:
                if path not in self.modules[theirs]:
                    raise LabError(f"the model of way {name} has no layer {path!r}; both models need the same layers.")
        if any(is_compiled(layer) for modules in self.modules for layer in modules.values()):
            raise LabError(
                "a model is compiled, and torch.compile joins its layers; explain the module before compiling, and "
                "with Way(compiled=True) what compiling changes."
            )
        self.names = {path: path or type(model).__name__ for path in self.modules[0]}
        self.layers = (OUTSIDE, *self.names.values())
        self.dtypes: dict[tuple[int, str, bool], list[torch.dtype]] = {}
        self.high: list[dict[str, Text]] = [{}, {}]  # of each way the layers that its recipe leaves high, and why
        self.runs = 0
        self.users: list[Counter[Hashable] | None] = [None, None]  # of each way how many operations read a result

    def run(self, of: Of, watcher: Callable[[Hybrid], Any] | None = None, *, learns: bool = False) -> Tensor:
        """The output with every layer in the way that ``of`` says, float64 (n,). ``watcher``: a further context.

        ``learns``: all layers have one way; the dtypes of what goes in and out of them, and what stays high, are noted.
        """
        for side in {of(OUTSIDE), *map(of, self.names.values())}:
            if self.ways[side].compiled and self.users[side] is None:
                self.users[side] = Counter()
                self.run(lambda _, way=side: way)  # type: ignore[misc]
        self.runs += 1
        with ExitStack() as stack:
            for model in dict.fromkeys(self.models):
                stack.enter_context(undisturbed(model))
            stack.enter_context(torch.no_grad())
            hybrid = Hybrid(self, of, learns)
            stack.enter_context(hybrid.open())
            if watcher is not None:
                stack.enter_context(watcher(hybrid))
            result = flat(self.output(hybrid.root, self._given()))
        fused = hybrid.fused[hybrid.side]
        if fused is not None and not self.users[hybrid.side]:
            self.users[hybrid.side] = fused.counted
        if learns and hybrid.emulation is not None:
            self.high[hybrid.side] = hybrid.emulation.report().left_high
        return result

    def other_dtypes(self, layer: str) -> dict[str, tuple[str, str]]:
        """The dtypes of what a layer is given and gives, as a fact, where they are others in the two ways."""
        result: list[list[torch.dtype]] = [[], []]
        for (side, path, _), dtypes in self.dtypes.items():
            result[side] += dtypes if self.names[path] == layer or (layer == OUTSIDE and not path) else []
        a, b = (" x ".join(dict.fromkeys(map(spelt, item))) for item in result)
        return {"dtypes": (a, b)} if a != b else {}

    def alone(self, side: int) -> Tensor:
        """The output of one way with the model as it is, as its user would run it."""
        way, model = self.ways[side], self.models[side]
        with undisturbed(model), torch.no_grad(), ExitStack() as stack:
            for context in (way.emulation(), way.around() if way.around else None):
                if context is not None:
                    stack.enter_context(context)
            program: Any = model
            if way.compiled:
                stack.enter_context(_compiling())
                program = torch.compile(model)
            return flat(self.output(program, self._given()))

    def _given(self) -> Any:
        """The batch for one run, which may write to it."""
        try:
            return tree_map(_kept, self.batch)
        except RecursionError:
            raise LabError("batch holds itself, or is nested too deeply.") from None


@contextmanager
def _compiling() -> Iterator[None]:
    """Inductor compiles whatever it is given: beyond its limits torch would compile no more, and not say so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own modules, which load now
        from torch._dynamo import config

        many = 1 << 12
        with config.patch(recompile_limit=many, accumulated_recompile_limit=many):
            yield


def flat(value: Any) -> Tensor:
    """The values of an output, float64 (n,)."""
    if not floating(value) or not value.numel():
        what = f"a tensor of {value.dtype}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise LabError(f"output gave {what}; it must give a floating-point tensor: a loss, logits, log-probabilities.")
    return wide(value.detach()).reshape(-1)


class Hybrid:
    """One run. ``side``: the way that is at work, in ``layer``; ``apart``: see :meth:`_compare`."""

    def __init__(self, whole: Hybrids, of: Of, learns: bool) -> None:
        self.whole, self.of, self._learns = whole, of, learns
        self.emulations = [way.emulation() for way in whole.ways]
        self.side, self.layer, self.call = of(OUTSIDE), OUTSIDE, 0
        self._calls: Counter[str] = Counter()
        self.fused = [Fused(self._place, users) if way.compiled else None
                      for way, users in zip(whole.ways, whole.users, strict=True)]  # fmt: skip
        self.apart: dict[str, float] | None = None
        self.again: Callable[[int], None] = lambda part: None  # receives the number of each part of a call
        self.root = self._node("")
        self._around = ExitStack()
        self._comparing = False
        self._batch = 0

    @property
    def emulation(self) -> Any:
        """The emulation at work, or None."""
        return self.emulations[self.side]

    @property
    def way(self) -> Way:
        """The way at work."""
        return self.whole.ways[self.side]

    def pieces(self, part: bool) -> int:
        """How many pieces, that parts of both ways consist of, are in a part of the batch or in all of it; 0: one way.

        0 also where no way has fewer rows than the batch.
        """
        rows = [way.rows for way in self.whole.ways]
        fewer = [n for n in rows if n is not None and n < self._batch]
        if not fewer or rows[0] == rows[1]:
            return 0
        return (self.way.rows or self._batch if part else self._batch) // math.gcd(self._batch, *fewer)

    @contextmanager
    def open(self) -> Iterator[None]:
        """While the run lasts: both emulations follow the model, one of them computes."""
        with ExitStack() as stack:
            for emulation in self.emulations:
                if emulation is not None:
                    stack.enter_context(emulation)
            stack.callback(lambda: self._around.close())
            self._turn(self.side)
            yield

    def _place(self) -> Hashable:
        """Where the next operation is; None outside of the model, which alone is compiled."""
        return None if self.layer == OUTSIDE else (self.layer, self.call)

    def _turn(self, side: int) -> None:
        """Compute in a way from here on."""
        self.side = side
        for i, one in enumerate(self.emulations):
            if one is not None:
                one.suspended = i != side
        self._around.close()
        around = self.whole.ways[side].around
        for context in (around() if around is not None else None, self.fused[side]):
            if context is not None:
                self._around.enter_context(context)

    def _node(self, path: str) -> nn.Module:
        """The copy of a layer, with copies of what is inside it."""
        side = self.of(self.whole.names[path])
        children = {
            name: None if child is None else self._node(f"{path}.{name}" if path else name)
            for name, child in self.whole.modules[side][path]._modules.items()
        }
        return self._copy(path, side, children)

    def _copy(self, path: str, side: int, children: dict[str, Any]) -> nn.Module:
        module = self.whole.modules[side][path]
        node: nn.Module = object.__new__(type(module))
        node.__dict__ = {**module.__dict__, "_modules": children}
        forward, way = node.forward, self.whole.ways[side]
        rowwise = any(fnmatchcase(path, pattern) for pattern in way.rowwise or ROWWISE)
        if way.tensor_parallel is not None and rowwise and isinstance(module, nn.Linear):
            forward = functools.partial(_row_parallel, module, way.tensor_parallel, bool(way.sequence_parallel))
        if way.expert_parallel is not None and list(inspect.signature(forward).parameters) == EXPERTS:
            forward = functools.partial(_expert_parallel, forward, module.num_experts, way.expert_parallel)

        @functools.wraps(forward)
        def called(*args: Any, **kwargs: Any) -> Any:
            return self._called(node, path, side, forward, args, kwargs)

        node.__dict__["forward"] = called
        return node

    def _called(self, node: nn.Module, path: str, side: int, forward: Any, args: Any, kwargs: Any) -> Any:
        """A layer's call: in its own way, and back to that around it."""
        before, layer, call = self.side, self.layer, self.call
        if layer == OUTSIDE:
            self._batch = next((len(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.dim()), 0)
        compares = self.apart is not None and not self._comparing
        if compares:
            given, state = tree_map(_kept, (args, kwargs)), torch.get_rng_state()
        args, kwargs = self._cast((args, kwargs), side, path, False)
        self.layer = self.whole.names[path]
        self.call = self._calls[self.layer]
        self._calls[self.layer] += 1
        if side != before:
            self._turn(side)
        try:
            result = self._in_parts(node, side, forward, args, kwargs)
        finally:
            self.layer, self.call = layer, call
            if side != before:
                self._turn(before)
        result = self._cast(result, before, path, True)
        if compares:
            after = torch.get_rng_state()
            torch.set_rng_state(state)
            self._compare(node, path, 1 - side, given, result)
            torch.set_rng_state(after)
        return result

    def _in_parts(self, node: nn.Module, side: int, forward: Any, args: Any, kwargs: Any) -> Any:
        """A call, in parts of the batch where the way has fewer rows and the layer none inside."""
        rows = self.whole.ways[side].rows
        leaves, spec = tree_flatten((args, kwargs))
        size = next((len(x) for x in leaves if isinstance(x, Tensor) and x.dim()), 0)
        if rows is None or node._modules or not size or rows >= self._batch or isinstance(node, nn.RNNBase):
            return forward(*args, **kwargs)
        if self._batch % rows:
            raise LabError(f"rows={rows} does not divide the batch of {self._batch}.")
        count = self._batch // rows
        if size % count:
            return forward(*args, **kwargs)
        result = []
        for part in range(count):
            cut = slice(part * (size // count), (part + 1) * (size // count))
            own = [x[cut] if isinstance(x, Tensor) and x.dim() and len(x) == size else x for x in leaves]
            part_args, part_kwargs = tree_unflatten(own, spec)
            self.again(part)
            result.append(forward(*part_args, **part_kwargs))
        self.again(-1)
        with _disable_current_modes():  # no operation of the model's
            return tree_map(lambda *x: torch.cat(x) if _has_rows(x[0], size // count) else x[0], *result)

    def _cast(self, value: Any, side: int, path: str, out: bool) -> Any:
        """Tensors in the dtypes that they have there when all runs in way ``side``."""
        leaves, spec = tree_flatten(value)
        places = [i for i, x in enumerate(leaves) if floating(x)]
        now = [leaves[i].dtype for i in places]
        if self._learns:
            self.whole.dtypes[side, path, out] = now
        wanted = self.whole.dtypes.get((side, path, out), now)
        if len(wanted) != len(now) or wanted == now:
            return value
        for i, dtype in zip(places, wanted, strict=True):
            leaves[i] = leaves[i].to(dtype)
        return tree_unflatten(leaves, spec)

    def _compare(self, node: nn.Module, path: str, side: int, given: Any, result: Any) -> None:
        """How far the layer's own work takes its result apart in the other way, on the same operands.

        A layer that is not apart here leaves the output as it is where it alone changes its way.
        """
        assert self.apart is not None
        other = self._copy(path, side, node._modules)
        for emulation in self.emulations:
            if emulation is not None:
                emulation.sites.names.alike(other, node)
        self._comparing = True
        try:
            theirs = other(*given[0], **given[1])
        finally:
            self._comparing = False
        name = self.whole.names[path]
        for x, y in zip(tree_leaves(result), tree_leaves(theirs), strict=False):
            if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
                continue
            if x.dim() == y.dim() > 0 and x.shape[1:] == y.shape[1:] and 1 in (len(x), len(y)):
                x, y = torch.broadcast_tensors(x, y)  # rows at a time repeat what is there once for all
            if not equal(x, y):
                far = _far(x, y) if x.shape == y.shape else math.inf
                self.apart[name] = max(self.apart.get(name, 0.0), far)


def _row_parallel(layer: nn.Linear, ranks: int, scatters: bool, x: Tensor) -> Tensor:
    """What ranks give together that have a slice of k each, summed rank by rank, or by a ring over the tokens."""
    size = layer.in_features // ranks
    if layer.in_features % ranks:
        raise LabError(f"tensor_parallel={ranks} does not divide {layer.in_features}, a layer's inputs.")
    bias = None if layer.bias is None else layer.bias / ranks
    slices = zip(x.split(size, -1), layer.weight.split(size, 1), strict=True)
    parts = [nn.functional.linear(k.contiguous(), weight.contiguous(), bias) for k, weight in slices]
    if not scatters:
        return functools.reduce(torch.add, parts)
    count = x.shape[-2] if x.dim() > 1 else 1
    if count % ranks:
        raise LabError(f"sequence_parallel=True with {ranks} ranks does not divide {count} tokens.")
    tokens = zip(*(part.chunk(ranks, -2) for part in parts), strict=True)
    rings = ([own[(rank - 1 - turn) % ranks] for turn in range(ranks)] for rank, own in enumerate(tokens))
    return torch.cat([functools.reduce(torch.add, ring) for ring in rings], -2)


def _expert_parallel(forward: Any, experts: int, ranks: int, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """What ranks give together that have neighbouring experts each: where another's are asked for, theirs give nothing.

    An index beyond the experts is one that transformers pass over.
    """
    if experts % ranks:
        raise LabError(f"expert_parallel={ranks} does not divide {experts}, a layer's experts.")
    owner = index // (experts // ranks)
    parts: list[Tensor] = [
        forward(hidden, torch.where(owner == rank, index, experts), torch.where(owner == rank, weights, 0))
        for rank in range(ranks)
    ]
    return functools.reduce(torch.add, parts)


def _has_rows(x: Any, n: int) -> bool:
    """Whether a result has the rows of its part of the batch; of one row what is there once for all passes for it."""
    return isinstance(x, Tensor) and x.dim() > 0 and len(x) == n


def _far(x: Tensor, y: Tensor) -> float:
    """The relative difference of two tensors of one shape; infinite where it is none."""
    one, other = (t if t.is_complex() else t.double() for t in (x, y))
    apart, of = norm(other - one), norm(one)
    far = apart / of if apart and of else math.inf if apart else 0.0
    return math.inf if math.isnan(far) else far


def _kept(x: Any) -> Any:
    """An operand that a first call may change, for a second."""
    if isinstance(x, Tensor):
        return laid_out(x, x.stride()) if dense(x) else x.clone()
    return x if x is None or isinstance(x, (bool, int, float, str, torch.dtype, nn.Module)) else copy.deepcopy(x)

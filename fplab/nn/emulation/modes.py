"""How torch's operations are caught, inside the block and in the backward pass after it.

A :class:`Mode` is a ``TorchDispatchMode``: it sees every operation below autograd, autocast and ``torch.func``, with
plain tensors. Each operation that autograd records gets a node of the graph, and only when its turn comes in a
backward pass are the products of that node computed, perhaps long after the block. So every node that was recorded
inside is given two hooks, which put a mode around the node's own work. The engine restores its thread's modes after
each node, whatever it raises, so that nothing is left behind. A checkpoint recomputes inside the work of a node
that needs a tensor, hence in the same bits.

:class:`Calls` sees calls of torch's functions from Python, for what cannot be seen below autograd:

* A linear layer, which is one node of the graph where nobody looks into it (:mod:`.linear`).
* An LSTM: torch would hand it to oneDNN whole, unless oneDNN is switched off while the call lasts.
* ``torch.func``: its graph hangs on wrapped tensors, which do not get below. A function that ``torch.func.vjp``
  returned may be called after the block, so the nodes get their hooks here.
* A ``torch.autograd.Function`` (:mod:`.following`): its forward runs without gradients, its node is there at the end.
* Attention modules: the fused kernels of their inference step aside while anyone watches calls.
* ``backward()`` inside the block: the last operation's node gets its hooks before it runs.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.overrides import _pop_mode as _pop_calls
from torch.overrides import _push_mode as _push_calls
from torch.utils._python_dispatch import (
    _get_current_dispatch_mode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

from ...errors import LabError
from ...words import part
from ..bits import PLAIN_TENSOR, local
from ..tracer import DispatchMode, base_name, name_of
from . import linear, operations, recurrent
from .call_sites import CallSite, saving_hooks
from .multiply import GRADIENT, INPUT, WEIGHT, Products
from .run import Run


class _Thread(threading.local):
    """``busy``: whether a product is being computed. ``calling``: whether a block watches a call of the thread."""

    busy = calling = False


_LOCAL = _Thread()
_LSTM = frozenset({torch._VF.lstm, torch.lstm})
_LINEAR = functional.linear
_HOOKED = "fplab emulation"  # key of a node's metadata
NO_COMPILER = part(
    "torch.compile compiles inside fplab.nn.emulate, and its kernels' products cannot be emulated. Call torch.compile "
    "before the block: in it a compiled model runs what it was compiled from."
)

_OWNERS = {"torch": torch, "torch.Tensor": torch.Tensor, "torch.nn.functional": functional}
_FREE = frozenset(getattr(_OWNERS[o], n) for o, names in operations.TABLE["functions"].items() for n in names.split())
# Nodes that need a mode only where a checkpoint may recompute inside them.
_PLAIN = frozenset(f"{name}Backward" for name in operations.TABLE["nodes"]["plain"].split())


class _Result(NamedTuple):
    """What an operation gave: whose it is, and whether its node saves tensors through hooks, as under a checkpoint."""

    tensor: torch.Tensor
    origin: CallSite
    saved_elsewhere: bool


class Mode(DispatchMode):
    """Computes products in the bits of an emulation; ``origin``: the node whose backward this is, None in the block.

    ``worker``: of a thread that the block started.
    """

    def __init__(
        self, run: Run, origin: CallSite | None = None, gradients: Sequence[Any] = (), reentrant: bool = False,
        worker: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.run, self.origin, self._products, self.worker = run, origin, 0, worker
        self._depth, self._reentrant, self._saving = len(run.sites.running.stack), reentrant, saving_hooks(True)
        self.new: list[_Result] = []  # they get their node when the operation returns
        self._first = torch._C._autograd._get_sequence_nr()  # of the nodes that this mode sees
        self._gradients: dict[int, torch.Tensor] = {}  # by address: what flowed into the node, and what comes of it
        self._opaque = False
        self._passing = False  # the next operation is one that tensors of another kind take apart
        self._latest: CallSite | None = None  # of the last product
        if run.settings.splits:
            self._note(gradients)

    @property
    def over(self) -> bool:
        """Whether this is a thread's that outlived its block, such as a pool's."""
        return self.worker and not self.run.blocks

    # --- operations ---------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # what is looked up on the way is no call of the model's
            return self._operation(func, types, args, kwargs or {})

    def _operation(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if _LOCAL.busy or self.run.suspended or self.over:
            return func(*args, **kwargs)
        if any(issubclass(t, FakeTensor) for t in types):
            return func(*args, **kwargs)  # shapes without values, as DTensor asks what an operation will give
        if any(t.__torch_dispatch__ is not PLAIN_TENSOR for t in types):
            return self._taken_apart(func, args, kwargs)
        self.link()
        composed, handler, refusal = operations.known(func)
        if composed and not _nested(args):
            with self:
                return func.decompose(*args, **kwargs)
        _LOCAL.busy = True  # modes below let operations through
        try:
            if handler is not None and not _abstract(args) and self._has_unit(func, args):
                again = self._recomputes()
                new = self.origin is None or again
                with self.run.sites.lock:
                    origin = self.run.sites.take() if self.origin is None or again else self.origin
                    result, weighted = self._product(handler, func, args, kwargs, origin, again)
                origin = origin._replace(weighted=weighted) if new else origin._replace(order=origin.order + 1)
                self._latest = origin
            else:
                if refusal is not None:
                    self._allowed(name_of(func), base_name(func), refusal)
                origin = self.run.sites.next()
                result = func(*args, **kwargs)
        finally:
            _LOCAL.busy = False
        self._keep(result, origin)
        if self.run.settings.recipes:
            self._note_weights(func, args, result)
        if self._gradients and self._marked_any(args):
            self._note(result if isinstance(result, (tuple, list)) else (result,))
        return result

    def _taken_apart(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What a tensor of another kind, such as a DTensor, makes of an operation: operations that come back here.

        Those lie below autograd, whose node is the whole operation's: it belongs where its product does.
        """
        if self._passing:
            self._passing = False
            return NotImplemented
        self.link()
        origin, self._latest, self._passing = self.run.sites.next(), None, True
        try:
            with self:
                result = func(*args, **kwargs)
        finally:
            self._passing = False
        self._keep(result, self._latest or origin)
        return result

    def _recomputes(self) -> bool:
        """Whether this node runs a checkpoint again: in a layer, saving tensors its own way, or as its own node."""
        if self.origin is None or self.origin.start is None:
            return False
        saving = saving_hooks(True)
        elsewhere = saving is not None and saving != self._saving
        return self._reentrant or elsewhere or len(self.run.sites.running.stack) > self._depth

    def _product(
        self, handler: operations.Handler, func: Any, args: Any, kwargs: Any, site: CallSite, again: bool
    ) -> tuple[Any, bool]:
        """An emulated operation, also in its in-place form, into ``out`` or with a dtype for the result.

        And whether it multiplied by a weight.
        """
        demand_eager()
        name = base_name(func)
        if self.worker and self.run.settings.splits:
            raise LabError(
                f"{name} in thread {threading.current_thread().name!r}: with gradients=, scaling= or a recipe the bits "
                "depend on which product came before, which threads decide anew each time. Compute in one thread."
            )
        self._demand_known_layer(name)
        products = self._pass(name, site, again)
        out = kwargs.get("out")
        rest = {key: value for key, value in kwargs.items() if key != "out"}
        if func._overloadname.startswith("dtype"):
            args, rest = args[:-1], rest | {"out_dtype": args[-1]}
        result = handler(products, self._marker(), *args, **rest)
        if name_of(func) != name:
            return args[0].copy_(result), products.weighted
        if out is not None:
            if out.dtype != result.dtype:
                raise LabError(f"{name} of {result.dtype} into out= of {out.dtype}: torch takes one dtype.")
            return out.resize_(result.shape).copy_(result), products.weighted
        return result, products.weighted

    def _demand_known_layer(self, name: str) -> None:
        """An error for a backward product of what no block recorded, where the bits depend on the layer.

        What a hook on a parameter multiplies, in the node that accumulates its gradient, is outside of all layers.
        """
        settings, node = self.run.settings, type(torch._C._current_autograd_node()).__name__
        if self.origin is None and node not in ("NoneType", "AccumulateGrad") and (settings.splits or settings.layers):
            raise LabError(
                f"{name} in the backward pass of an operation that ran before this block ({node}): its layer is not "
                "known, and with a recipe, layers=, gradients= or scaling= the bits depend on it. Compute the forward "
                "pass in the block, too."
            )

    def _pass(self, operation: str, site: CallSite, again: bool) -> Products:
        """Where the products of one operation belong."""
        forward = self.origin is None and torch._C._current_autograd_node() is None
        phase, turn = "forward" if forward else "backward", None
        if self.origin is not None and not again:
            turn = self._products
            self._products += 1
        return Products(self.run, site, phase, turn, operation, again)

    def _has_unit(self, func: Any, args: Any) -> bool:
        """Whether a unit takes the operands; an error if none does, unless that was allowed."""
        kind = operations.kind_without_unit(operations.operands(func, args))
        if kind is None:
            return True
        name, base = name_of(func), base_name(func)
        self._allowed(f"{name} of {kind}", f"{base} of {kind}", operations.NO_UNIT)
        return False

    def _allowed(self, name: str, base: str, why: str) -> None:
        """Count a product that runs in torch's own arithmetic, or an error if ``allow`` does not name it."""
        if not {name, base} & self.run.settings.allow:
            raise LabError(
                f"{name} is not emulated ({why}). Its result would have torch's bits, not the {self.run.gpu}'s; "
                f"allow=[{base!r}] lets it run all the same, and report() then lists it."
                f"{operations.instead(base)}"
            )
        phase = "forward" if torch._C._current_autograd_node() is None else "backward"
        self.run.log.allowed(self.run.sites.here, phase, base)

    # --- gradients among the operands ---------------------------------------------------------------------------

    def _note(self, tensors: Sequence[Any]) -> None:
        """Remember gradients by their memory; they are kept alive so that no other tensor takes their place."""
        for tensor in tensors:
            if not isinstance(tensor, torch.Tensor):
                continue
            try:
                held = local(tensor)
                self._gradients[held.untyped_storage().data_ptr()] = held
            except (NotImplementedError, RuntimeError):
                self._opaque = True

    def _marked_any(self, args: Any) -> bool:
        return any(map(self._is_gradient, _tensors(args)))

    def _is_gradient(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._gradients

    def _marker(self) -> Any:
        """What each operand of the next product is, as a function: a gradient, a weight, or neither."""
        if not self.run.settings.splits:
            return lambda tensor: INPUT
        if self._opaque:
            raise LabError(
                "gradients=, scaling= and recipes cannot tell gradients from weights inside torch.func transforms."
            )
        return self._kind

    def _kind(self, tensor: torch.Tensor) -> str:
        weights = self.run.sites.weights
        return GRADIENT if self._is_gradient(tensor) else WEIGHT if tensor in weights else INPUT

    def _note_weights(self, func: Any, args: Any, result: Any) -> None:
        """What an operation makes of weights alone is a weight, too: a cast, a copy, a parametrisation."""
        weights = self.run.sites.weights
        given = [x for x in _tensors(args) if x.is_floating_point()]
        makes_one = isinstance(result, torch.Tensor) and operations.handler(func) is None
        if given and makes_one and "embedding" not in func.name() and all(x in weights for x in given):
            weights.add(result)

    # --- nodes ----------------------------------------------------------------------------------------------------

    def _keep(self, result: Any, origin: CallSite) -> None:
        """Results whose node is not there yet: autograd adds it when the operation returns."""
        found = result if isinstance(result, (tuple, list)) else (result,)
        elsewhere = saving_hooks(True) is not None
        self.new = [_Result(tensor, origin, elsewhere) for tensor in found if isinstance(tensor, torch.Tensor)]

    def link(self) -> None:
        """Hook the nodes of the last operation's results."""
        if not self.new:
            return
        with torch._C.DisableTorchFunction():
            for tensor, origin, elsewhere in self.new:
                if tensor.requires_grad:
                    self._hook(tensor.grad_fn, origin, elsewhere)
                    base = tensor._base  # where a view was changed in place, the work is in the node of its base
                    if base is not None and base.grad_fn is not None and base.grad_fn._sequence_nr() >= self._first:
                        self._hook(base.grad_fn, origin, elsewhere)
        self.new = []

    def link_function(self, result: Any, began: CallSite) -> None:
        """Hook the node of a Function, whose forward ran without gradients from a site on."""
        self._keep(result, began)
        self.link()

    def link_graph(self, result: Any) -> None:
        """Hook every node behind the results of a call, back to those that were there before the block."""
        found = result if isinstance(result, (tuple, list)) else (result,)
        waiting: list[Any] = [tensor.grad_fn for tensor in found if isinstance(tensor, torch.Tensor)]
        origin, seen = self.run.sites.next(), set[Any]()
        while waiting:
            node = waiting.pop()
            if node is None or node in seen or node._sequence_nr() < self._first:
                continue
            seen.add(node)
            self._hook(node, origin, False)
            waiting += [before for before, _ in node.next_functions]

    def _hook(self, node: Any, origin: CallSite, elsewhere: bool) -> None:
        """Put a mode around a node's backward, once."""
        kind = type(node).__name__  # not node.name(): a user's Function may have stored a ctx.name
        if node is None or kind == "AccumulateGrad" or (not elsewhere and kind.rstrip("0123456789") in _PLAIN):
            return
        if _HOOKED not in node.metadata:
            node.metadata[_HOOKED] = True
            recorded = _Recorded(self.run, origin, kind == "CheckpointFunctionBackward")
            node.register_prehook(recorded.before)
            node.register_hook(recorded.after)


class _Recorded:
    """The hooks of one node."""

    def __init__(self, run: Run, origin: CallSite, reentrant: bool) -> None:
        self.run, self.origin, self.reentrant = run, origin, reentrant
        if reentrant:
            self.origin = origin._replace(start=origin)
        self.mode: Mode | None = None
        self.times = 0  # a node runs again where a graph was kept, or for a second derivative
        self.calling = False
        self.undo: Callable[[], None] | None = None

    def before(self, gradients: Sequence[Any]) -> None:
        start = self.origin.start
        self.undo = None if start is None else self.run.sites.again(start)
        site = self.origin._replace(order=self.origin.order + (self.times << 8))
        self.mode = Mode(self.run, site, gradients, self.reentrant)
        self.times += 1
        self.calling, _LOCAL.calling = _LOCAL.calling, False  # where backward() is called in a block
        with _without_watchers():
            _push_mode(self.mode)
        _push_calls(Calls(self.mode))

    def after(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        if self.mode is None:
            return  # the node was already running when it was hooked, inside the block
        _pop_calls()
        with _without_watchers():
            _pop_mode()
        self.mode.link()  # what create_graph recorded, for a second derivative
        self.mode, _LOCAL.calling = None, self.calling
        if self.undo is not None:
            self.undo()


def taken_apart(products: Products, gradient: torch.Tensor) -> AbstractContextManager[None] | None:
    """A context for the backward pass of a layer that was one piece, in which it is operations; None: nobody looks."""
    run = products.run
    alone = all(isinstance(mode, Mode) for mode in _get_current_dispatch_mode_stack())
    if (
        alone
        and not (torch.is_grad_enabled() or run.suspended or run.seen is not None)
        and linear.are_plain(gradient)
        and not torch._C._functorch.get_dynamic_layer_stack_depth()
    ):
        demand_eager()
        return None
    return _node(_Recorded(run, products.site, False), gradient)


@contextmanager
def _node(recorded: _Recorded, gradient: torch.Tensor) -> Iterator[None]:
    """What its hooks put around a node."""
    recorded.before([gradient])
    try:
        yield
    finally:
        recorded.after((), ())


@contextmanager
def _without_watchers() -> Iterator[None]:
    """Off the top of the stack are modes that watch results, such as a shadow: what computes them goes beneath."""
    taken: list[Any] = []
    while getattr(_get_current_dispatch_mode(), "watches", False):
        taken.append(_pop_mode())
    try:
        yield
    finally:
        for mode in reversed(taken):
            _push_mode(mode)


def working() -> bool:
    """Whether an emulation is computing a product, or has one computed."""
    return _LOCAL.busy


def demand_eager(refused: str = NO_COMPILER, undo: ExitStack | None = None) -> None:
    """An error inside a compiled function; and until ``undo``, compiled ones run what they were compiled from.

    torch itself would run these uncompiled or, if a cache says so, as they are.
    """
    if torch.compiler.is_compiling() or get_eval_frame_callback() is not None:
        raise LabError(refused)
    if undo is not None and "torch._dynamo" in sys.modules:  # else nothing is compiled yet, and what will be comes here
        warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hooks")
        undo.enter_context(torch.compiler.set_stance("force_eager"))


def _tensors(args: Any) -> Iterator[torch.Tensor]:
    """The tensors among arguments, and those in lists of them, as ``torch.cat`` takes."""
    for x in args:
        for item in x if isinstance(x, (list, tuple)) else (x,):
            if isinstance(item, torch.Tensor):
                yield item


def _nested(args: Any) -> bool:
    """Whether an operand is a ragged batch in one piece of memory, which has operations of its own."""
    return any(isinstance(x, torch.Tensor) and x.is_nested for x in args)


def _abstract(args: Any) -> bool:
    """Whether an operand has a shape but no values."""
    return any(isinstance(x, torch.Tensor) and x.device.type == "meta" for x in args)


# --- calls seen from Python -------------------------------------------------------------------------------------------


class Calls(TorchFunctionMode):
    """Around every call of torch's functions inside the block, or inside the backward of one of its nodes."""

    def __init__(self, mode: Mode) -> None:
        super().__init__()
        self.mode = mode

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, mode = kwargs or {}, self.mode
        if mode.new:
            mode.link()  # before torch.autograd.backward, too: a reentrant checkpoint ends in it
        if _LOCAL.calling or (mode.worker and mode.over):
            return func(*args, **kwargs)
        if func in _LSTM:
            with _without_onednn():
                found = self._lstm(args, kwargs)
                return func(*args, **kwargs) if found is None else found
        if func in _FREE and self._passes(args, kwargs):
            with torch._C._DisableTorchDispatch():
                return func(*args, **kwargs)
        if func is _LINEAR and not kwargs and not mode.run.settings.splits and mode.run.seen is None:
            found = self._linear(*args)
            if found is not None:
                return found
        if mode.run.settings.recipes:
            for x in _tensors((*args, *kwargs.values())):
                if isinstance(x, torch.nn.Parameter):
                    mode.run.sites.weights.add(x)
        _LOCAL.calling = True  # while the innermost block watches a call, those around it do not
        try:
            result = func(*args, **kwargs)
        finally:
            _LOCAL.calling = False
        if func is torch.Tensor.backward:
            mode.run.new_step()
        if torch._C._functorch.get_dynamic_layer_stack_depth():
            mode.link_graph(result)
        return result

    def _unwatched(self) -> bool:
        """Whether nobody but this block wants to see a forward pass's operations, so that some may be one."""
        mode = self.mode
        return (
            _get_current_dispatch_mode_stack() == [mode]
            and mode.origin is None
            and not (_LOCAL.busy or mode.run.suspended)
            and get_eval_frame_callback() is None
            and torch._C._current_autograd_node() is None
            and saving_hooks(True) is None
            and not torch._C._functorch.get_dynamic_layer_stack_depth()
        )

    def _passes(self, args: Any, kwargs: Any) -> bool:
        """Whether nobody looks at what a function without products does to such arguments."""
        given = (*args, *kwargs.values()) if kwargs else args
        return (
            not self.mode.run.settings.splits
            and all(type(x) in linear.KINDS or not isinstance(x, torch.Tensor) for x in given)
            and self._unwatched()
        )

    def _linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        """A linear layer in one piece; None where it is taken apart."""
        if not self._unwatched() or not linear.takes(x, weight, bias):
            return None
        run = self.mode.run
        flag = run.choices.flag(run.sites.running.stack[-1][0], "linear") if x.dtype == torch.float32 else "matmul"
        rounded = run.settings.rounded_model(x.dtype, flag)
        if rounded is None:
            return None
        with run.sites.lock:
            products = Products(run, run.sites.take(), "forward", None, "linear")
            layer = linear.Layer(products, rounded, x.dtype, bias is not None, taken_apart)
            return linear.apply_linear(layer, x, bias, weight)

    def _lstm(self, args: Any, kwargs: Any) -> Any:
        """An LSTM in one piece; None where it is taken apart, into operations that somebody else may want to see."""
        run = self.mode.run
        if kwargs or len(args) != 9 or not self._unwatched() or not recurrent.takes(*args):
            return None
        with run.sites.lock:
            return recurrent.lstm(Products(run, run.sites.take(), "forward", None, "lstm"), *args)


@contextmanager
def _without_onednn() -> Iterator[None]:
    """For one call only: elementwise functions use oneDNN too, and have other bits without it."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)

"""``watch``: what a training run would need of its number formats, seen while it runs."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ...errors import LabError, quotes_call
from ...formats import FormatLike
from ..bits import array, local
from ..device.counting import DeviceBits, fetched
from ..recipes import Recipe
from ..tracer import is_compiled, made_of, scaled_losses, uncompiled, updates
from .forecast import forecast
from .format_advice import Limits
from .format_counts import REACH
from .module_tensors import ModuleTensors
from .nonfinite import INFINITY, ROOT, Ingredients, NonFinite, broken, masks, nothing, only_below
from .run_comparison import compare
from .tensors import Array, bits, on_device
from .watch_report import Report, make_report
from .watched_run import GRADIENTS, Seen


class Parameter(NamedTuple):
    """A parameter by its name in the model and the module that holds it."""

    name: str
    layer: str
    tensor: nn.Parameter


class Parts:
    """Where each parameter, and each layer, lies in an array of them all; a layer's parameters are neighbours."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = tuple(parameters)
        held = [local(p.tensor) for p in self.parameters]
        sizes = [2 * t.numel() if t.is_complex() else t.numel() for t in held]
        self.offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.layers = tuple(dict.fromkeys(p.layer for p in self.parameters))
        first = [next(i for i, p in enumerate(self.parameters) if p.layer == layer) for layer in self.layers]
        self.layer_offsets = self.offsets[[*first, len(self.parameters)]]

        self._buffers: dict[str, torch.Tensor] = {}

    def join(self, take: Callable[[Parameter], torch.Tensor], use: str) -> Array:
        """A tensor of each parameter, one after the other, as float32 (n,): a copy, kept until the next of that use."""
        buffer = self._buffers.get(use)
        if buffer is None:  # fresh memory for each copy would cost more than the copying
            buffer = self._buffers[use] = torch.empty(int(self.offsets[-1]), dtype=torch.float32)
        joined = array(buffer)
        tensors = [local(take(p)) for p in self.parameters]
        if all(t.dtype is torch.float32 and t.device.type == "cpu" and t.layout is torch.strided for t in tensors):
            if tensors:
                torch.cat([t.detach().reshape(-1) for t in tensors], out=buffer)
        else:
            for i, t in enumerate(tensors):
                joined[self.offsets[i] : self.offsets[i + 1]] = _values(t)
        return joined

    def difference(self, after: Array, before: Array, use: str) -> Array:
        """``after - before`` in FP32, kept until the next of that use."""
        buffer = self._buffers.get(use)
        if buffer is None:
            buffer = self._buffers[use] = torch.empty(after.size, dtype=torch.float32)
        result = array(buffer)
        with np.errstate(all="ignore"):
            np.subtract(after, before, out=result)
        return result


def _values(tensor: torch.Tensor) -> Array:
    result = bits(tensor)
    return np.zeros(tensor.numel(), np.float32) if result is None else result.view(np.float32)


def parameters_of(model: nn.Module) -> tuple[Parameter, ...]:
    """A model's floating-point parameters, a shared one once, by its first name."""
    result = []
    for name, tensor in model.named_parameters():
        if tensor.is_floating_point() or tensor.is_complex():
            result.append(Parameter(name, name.rpartition(".")[0] or ROOT, tensor))
    return tuple(result)


def states_of(optimizer: Any, parameters: Iterable[Parameter]) -> dict[str, dict[str, torch.Tensor]]:
    """An optimizer's states in a parameter's shape, by the name of the state and of the parameter."""
    result: dict[str, dict[str, torch.Tensor]] = {}
    states = getattr(optimizer, "state", {})
    for p in parameters:
        for key, value in (states.get(p.tensor) or {}).items():
            if _is_state(value) and value.shape == p.tensor.shape:
                result.setdefault(str(key), {})[p.name] = value
    return result


def other_states(optimizer: Any) -> Iterable[tuple[str, torch.Tensor]]:
    """An optimizer's states in no parameter's shape (factored moments, the directions of L-BFGS), with their names."""
    for owner, state in list(getattr(optimizer, "state", {}).items()):
        for key, value in state.items() if isinstance(state, dict) else ():
            for item in value if isinstance(value, list | tuple) else (value,):
                if _is_state(item) and item.shape != getattr(owner, "shape", None):
                    yield str(key), item


def _is_state(value: Any) -> bool:
    """Whether this is a tensor of numbers, not a count of steps."""
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 0


FORMATS: tuple[str, ...] = ("fp16", "bf16", "e4m3", "e5m2")


class watch(Seen):  # noqa: N801  (used as a function: with watch(model, optimizer) as seen)
    """See every tensor of a training loop, and say which number formats the run would stand.

    >>> with fplab.nn.watch(model, optimizer) as seen:  # doctest: +SKIP
    ...     for batch in data:
    ...         ...  # any loop: closures, accumulation, a GradScaler, autocast
    >>> print(seen.report())  # doctest: +SKIP

    ``model``: any module. ``optimizer``: what updates its parameters, torch's or any object with ``step``. ``scaler``:
    a loss scaler with ``scale``, ``step`` and ``get_scale``; torch's GradScaler is noticed by itself. ``formats``: the
    candidates. ``every``: sampling interval of counts, in steps, from the first one; every step is searched for
    infinities and NaN. ``keep``: of so many steps, evenly spaced, :meth:`compare` has a digest of every tensor.
    ``recipes``: names or records of :mod:`fplab.nn.recipes`, such as "mxfp8" and "nvfp4": in counted steps both
    operands of each product of every ``nn.Linear`` are quantised so (of at most 256 rows, evenly spaced), and the
    report says what the products would lose and which layers to keep high (:meth:`forecast`: what a longer run would).

    Kinds: "activations" (what a module returns), "activation gradients" and "weight gradients" (divided by the loss
    scale; the second as the optimizer gets them), "updates" (w after the step minus w before, in FP32), "weights"
    (after the step), and "state NAME" for each state of the optimizer. What emulates formats by hooks is seen if it
    was there before the block.

    Memory does not grow with the number of steps: 29 kB for each kind and layer, ``keep`` times about 250 bytes for
    each tensor of a step, and some FP32 copies of the parameters and the states. Of a model on a GPU outputs and their
    gradients are counted there (by kernels that no GPU has run yet); parameters and states are copied to the CPU, which
    takes longer. Leaving the block removes every hook; what ``torch.compile`` gave runs what it was made of until then.
    Raises :class:`LabError` for a model without parameters, an optimizer that owns none of them, a watch inside a
    watch, and a report of a run without a step.
    """

    compare = compare  # of two watches: watch.compare(a, b), or a.compare(b)
    forecast = forecast
    _open: watch | None = None

    @quotes_call
    def __init__(
        self, model: nn.Module, optimizer: Any, *, scaler: Any = None, formats: Iterable[FormatLike] = FORMATS,
        every: int = 8, keep: int = 64, recipes: Iterable[str | Recipe] = (),
    ) -> None:  # fmt: skip
        super().__init__(made_of(model), optimizer, formats, every, keep, recipes)
        self.compiled = isinstance(model, nn.Module) and any(map(is_compiled, model.modules()))
        self._scaler = scaler
        self._parameters = _checked(self._model, optimizer, scaler)
        self._cache: dict[tuple[str, ...], Parts] = {}
        self._all = self._parts(self._parameters)
        self._largest: dict[tuple[str, str], tuple[int, int]] = {}  # while all is finite: the step, and bits
        self._counting = False
        self._before: tuple[Parts, Array] | None = None
        self._gradients: tuple[Parts, Array] | None = None
        self._states: dict[str, tuple[Parts, Array]] = {}

    # --- the block ----------------------------------------------------------------------------------------------

    def __enter__(self) -> watch:
        if watch._open is not None:
            raise LabError(
                f"a watch (on {watch._open.name}) is open already: one watch sees every step. Leave its block first, "
                "or watch a module that holds both models."
            )
        if self.steps or self._counting:
            raise LabError("this watch has seen a run; make a new one for the next: watch(model, optimizer).")
        watch._open = self
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, watch, "_open", None)
            self._forward = ModuleTensors(self._model, self._see, self._called)
            stack.callback(self._forward.remove)
            stack.enter_context(uncompiled())
            stack.enter_context(updates(self._optimizer, self._before_update, self._after_update))
            stack.enter_context(scaled_losses(self._scaler, self._scaled, lambda: self.steps, self._skip_update))
            self._stack = stack.pop_all()
        self._begin()
        self._see_parts("initial weights", self._all, self._all.join(_weight, "weights"))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()
        self._fingerprints.drop(self.steps)
        self._before = self._gradients = None
        self._states = {}

    # --- what the hooks say -----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin a step."""
        self._counting = self.steps % self.every == 0
        self._depth, self._closure = 0, False
        self._scale, self._pending = 1.0, []  # type: float, list[NonFinite]
        self._below: NonFinite | None = None  # an output with minus infinity alone, before anything else broke
        self._before = self._gradients = None
        self._states = {}
        self._fingerprints.begin(self.steps)
        self._forward.new_step()

    def _end(self, skipped: bool) -> None:
        """End a step, which a loss scaler may have skipped."""
        if self._below is not None and not self._pending:
            self.first = self.first or self._below._replace(harmless=True)
        for event in self._pending:
            ended = (self._below or event)._replace(skipped=skipped)
            self.first = self.first or ended
            if not skipped:
                self.first_kept = self.first_kept or ended
        self.steps += 1
        self.skipped += skipped
        self._begin()

    def _called(self, layer: str, module: nn.Module, args: Any, output: Any) -> None:
        self.products.called(self.steps, self._counting, layer, module, args, output)

    def _see(self, kind: str, layer: str, tensor: str, value: torch.Tensor, made_of: Ingredients = nothing) -> None:
        """A tensor of the forward or backward pass, or a state; ``made_of``: what went into it."""
        result = on_device(value) or bits(value)
        if result is None or not result.size:
            if result is None:
                self.unread.add(f"{kind} of {tensor}")
            return
        self._scanned(kind, layer, tensor, self._tables.scan(result), result, made_of)
        if self._counting and kind not in ("input", "loss"):
            shift = 0
            if kind in GRADIENTS and self._scale != 1:
                result, shift = _unscaled(result, self._scale)
            self._tables.add(kind, layer, result, shift)

    def _scaled(self, scaler: Any, loss: Any, scaled: Any) -> None:
        """A scaler has scaled the loss: gradients are larger from here on."""
        self._scale = float(scaler.get_scale())
        low, high = self.scales or (self._scale, self._scale)
        self.scales = min(low, self._scale), max(high, self._scale)
        for name, value in (("the loss", loss), ("the scaled loss", scaled)):
            if isinstance(value, torch.Tensor):
                self._see("loss", "loss", name, value)

    def _before_update(self, closure: bool) -> None:
        """The optimizer begins a step; with a closure the gradients are still to come."""
        self._depth += 1
        if self._depth > 1:  # a class that calls the step of its base class
            return
        self._closure = closure
        moving = self._moving(closure)
        if not closure:
            self._take_gradients(moving)
        if self._counting:
            parts = self._parts(moving)
            self._before = parts, parts.join(_weight, "before")
            self._states = self._joined_states(moving, "before")

    def _after_update(self) -> None:
        """The optimizer has stepped."""
        self._depth -= 1
        if self._depth:
            return
        if self._closure:
            self._take_gradients(self._moving(False))
        self._take_updates()
        self._take_states()
        weights = self._all.join(_weight, "weights")
        self._see_parts("weights", self._all, weights, count=True)
        found_inf = getattr(self._optimizer, "found_inf", None)  # given to a fused optimizer, which skips by itself
        self._end(skipped=isinstance(found_inf, torch.Tensor) and bool(found_inf.item()))

    def _skip_update(self, optimizer: Any) -> None:
        """A scaler did not let the optimizer step."""
        if optimizer is self._optimizer:
            gradients = self._parts(self._moving(False))
            self._see_parts("weight gradients", gradients, gradients.join(_gradient, "gradients"))
            self._end(skipped=True)

    def _parts(self, parameters: Sequence[Parameter]) -> Parts:
        """Where these parameters lie side by side; the same ones as in the last step are the same object."""
        names = tuple([p.name for p in parameters])
        result = self._cache.get(names)
        if result is None:
            if len(self._cache) > 16:
                self._cache.clear()
            result = self._cache[names] = Parts(parameters)
        return result

    # --- the parameters of a step -----------------------------------------------------------------------------------

    def _moving(self, closure: bool) -> list[Parameter]:
        """The parameters that this step may move: the optimizer's, with a gradient, or one to come."""
        owned = _owned(self._optimizer)
        return [
            p for p in self._parameters
            if (owned is None or id(p.tensor) in owned)
            and (p.tensor.requires_grad if closure else p.tensor.grad is not None)
        ]  # fmt: skip

    def _take_gradients(self, moving: list[Parameter]) -> None:
        parts = self._parts(moving)
        values = parts.join(_gradient, "gradients")
        grad_scale = getattr(self._optimizer, "grad_scale", None)  # of a fused one, which unscales by itself
        if isinstance(grad_scale, torch.Tensor):
            values = values / np.float32(grad_scale.item())
        self._gradients = parts, values
        self._see_parts("weight gradients", parts, values, count=True)

    def _take_updates(self) -> None:
        if self._before is None or self._gradients is None:
            return
        parts, before = self._before
        moves = parts.difference(parts.join(_weight, "after"), before, "moves")
        self._see_parts("updates", parts, moves, count=True)
        pushed, gradients = self._gradients
        pushes = gradients if pushed is parts and _rate(self._optimizer) else None
        self._losses.add("weights", parts.layers, before, moves, parts.layer_offsets, pushes)

    def _joined_states(self, moving: list[Parameter], use: str) -> dict[str, tuple[Parts, Array]]:
        """The optimizer's states side by side, by name."""
        result = {}
        for key, tensors in states_of(self._optimizer, moving).items():
            parts = self._parts([p for p in moving if p.name in tensors])
            result[key] = parts, parts.join(lambda p, tensors=tensors: tensors[p.name], f"{use} {key}")  # type: ignore[misc]
        return result

    def _take_states(self) -> None:
        if not self._counting:
            return
        earlier = self._states
        for key, (parts, values) in self._joined_states(self._moving(False), "after").items():
            kind = f"state {key}"
            self._see_parts(kind, parts, values, count=True)
            before = earlier.get(key)
            if before is not None and before[0] is parts:
                moves = parts.difference(values, before[1], "moves")
                self._losses.add(kind, parts.layers, before[1], moves, parts.layer_offsets)
        for key, tensor in other_states(self._optimizer):
            self._see(f"state {key}", "optimizer", "optimizer", tensor)

    def _see_parts(self, kind: str, parts: Parts, values: Array, count: bool = False) -> None:
        """Look at a tensor of each parameter, float32 (n,) side by side."""
        result = values.view(np.uint32)
        scanned = self._tables.scan_parts(result, parts.offsets)
        if self._fingerprints.open or (self._sound and scanned.size) or (scanned[:, 0] >= INFINITY).any():
            for i, p in enumerate(parts.parameters):
                if parts.offsets[i] < parts.offsets[i + 1]:
                    part = result[parts.offsets[i] : parts.offsets[i + 1]]
                    self._scanned(kind, p.layer, p.name, scanned[i].tolist(), part)
        if count and self._counting:
            self._tables.add_parts(kind, parts.layers, result, parts.layer_offsets)

    def _scanned(
        self, kind: str, layer: str, tensor: str, scanned: tuple[int, int, int], words: Array | DeviceBits,
        made_of: Ingredients = nothing,
    ) -> None:  # fmt: skip
        """A tensor has been read: keep its print, and notice what is not finite."""
        self._fingerprints.add(kind, tensor, scanned, words)
        if scanned[0] < INFINITY:
            if self._sound:
                self._largest[kind, tensor] = self.steps, scanned[0]
            return
        words = fetched(words)
        if self.first_kept is None and not self._pending and not (kind == "input" and masks(words)):
            behind = self._behind(made_of)
            if kind == "updates":
                behind = behind or self._broken_before(tensor)
            event = behind or self._event(kind, layer, tensor, words)
            if event.below:
                self._below = self._below or event
            else:
                self._pending.append(event)

    @property
    def _sound(self) -> bool:
        """Whether nothing has broken so far."""
        return self.first is None or self.first.harmless

    def _behind(self, made_of: Ingredients) -> NonFinite | None:
        """What was not finite before an output was: weights, a buffer, or an input."""
        for kind, holder, name, value in made_of():
            result = bits(value)
            if result is not None and broken(result).any() and (kind == "weights" or not masks(result)):
                return self._event(kind, holder, name, result)._replace(elsewhere=kind != "buffers")
        return None

    def _broken_before(self, tensor: str) -> NonFinite | None:
        """The weights of a step that counts, where they were not finite before the optimizer moved them."""
        if self._before is None:
            return None
        parts, values = self._before
        i, p = next((i, p) for i, p in enumerate(parts.parameters) if p.name == tensor)
        result = values[parts.offsets[i] : parts.offsets[i + 1]].view(np.uint32)
        if not broken(result).any():
            return None
        return self._event("weights", p.layer, p.name, result)._replace(elsewhere=True)

    def _event(self, kind: str, layer: str, tensor: str, words: Array) -> NonFinite:
        """What is to be said of a tensor that is not finite."""
        bad = broken(words)
        nan = int(((words & 0x7FFFFFFF) > INFINITY).sum())
        was = self._largest.get((kind, tensor)) or self._largest.get((f"initial {kind}", tensor))
        before = (was[0], float(np.uint32(was[1]).view(np.float32))) if was else None
        return NonFinite(
            self.steps, kind, layer, tensor, int(bad.sum()) - nan, nan, words.size, int(np.argmax(bad)), before,
            self._scale, below=kind == "activations" and only_below(words),
        )  # fmt: skip

    @quotes_call
    def report(self, tolerance: float = 0.001, lost: float = 0.05) -> Report:
        """The table, the figure and the recommendation.

        ``tolerance``: which share of a layer's non-zero values a format may round to zero; none may overflow. ``lost``:
        which share of the changes of weights or states it may lose.
        """
        if not self.steps:
            raise LabError(
                "no step was taken inside the block: the optimizer's step() was never called there. Put the training "
                "loop inside the block, and give watch the optimizer that the loop steps."
            )
        for name, share in (("tolerance", tolerance), ("lost", lost)):
            if not 0 <= share < 1:
                raise LabError(f"{name}={share!r} is no share; allowed: 0 <= {name} < 1.")
        return make_report(self, Limits(tolerance, lost))

    def __str__(self) -> str:
        """What its report says, once there is something to report."""
        return str(self.report()) if self.steps else super().__str__()


def _weight(p: Parameter) -> torch.Tensor:
    return p.tensor


def _gradient(p: Parameter) -> torch.Tensor:
    return p.tensor.grad if p.tensor.grad is not None else torch.zeros_like(p.tensor)


def _unscaled(words: Array | DeviceBits, scale: float) -> tuple[Array | DeviceBits, int]:
    """Bits and the shift by which they count as divided by a scale: exact for a power of two."""
    mantissa, exponent = math.frexp(scale)
    if mantissa == 0.5 and abs(exponent - 1) <= REACH:
        return words, exponent - 1
    with np.errstate(all="ignore"):
        return (fetched(words).view(np.float32) * np.float32(1 / scale)).view(np.uint32), 0


def _rate(optimizer: Any) -> bool:
    """Whether a learning rate is not zero, as in the first step of a warm-up, when nothing is to move."""
    groups = getattr(optimizer, "param_groups", [])
    return not groups or any(group.get("lr", 1) for group in groups)


def _owned(optimizer: Any) -> set[int] | None:
    """The parameters in an optimizer's groups, by identity; None where it does not say."""
    groups = getattr(optimizer, "param_groups", None)
    return None if groups is None else {id(p) for group in groups for p in group["params"]}


def _checked(model: Any, optimizer: Any, scaler: Any) -> tuple[Parameter, ...]:
    """The model's parameters, or an error that says what does not fit."""
    if not isinstance(model, nn.Module):
        raise LabError(f"model is a {type(model).__name__}; it must be a torch.nn.Module.")
    if not callable(getattr(optimizer, "step", None)):
        raise LabError(f"optimizer is a {type(optimizer).__name__} without step(); pass what updates the parameters.")
    if isinstance(optimizer, torch.optim.lr_scheduler.LRScheduler):
        raise LabError(f"optimizer is a {type(optimizer).__name__}, a scheduler; pass its optimizer.")
    parameters = parameters_of(model)
    if not parameters:
        raise LabError(f"{type(model).__name__} has no parameters; there is no training to watch.")
    owned = _owned(optimizer)
    if owned is not None and not owned & {id(p.tensor) for p in parameters}:
        raise LabError(
            f"{type(optimizer).__name__} owns none of the {len(parameters)} parameters of {type(model).__name__}; make "
            "it from this model's parameters(), after the model was built, copied or loaded."
        )
    if missing := [name for name in ("scale", "step", "get_scale") if scaler is not None and not hasattr(scaler, name)]:
        raise LabError(f"scaler is a {type(scaler).__name__} without {missing[0]}(); pass a loss scaler, or None.")
    return parameters

"""LSTMs: a sequence as one node of the graph, in the bits of the operations that torch composes it of.

Taken apart, a sequence of 32 is 857 operations, each of which passes through autograd, the modes and Python. Here the
products with the input stay operations; the steps run in one piece, forward and backward, as torch's own elementwise
functions on tensors of the same layout, and as products whose weights are rounded once. The sums of the weights'
gradients go as autograd goes, from the last step to the first. What somebody watches, scales or differentiates twice is
taken apart as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.nn.functional import linear, pad

from ...tensorcore import products as tensorcore
from ...tensorcore.models import Model
from ...tensorcore.plan import ONE_CHAIN, Plan
from ..bits import PLAIN_TENSOR, array
from .backends import HOST
from .multiply import Products
from .product_log import Log, Shape

Tensor = torch.Tensor
Maybe = Tensor | None
TOGETHER = 1 << 19  # elements of products that wait to be summed, while they are in the cache
through_sigmoid = torch.ops.aten.sigmoid_backward.grad_input
through_tanh = torch.ops.aten.tanh_backward.grad_input


def takes(input: Tensor, hidden: Any, weights: Any, biases: bool, layers: int, dropout: float, train: bool,
          bidirectional: bool, batch_first: bool) -> bool:  # fmt: skip
    """Whether the arguments of ``torch.lstm`` are of a kind that is computed here: dense and of one direction."""
    if not isinstance(hidden, (tuple, list)) or bidirectional or (dropout and train and layers > 1):
        return False
    if len(weights) != layers * (4 if biases else 2) or input.dim() != 3 or 0 in input.shape:
        return False
    given = [input, *hidden, *weights]
    return (
        all(type(x).__torch_dispatch__ is PLAIN_TENSOR and x.device.type == "cpu" for x in given)
        and len({x.dtype for x in given}) == 1
        and not torch.is_autocast_enabled("cpu")
        and forward_ad._current_level < 0
    )


class Core:
    """The steps of one layer: products of one model, and where they are counted."""

    def __init__(self, products: Products, model: Model, dtype: torch.dtype, biases: bool) -> None:
        self.products, self.model, self.dtype, self.biases = products, model, dtype, biases
        products.model = model
        self.as_they_are = dtype == torch.float32 and tensorcore.rounds(model)

    def rounded(self, x: Tensor) -> Any:
        """An operand in the unit's format, contiguous, or as it is where products round operands themselves."""
        return array(x) if self.as_they_are else self.products.rounded(x.contiguous(), self.model.a)

    def by(self, weight: Tensor, rows: int) -> Callable[[Tensor], Tensor]:
        """What multiplies operands of so many rows by a weight, and does not store."""
        multiply = tensorcore.product_by(self.model, self.rounded(weight), self.products.choice.plan.of(rows))
        if self.as_they_are:  # what is multiplied is our own memory, which nobody resizes
            return lambda x: torch.from_numpy(multiply(x.numpy()))
        return lambda x: HOST.tensor(multiply(self.rounded(x)))

    def count(self, phase: str, operation: str, *shape: int, times: int) -> None:
        """Enter products into the report."""
        products = self.products
        products.run.log.product(products.site.layer, phase, operation, self.model, Shape(1, *shape), times)

    def forward(self, given: Tensor, h: Tensor, c: Tensor, weight: Tensor, bias: Maybe) -> tuple[Tensor, ...]:
        """Of ``given`` (T, batch, 4 * hidden): outputs and cells from before the first step on (T + 1, batch, hidden),
        gates (T, batch, 4 * hidden), and the tanh of each step's cells.
        """
        length, batch, _ = given.shape
        states, cells = (x.new_empty(length + 1, *x.shape).copy_(x) for x in (h, c))
        gates, tanhs = torch.empty_like(given, memory_format=torch.contiguous_format), torch.empty_like(states[1:])
        multiply = self.by(weight.t(), batch)
        all_h, all_c = states.unbind(0), cells.unbind(0)
        before, after = zip(all_h[:-1], all_c[:-1], strict=True), zip(all_h[1:], all_c[1:], strict=True)
        steps = zip(given.unbind(0), gates.unbind(0), *_parts(gates), tanhs.unbind(0), strict=True)
        for (h, c), (next_h, next_c), (one, gate, i, f, g, o, tanh) in zip(before, after, steps, strict=True):
            result = multiply(h)
            if bias is not None:
                result = self.products.with_addend(result, bias, 1.0, 1.0)
            torch.add(self.products.stored(result, self.dtype), one, out=gate)
            i.sigmoid_(), f.sigmoid_(), g.tanh_(), o.sigmoid_()
            torch.mul(f, c, out=next_c).add_(i * g)
            torch.tanh(next_c, out=tanh)
            torch.mul(o, tanh, out=next_h)
        self.count("forward", "addmm" if self.biases else "mm", batch, h.shape[1], len(weight), times=length)
        return states, cells, gates, tanhs

    def backward(
        self, states: Tensor, cells: Tensor, gates: Tensor, tanhs: Tensor, weight: Tensor, grads: Sequence[Maybe],
        needed: Sequence[bool],
    ) -> list[Maybe]:  # fmt: skip
        """The gradients of :meth:`forward`'s arguments that are needed, by those of all outputs and the last states."""
        of_outputs, of_h, of_c = grads
        of_gates = torch.empty_like(gates)
        (length, batch, m), n = gates.shape, weight.shape[1]
        multiply = self.by(weight, batch)
        steps = zip(
            of_gates.unbind(0), *_parts(of_gates), *_parts(gates), tanhs.unbind(0), cells.unbind(0)[:-1],
            of_outputs.unbind(0) if of_outputs is not None else [None] * length, strict=True,
        )  # fmt: skip
        for t, step in zip(reversed(range(length)), reversed([*steps]), strict=True):
            of_gate, of_i, of_f, of_g, of_o, i, f, g, o, tanh, before, of_output = step
            of_h = of_h if of_output is None else of_output if of_h is None else of_output + of_h
            if of_h is None:
                of_o.zero_()
            else:
                through_sigmoid(of_h * tanh, o, grad_input=of_o)
                of_tanh = torch.ops.aten.tanh_backward.default(of_h * o, tanh)
                of_c = of_tanh if of_c is None else of_c + of_tanh
            assert of_c is not None
            through_sigmoid(of_c * g, i, grad_input=of_i)
            through_sigmoid(of_c * before, f, grad_input=of_f)
            through_tanh(of_c * i, g, grad_input=of_g)
            of_c = of_c * f
            if t or needed[1]:
                of_h = self.products.stored(multiply(of_gate), self.dtype)
        counted = [(batch, m, n, length - (not needed[1])), (m, batch, n, length * needed[3])]
        for *shape, times in counted if self.biases else counted[::-1]:  # as autograd has it of addmm, and of mm
            if times:
                self.count("backward", "mm", *shape, times=times)
        return [
            of_gates if needed[0] else None, of_h if needed[1] else None, of_c if needed[2] else None,
            self._of_weight(of_gates, states[:-1], weight) if needed[3] else None,
            _summed(item.sum(0) for item in reversed(of_gates.unbind(0))) if needed[4] else None,
        ]  # fmt: skip

    def _of_weight(self, of_gates: Tensor, states: Tensor, weight: Tensor) -> Tensor:
        """The sum over steps, the last one first, of their products."""
        batch, plan = of_gates.shape[1], self.products.choice.plan.of(len(weight))
        kept = self.dtype == torch.float32 and self.products.settings.store is None
        if kept and plan == ONE_CHAIN and tensorcore.sums_in_order(self.model):
            rest = -batch % self.model.k
            x, y = (pad(item.flip(0), (0, 0, 0, rest)).flatten(0, 1) for item in (of_gates, states))
            promoted = Plan(promote=batch + rest)  # each product from zero, added to one of FP32 that begins neutral
            result = tensorcore.multiply(self.model, self.rounded(x.t()), self.rounded(y), promoted, c=-0.0)
            if not np.isnan(result).any():  # whose bits are torch's
                return HOST.tensor(result)
        each = max(1, TOGETHER // weight.numel())

        def parts() -> Iterator[Tensor]:
            for end in range(len(states), 0, -each):
                some = slice(max(0, end - each), end)
                result = HOST.multiply(self.model, self.rounded(of_gates[some].mT), self.rounded(states[some]), plan)
                yield from reversed(self.products.stored(HOST.tensor(result), self.dtype).unbind(0))

        return _summed(parts())


def _parts(gates: Tensor) -> tuple[tuple[Tensor, ...], ...]:
    """The four gates (T, batch, hidden) of all (T, batch, 4 * hidden), step by step."""
    return tuple(item.unbind(0) for item in gates.unsafe_chunk(4, 2))


def _summed(parts: Iterator[Tensor]) -> Tensor:
    """One after the other, each sum stored."""
    total = next(parts).clone()
    for part in parts:
        total += part
    return total


class Steps(torch.autograd.Function):
    """The steps of a layer, ``given`` (T, batch, 4 * hidden) from the input: outputs and last states."""

    @staticmethod
    def forward(
        ctx: Any, core: Core, given: Tensor, h: Tensor, c: Tensor, weight: Tensor, bias: Maybe
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            states, cells, *rest = core.forward(given, h, c, weight, bias)
            ctx.core = core
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(given, h, c, weight, bias, states, cells, *rest)
            return states[1:].clone(), states[-1].clone(), cells[-1].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Maybe) -> tuple[Maybe, ...]:
        (given, h, c, weight, bias, *kept), core = ctx.saved_tensors, ctx.core
        needed = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled() or core.products.run.seen is not None:
            result = _apart(core, (given, h, c, weight, bias), grads, needed)
        else:
            with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
                core.model = core.products.model_of_rounded(given, given.dtype) or core.model  # by torch's flags now
                result = core.backward(*kept, weight, grads, needed)
        return None, *result


def _apart(core: Core, inputs: Sequence[Any], grads: Sequence[Maybe], needed: Sequence[bool]) -> list[Maybe]:
    """The gradients by autograd, from the steps taken apart once more; what they multiply is counted already."""
    run, wanted = core.products.run, [x for x, is_needed in zip(inputs, needed, strict=True) if is_needed]
    create, log = torch.is_grad_enabled(), run.log
    run.log = Log()
    try:
        with torch.enable_grad():
            given, h, c, weight, bias = inputs
            outputs = []
            for item in given.unbind(0):
                i, f, g, o = (linear(h, weight, bias) + item).chunk(4, 1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
                outputs.append(h)
            ends = zip((torch.stack(outputs), h, c), grads, strict=True)
            results = [(x, grad) for x, grad in ends if grad is not None]
    finally:
        run.log = log
    of, by = zip(*results, strict=True)
    result = iter(torch.autograd.grad(of, wanted, by, create_graph=create, allow_unused=True))
    return [next(result) if is_needed else None for is_needed in needed]


def lstm(products: Products, input: Tensor, hidden: Sequence[Tensor], weights: Sequence[Tensor], biases: bool,
         layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool) -> Any:  # fmt: skip
    """``torch.lstm`` of arguments that :func:`takes` says yes to; None where products are more than rounded."""
    model = products.model_of_rounded(input, input.dtype)
    if model is None:
        return None
    core = Core(products, model, input.dtype, biases)
    each = len(weights) // layers
    x, ends = input.transpose(0, 1) if batch_first else input, []
    for n, (h, c) in enumerate(zip(*(x.unbind(0) for x in hidden), strict=True)):
        of_input, of_state, *both = weights[n * each : (n + 1) * each]
        b_input, b_state = both or (None, None)
        x, *end = Steps.apply(core, linear(x, of_input, b_input), h, c, of_state, b_state)
        ends.append(end)
    h, c = (torch.stack(states) for states in zip(*ends, strict=True))
    return (x.transpose(0, 1) if batch_first else x), h, c

"""What the 8-bit optimizers share: where states live, and what a step does to one tensor."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ...codebooks import Codebook, rules
from ...codebooks.blockwise import block_count
from ...codebooks.rules import Rule
from ...codebooks.thresholds import ladder, plan
from ...errors import LabError
from ...kernels.optim8 import Coding, blockwise, first_bad, float32_states
from ...nn import bits
from ...threads import split
from ...words import part
from ..optimizers.base import LabOptimizer
from ..optimizers.options import OfTorch
from ..optimizers.programs import Program, Update, decayed, missing
from .distributed import as_dtensor, local_part
from .options import CHECKS, SIGNS, books_of

Array = np.ndarray[Any, Any]
Code = str | tuple[Codebook, Codebook]
STATE_BITS = "fplab_state_bits"  # the attribute of a parameter whose states stay in 32 bits


@lru_cache
def whole_program(update: Update, decay: str) -> tuple[Program, tuple[str, ...]]:
    """An update with its weight decay, and the names of its coefficients in the order in which they are read."""
    program = decayed(update.program, decay)
    return program, tuple(missing(program, ("weight", "gradient", *update.states)))


@lru_cache(maxsize=64)
def coding(book: Codebook, rule: Rule | None, keyed: bool) -> Coding:
    """A codebook as the kernels take it, seed 0; states hold ranks."""
    values = np.zeros(256, np.float32)
    values[: len(book)] = book.values
    return Coding(values, plan(book, rule, keyed), ladder(book), np.uint64(0))


def flat(tensor: Tensor) -> Array:
    return bits.array(tensor.detach().reshape(-1))


class Options(OfTorch, total=False):
    """What every 8-bit optimizer takes; see the module :mod:`~fplab.training.eight_bit.optimizers`."""

    block: int | None
    code: Code
    min_8bit_size: int
    state_bits: int
    sign: str
    decay: str | None
    rounding: str
    seed: int
    bad_gradients: str


class EightBit(LabOptimizer):
    """An optimizer whose states are 8-bit codes with a float32 scale for each block; use a subclass.

    Takes float32, float16 and bfloat16 parameters on the CPU; a 16-bit one is updated in float32 and rounded once to
    nearest. A tensor of fewer than ``min_8bit_size`` elements, or whose ``fplab_state_bits`` is 32 (as
    :class:`StableEmbedding` says of its weight), or in a group with ``state_bits=32``, keeps float32 states.
    Of a DTensor (FSDP2, tensor parallel) each process updates its part, whose blocks begin where the part begins: the
    bits are those of one process where parts are whole blocks, and ``torch.distributed.checkpoint`` then loads what it
    saved on any number of processes.

    Of ``state[p]``: ``step``; ``state1`` and ``state2``, uint8 of p's shape (float32 where they are 32-bit); and
    ``absmax1`` and ``absmax2``, float32 (blocks,).
    """

    kind: ClassVar[Update]
    decay: ClassVar[str] = "gradient"  # where weight decay goes unless an option says so
    checks = CHECKS
    fixed = ("update", "block", "codes")
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    demand = part("8-bit optimizers take float32, float16 and bfloat16 on the CPU")
    carried = ("codes",)

    def __init__(
        self, params: Iterable[Any], numbers: dict[str, Any], *, block: int | None = 2048, code: Code = "dynamic",
        min_8bit_size: int = 4096, state_bits: int = 8, sign: str = "kept", decay: str | None = None,
        rounding: str = "nearest", seed: int = 0, bad_gradients: str = "skip", maximize: bool = False,
        foreach: bool | None = None, fused: bool | None = None, **others: Any,
    ) -> None:  # fmt: skip
        self.codes = books_of(code)
        chosen = {
            "block": block, "min_8bit_size": min_8bit_size, "state_bits": state_bits, "sign": sign,
            "decay": self.decay if decay is None else decay, "rounding": rounding, "seed": seed,
            "bad_gradients": bad_gradients, "maximize": maximize,
            "update": self.kind.name, "codes": self._digests(),
        }  # fmt: skip
        super().__init__(params, {**numbers, **chosen}, others)

    def _digests(self) -> tuple[str, ...]:
        """What says in a saved state which codebooks it was made with."""
        return tuple(book.sha256 for book in self.codes)

    def _adopt(self, group: dict[str, Any]) -> None:
        if "code" in group or group["codes"] != self._digests():
            raise LabError("code is the whole optimizer's, not a group's; make another optimizer for these parameters.")

    def _shaped(self, group: dict[str, Any]) -> tuple[str, ...]:
        return tuple(f"state{name}" for name in self.kind.numbers)

    def _mismatch(self, name: str, saved: Any, own: Any) -> str:
        if name == "update":
            return part(f"is of {saved}, this optimizer of {own}.")
        if name == "codes":
            return part("was made with other codebooks; make the optimizer with the same code.")
        return super()._mismatch(name, saved, own)

    # --- saving and loading ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The states by parameter, and the groups; of a DTensor the states are DTensors, as checkpoints want them."""
        return self._with_states(super().state_dict(), as_dtensor)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state, of this way of spreading parameters over processes or from a checkpoint's."""
        known = isinstance(state_dict, dict) and isinstance(state_dict.get("state"), dict)
        super().load_state_dict(self._with_states(state_dict, local_part) if known else state_dict)

    def _with_states(self, saved: dict[str, Any], change: Callable[..., Any]) -> dict[str, Any]:
        """A state dictionary with the states of DTensors changed."""
        state = dict(saved["state"])
        for group, own in zip(saved.get("param_groups", ()), self.param_groups, strict=False):
            for index, p in zip(group["params"], own["params"], strict=False):
                if hasattr(p, "to_local") and index in state:
                    each = state[index].items()
                    state[index] = {
                        name: change(p, name, x, own["block"]) if isinstance(x, Tensor) else x for name, x in each
                    }
        return {**saved, "state": state}

    # --- a step ---------------------------------------------------------------------------------------------------

    def _demand_usable(self, gradient: Tensor, group: dict[str, Any], place: int) -> None:
        if group["bad_gradients"] == "error":
            g = flat(gradient.detach().to(torch.float32).contiguous())
            if (at := first_bad(g)) >= 0:
                raise LabError(f"element {at} of the gradient of parameter {place} is {float(g[at])!r}.")

    def _update(self, p: Tensor, gradient: Tensor, number: int, place: int) -> None:
        """Update one parameter by its gradient, in place if it is contiguous float32, else through a copy."""
        whole, p, gradient = p, bits.local(p), bits.local(gradient)  # one object where nothing is spread over processes
        weight, slope = (x.detach().to(torch.float32).contiguous() for x in (p, gradient))
        w, g = flat(weight), flat(slope)
        group, state = self.param_groups[number], self.state[whole]
        if not state:
            self._start(whole, state, group)
        self._demand_fitting(p, state, group, place)
        state["step"] += 1
        coefficients = self.coefficients({**group, "lr": float(group["lr"])}, state["step"])
        program, names = whole_program(self.kind, group["decay"] if group["weight_decay"] else "")
        numbers = tuple(np.float32(coefficients[name]) for name in names)
        none = np.empty(0, np.uint8)
        states = {name: flat(state[f"state{name}"]) for name in self.kind.numbers}
        if state[f"state{self.kind.numbers[0]}"].dtype == torch.float32:
            spare = np.zeros_like(w) if len(states) < 2 else w
            kernel = float32_states(program, self.kind.states, names)
            kernel(w, g, states.get("1", spare), states.get("2", spare), numbers)
        else:
            scales = {name: flat(state[f"absmax{name}"]) for name in self.kind.numbers}
            how, codings = self._codings(group, state["step"], place)
            kernel = blockwise(program, self.kind.states, names, how)
            block = group["block"] or max(w.size, 1)

            def run(a: int, b: int) -> None:
                m, v = (states[n][a:b] if n in states else none for n in "12")
                s, t = (scales[n][a // block :] if n in scales else none.view(np.float32) for n in "12")
                kernel(w[a:b], g[a:b], m, v, s, t, block, *codings, numbers, a)

            split(run, w.size, unit=block)
        if weight.data_ptr() != p.data_ptr():
            p.copy_(weight)

    def _start(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """States of zero: code and scale 0, which read as 0 whatever the codebook."""
        whole = group["state_bits"] == 32 or getattr(p, STATE_BITS, 8) == 32 or p.numel() < group["min_8bit_size"]
        shape, n = bits.local(p).shape, bits.local(p).numel()
        state["step"] = 0
        for name in self.kind.numbers:
            state[f"state{name}"] = torch.zeros(shape, dtype=torch.float32 if whole else torch.uint8)
            if not whole:
                state[f"absmax{name}"] = torch.zeros(block_count(n, group["block"] or max(n, 1)), dtype=torch.float32)

    def _demand_fitting(self, p: Tensor, state: dict[str, Any], group: dict[str, Any], place: int) -> None:
        """An error unless states and scales are those of such a tensor in such blocks: kernels trust their sizes."""
        for name in self.kind.numbers:
            codes = state.get(f"state{name}")
            if codes is None or codes.shape != p.shape:
                raise LabError(
                    f"state {name} of parameter {place} has shape {None if codes is None else tuple(codes.shape)}, the "
                    f"parameter {tuple(p.shape)}; a parameter that was resized needs a new optimizer."
                )
            if codes.dtype not in (torch.uint8, torch.float32):
                raise LabError(
                    f"state {name} of parameter {place} is {codes.dtype}; it is torch.uint8 or torch.float32."
                )
            count, scales = block_count(p.numel(), group["block"] or max(p.numel(), 1)), state.get(f"absmax{name}")
            if codes.dtype == torch.uint8 and (scales is None or scales.numel() != count):
                raise LabError(
                    f"state {name} of parameter {place} has {0 if scales is None else scales.numel()} scales, and "
                    f"blocks of {group['block']} need {count}; the block size of a state cannot change."
                )

    def _codings(self, group: dict[str, Any], step: int, place: int) -> tuple[tuple[str, bool], list[Coding]]:
        """How states are stored, and the codebooks with this step's seeds."""
        stochastic, sign = group["rounding"] == "stochastic", SIGNS[group["sign"]]
        how = [None if stochastic else sign if book.signed else rules.EVEN for book in self.codes]
        used = zip(self.codes, how, self.kind.states, strict=True)
        keyed = all(plan(book, rule).keyed for book, rule, state in used if state)
        codings = [coding(book, rule, keyed) for book, rule in zip(self.codes, how, strict=True)]
        if stochastic:
            codings = [c._replace(seed=np.uint64(self._seed(group, step, place, i))) for i, c in enumerate(codings)]
        return (group["rounding"], keyed), codings

    def coefficients(self, group: dict[str, Any], step: int) -> dict[str, float]:
        """The numbers in its program at a step (from 1), in Python floats; each is rounded once to float32."""
        return {"weight_decay": group["weight_decay"], "keep": 1 - group["lr"] * group["weight_decay"],
                "minus_lr": -group["lr"]}  # fmt: skip

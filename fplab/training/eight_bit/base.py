"""What the 8-bit optimizers share: where states live, what a step does to one tensor, saving and loading."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch

from ...codebooks import Codebook, rules
from ...codebooks.blockwise import block_count
from ...codebooks.thresholds import floors, padded, plan, thresholds
from ...errors import LabError, quotes_class
from ...kernels.optim8 import BLOCKWISE, WHOLE, Coding, Numbers, first_bad
from ...threads import split
from ..optimizers.precision import parameters
from .options import MASK, SIGNS, books_of, checked

Array = np.ndarray[Any, Any]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
STATE_BITS = "fplab_state_bits"  # the attribute of a parameter whose states stay in 32 bits


@dataclass(frozen=True)
class States:
    """Which states an update has: the first (signed), the second (never negative)."""

    update: str
    first: bool
    second: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Their numbers as in the state dictionary."""
        return ("1",) * self.first + ("2",) * self.second


def mixed(*parts: int) -> int:
    """64 bits that depend on every part: splitmix64 of each in turn."""
    z = 0
    for part in parts:
        z = (z + part + 0x9E3779B97F4A7C15) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        z ^= z >> 31
    return z


@lru_cache(maxsize=64)
def coding(book: Codebook, sign: str, keyed: bool, seed: int) -> Coding:
    """A codebook as the kernels take it; states hold ranks."""
    rule = SIGNS[sign] if book.signed else rules.EVEN
    values = np.zeros(256, np.float32)
    values[: len(book)] = book.values
    how = plan(book, rule)
    table = how.table if keyed else padded(thresholds(book, rule))
    last = np.uint32(len(book) - 1)
    return Coding(values, table, how.low, how.shift, how.offset, padded(floors(book)), last, np.uint64(seed))


def keyed(book: Codebook, sign: str) -> bool:
    """Whether ranks of a codebook are found by key."""
    return plan(book, SIGNS[sign] if book.signed else rules.EVEN).keyed


def flat(tensor: torch.Tensor) -> Array:
    """A contiguous CPU tensor's memory as a flat array."""
    array: Array = tensor.detach().reshape(-1).numpy()
    return array


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy on the CPU, which kernels can write to."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def demand_taken(p: torch.Tensor) -> None:
    """An error for a parameter of another dtype or device than those that kernels take."""
    if p.dtype not in DTYPES or p.device.type != "cpu":
        raise LabError(
            f"a parameter is {str(p.dtype).removeprefix('torch.')} on {str(p.device)!r}; 8-bit optimizers take "
            "float32, float16 and bfloat16 on the CPU."
        )


def demand_usable(gradient: torch.Tensor, place: int, bad: str) -> None:
    """An error for a sparse gradient, and if ``bad`` is "error" for one with a NaN or infinity."""
    if gradient.is_sparse:
        raise LabError("a gradient is sparse, which 8-bit states do not take; use sparse=False in the embedding.")
    if bad == "error":
        g = flat(gradient.detach().to(torch.float32).contiguous())
        if (at := first_bad(g)) >= 0:
            raise LabError(f"element {at} of the gradient of parameter {place} is {float(g[at])!r}.")


class EightBit(torch.optim.Optimizer):
    """An optimizer whose states are 8-bit codes with a float32 scale for each block; use a subclass.

    Takes float32, float16 and bfloat16 parameters on the CPU; a 16-bit one is updated in float32 and rounded once to
    nearest. A tensor of fewer than ``min_8bit_size`` elements, or whose ``fplab_state_bits`` is 32 (as
    :class:`StableEmbedding` says of its weight), or in a group with ``state_bits=32``, keeps float32 states.

    Of ``state[p]``: ``step``; ``state1`` and ``state2``, uint8 of p's shape (float32 where they are 32-bit); and
    ``absmax1`` and ``absmax2``, float32 (blocks,).
    """

    kind: ClassVar[States]

    def __init_subclass__(cls) -> None:
        quotes_class(cls)

    def __init__(
        self,
        params: Iterable[Any],
        numbers: dict[str, Any],
        *,
        block: int | None,
        code: str | tuple[Codebook, Codebook],
        min_8bit_size: int,
        state_bits: int,
        sign: str,
        decay: str,
        rounding: str,
        seed: int,
        bad_gradients: str,
    ) -> None:
        self.codes = books_of(code)
        defaults = {
            **numbers, "block": block, "min_8bit_size": min_8bit_size, "state_bits": state_bits, "sign": sign,
            "decay": decay, "rounding": rounding, "seed": seed, "bad_gradients": bad_gradients,
        }  # fmt: skip
        super().__init__(
            parameters(params), {**checked(defaults), "update": self.kind.update, "codes": self._digests()}
        )

    def _digests(self) -> tuple[str, ...]:
        """What says in a saved state which codebooks it was made with."""
        return tuple(book.sha256 for book in self.codes)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's, with options of its own but ``code``, which is the whole optimizer's; refused: what cannot be."""
        if not isinstance(param_group, dict):
            raise LabError(f'a parameter group is a {type(param_group).__name__}; it is a dict, {{"params": ...}}.')
        param_group.update(checked(param_group))
        if "code" in param_group or param_group.get("codes", self._digests()) != self._digests():
            raise LabError("code is the whole optimizer's, not a group's; make another optimizer for these parameters.")
        super().add_param_group(param_group)
        try:
            for p in self.param_groups[-1]["params"]:
                demand_taken(p)
        except LabError:
            self.param_groups.pop()
            raise

    # --- a step ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient; returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        everything = enumerate((group, p) for group in self.param_groups for p in group["params"])
        moving = [(place, group, p, p.grad) for place, (group, p) in everything if p.grad is not None]
        for place, group, p, slope in moving:  # before the first parameter moves
            demand_taken(p)
            demand_usable(slope, place, group["bad_gradients"])
        for place, group, p, slope in moving:
            self._update(p, slope, group, place)
        return loss

    def _update(self, p: torch.Tensor, slope: torch.Tensor, group: dict[str, Any], place: int) -> None:
        """Update one parameter by its gradient, in place if it is contiguous float32, else through a copy."""
        weight, slope = (x.detach().to(torch.float32).contiguous() for x in (p, slope))
        w, g = flat(weight), flat(slope)
        state = self.state[p]
        if not state:
            self._start(p, state, group)
        self._demand_fitting(p, state, group, place)
        state["step"] += 1
        numbers = self.numbers({**group, "lr": float(group["lr"])}, state["step"])
        couples = group["decay"] == "gradient" and group["weight_decay"] != 0
        none = np.empty(0, np.uint8)
        held = {name: flat(state[f"state{name}"]) for name in self.kind.names}
        if state[f"state{self.kind.names[0]}"].dtype == torch.float32:
            spare = np.zeros_like(w) if len(held) < 2 else w
            WHOLE[self.kind.update, couples](w, g, held.get("1", spare), held.get("2", spare), numbers)
        else:
            scales = {name: flat(state[f"absmax{name}"]) for name in self.kind.names}
            how, codings = self._codings(group, state["step"], place)
            kernel = BLOCKWISE[self.kind.update, couples, how]
            block = group["block"] or max(w.size, 1)

            def run(a: int, b: int) -> None:
                m, v = (held[n][a:b] if n in held else none for n in "12")
                s, t = (scales[n][a // block :] if n in scales else none.view(np.float32) for n in "12")
                kernel(w[a:b], g[a:b], m, v, s, t, block, *codings, numbers, a)

            split(run, w.size, unit=block)
        if weight.data_ptr() != p.data_ptr():
            p.copy_(weight)

    def _start(self, p: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """States of zero: code and scale 0, which read as 0 whatever the codebook."""
        n = p.numel()
        whole = group["state_bits"] == 32 or getattr(p, STATE_BITS, 8) == 32 or n < group["min_8bit_size"]
        state["step"] = 0
        for name in self.kind.names:
            state[f"state{name}"] = torch.zeros(p.shape, dtype=torch.float32 if whole else torch.uint8)
            if not whole:
                state[f"absmax{name}"] = torch.zeros(block_count(n, group["block"] or max(n, 1)), dtype=torch.float32)

    def _demand_fitting(self, p: torch.Tensor, state: dict[str, Any], group: dict[str, Any], place: int) -> None:
        """An error unless states and scales are those of such a tensor in such blocks: kernels trust their sizes."""
        for name in self.kind.names:
            held = state.get(f"state{name}")
            if held is None or held.shape != p.shape:
                raise LabError(
                    f"state {name} of parameter {place} has shape {None if held is None else tuple(held.shape)}, the "
                    f"parameter {tuple(p.shape)}; a parameter that was resized needs a new optimizer."
                )
            if held.dtype not in (torch.uint8, torch.float32):
                raise LabError(
                    f"state {name} of parameter {place} is {held.dtype}; it is torch.uint8 or torch.float32."
                )
            count, scales = block_count(p.numel(), group["block"] or max(p.numel(), 1)), state.get(f"absmax{name}")
            if held.dtype == torch.uint8 and (scales is None or scales.numel() != count):
                raise LabError(
                    f"state {name} of parameter {place} has {0 if scales is None else scales.numel()} scales, and "
                    f"blocks of {group['block']} need {count}; the block size of a state cannot change."
                )

    def _codings(self, group: dict[str, Any], step: int, place: int) -> tuple[str, list[Coding]]:
        """How states are stored, and the codebooks with this step's seeds."""
        if group["rounding"] == "stochastic":
            words = [mixed(group["seed"], step, place, number) for number in (1, 2)]
            books = [coding(book, group["sign"], False, 0) for book in self.codes]
            return "stochastic", [b._replace(seed=np.uint64(w)) for b, w in zip(books, words, strict=True)]
        used = [book for book, has in zip(self.codes, (self.kind.first, self.kind.second), strict=True) if has]
        by_key = all(keyed(book, group["sign"]) for book in used)
        return "keyed" if by_key else "searched", [coding(b, group["sign"], by_key, 0) for b in self.codes]

    def numbers(self, group: dict[str, Any], step: int) -> Numbers:
        """What the kernels multiply with in this step, each computed in float64 and rounded once to float32."""
        raise NotImplementedError

    # --- saving and loading ---------------------------------------------------------------------------------------

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, without casting the states to the parameters' dtype.

        Raises LabError, and leaves the optimizer as it was, for a state_dict of another kind of optimizer, block size
        or codebook, or of parameters of other shapes.
        """
        groups = self._demand_like(state_dict)
        names = [name for group in groups for name in group["params"]]
        parameters = [p for group in self.param_groups for p in group["params"]]
        for place, (name, p) in enumerate(zip(names, parameters, strict=False)):
            held = state_dict["state"].get(name)
            if held and held[f"state{self.kind.names[0]}"].shape != p.shape:
                raise LabError(
                    f"the state_dict's parameter {place} has shape {tuple(held[f'state{self.kind.names[0]}'].shape)}, "
                    f"this optimizer's {tuple(p.shape)}; it is of another model."
                )
        super().load_state_dict(state_dict)
        for name, p in zip(names, parameters, strict=True):
            if name in state_dict["state"]:
                held = state_dict["state"][name]
                self.state[p] = {k: copied(v) if isinstance(v, torch.Tensor) else v for k, v in held.items()}

    def _demand_like(self, state_dict: Any) -> list[dict[str, Any]]:
        """The groups of a state_dict, if an optimizer of this kind with these blocks and codebooks made it."""
        groups = state_dict.get("param_groups") if isinstance(state_dict, dict) else None
        if groups is None or any("block" not in group or "update" not in group for group in groups):
            raise LabError("this is no state_dict of an 8-bit optimizer; pass what optimizer.state_dict() returned.")
        for mine, theirs in zip(self.param_groups, groups, strict=False):
            if theirs["update"] != self.kind.update:
                raise LabError(f"the state_dict is of {theirs['update']}, this optimizer of {self.kind.update}.")
            if mine["block"] != theirs["block"]:
                raise LabError(
                    f"the state_dict has blocks of {theirs['block']}, this optimizer of {mine['block']} (None: the "
                    f"whole tensor); make it with block={theirs['block']}."
                )
            if tuple(mine["codes"]) != tuple(theirs["codes"]):
                raise LabError("the state_dict was made with other codebooks; make the optimizer with the same code.")
        return list(groups)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "codes": self.codes}

    def state_bytes(self) -> int:
        """Bytes of all states and their scales."""
        return sum(
            value.numel() * value.element_size()
            for state in self.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor)
        )

"""What the 8-bit optimizers share: where states live, what a step does to one tensor, saving and loading."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch

from ... import codebooks
from ...codebooks import Codebook, rules
from ...codebooks.blockwise import block_count
from ...codebooks.thresholds import floors, padded, plan, thresholds
from ...errors import LabError, integer, unknown
from ...kernels.optim8 import BLOCKWISE, WHOLE, Coding, Numbers, first_bad
from ...threads import split

Array = np.ndarray[Any, Any]
CODES = {"dynamic": codebooks.dynamic, "linear": codebooks.linear}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
DECAYS = ("gradient", "before", "after")
SIGNS = {"kept": rules.SIGN, "nearest": rules.EVEN}
ROUNDINGS = ("nearest", "stochastic")
BAD_GRADIENTS = ("skip", "error")
STATE_BITS = "fplab_state_bits"  # the attribute of a parameter whose states stay in 32 bits
MASK = (1 << 64) - 1


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


class EightBit(torch.optim.Optimizer):
    """An optimizer whose states are 8-bit codes with a float32 scale for each block; use a subclass.

    Takes float32, float16 and bfloat16 parameters on the CPU; a 16-bit one is updated in float32 and rounded once to
    nearest. A tensor of fewer than ``min_8bit_size`` elements, or whose ``fplab_state_bits`` is 32 (as
    :class:`StableEmbedding` says of its weight), or in a group with ``state_bits=32``, keeps float32 states.

    Of ``state[p]``: ``step``; ``state1`` and ``state2``, uint8 of p's shape (float32 where they are 32-bit); and
    ``absmax1`` and ``absmax2``, float32 (blocks,).
    """

    kind: ClassVar[States]

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
        self.codes = _books(code)
        for name, value, allowed in (
            ("sign", sign, tuple(SIGNS)),
            ("decay", decay, DECAYS),
            ("rounding", rounding, ROUNDINGS),
            ("bad_gradients", bad_gradients, BAD_GRADIENTS),
        ):
            if value not in allowed:
                raise unknown(name, value, allowed)
        if state_bits not in (8, 32):
            raise LabError(f"state_bits={state_bits!r} is not possible; allowed: 8, 32.")
        _check(numbers)
        super().__init__(
            params,
            {
                **numbers,
                "block": 0 if block is None else integer("block", block, 1, 1 << 40),
                "codes": tuple(book.sha256 for book in self.codes),
                "min_8bit_size": integer("min_8bit_size", min_8bit_size, 0, 1 << 62),
                "state_bits": state_bits,
                "sign": sign,
                "decay": decay,
                "rounding": rounding,
                "seed": integer("seed", seed, 0, MASK),
                "bad_gradients": bad_gradients,
            },
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's; a parameter that the kernels cannot take is refused."""
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            if p.dtype not in DTYPES or p.device.type != "cpu":
                raise LabError(
                    f"a parameter is {str(p.dtype).removeprefix('torch.')} on {str(p.device)!r}; 8-bit optimizers take "
                    "float32, float16 and bfloat16 on the CPU."
                )

    # --- a step ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient; returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        place = 0
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, group, place)
                place += 1
        return loss

    def _update(self, p: torch.Tensor, group: dict[str, Any], place: int) -> None:
        """Update one parameter, in place if it is contiguous float32, else through a copy."""
        if p.grad is None or p.grad.is_sparse:
            raise LabError("a gradient is sparse, which 8-bit states do not take; use sparse=False in the embedding.")
        weight = p.detach().to(torch.float32).contiguous()
        slope = p.grad.detach().to(torch.float32).contiguous()
        w, g = flat(weight), flat(slope)
        if group["bad_gradients"] == "error" and (at := first_bad(g)) >= 0:
            raise LabError(f"element {at} of the gradient of parameter {place} is {float(g[at])!r}.")
        state = self.state[p]
        if not state:
            self._start(p, state, group)
        state["step"] += 1
        numbers = self.numbers(group, state["step"])
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
        """As torch's, without casting the states to the parameters' dtype; another block or codebook is refused."""
        groups = state_dict["param_groups"]
        for mine, theirs in zip(self.param_groups, groups, strict=False):
            if mine["block"] != theirs.get("block"):
                raise LabError(
                    f"the state_dict has blocks of {theirs.get('block')}, this optimizer of {mine['block']} (0: the "
                    f"whole tensor); make it with block={theirs.get('block') or None}."
                )
            if tuple(mine["codes"]) != tuple(theirs["codes"]):
                raise LabError("the state_dict was made with other codebooks; make the optimizer with the same code.")
        super().load_state_dict(state_dict)
        names = [name for group in groups for name in group["params"]]
        parameters = [p for group in self.param_groups for p in group["params"]]
        for name, p in zip(names, parameters, strict=True):
            if name in state_dict["state"]:
                held = state_dict["state"][name]
                self.state[p] = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in held.items()}

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


def _books(code: str | tuple[Codebook, Codebook]) -> tuple[Codebook, Codebook]:
    """The codebooks of the signed and of the unsigned state."""
    if isinstance(code, str):
        if code not in CODES:
            raise unknown("code", code, CODES)
        return CODES[code](signed=True), CODES[code](signed=False)
    pair = tuple(code) if isinstance(code, tuple | list) else (code,)
    if len(pair) != 2 or not all(isinstance(book, Codebook) for book in pair):
        raise LabError("code is two Codebooks, of the signed and of the unsigned state, or one of: dynamic, linear.")
    if not pair[0].signed:
        raise LabError(f"{pair[0].name} has no negative values, and the first state of an optimizer needs them.")
    return pair


def _check(numbers: dict[str, Any]) -> None:
    """Ranges of the hyperparameters."""
    for name, value in numbers.items():
        if name == "betas":
            if not all(0 <= beta < 1 for beta in value):
                raise LabError(f"betas={value!r}; each is allowed from 0 to below 1.")
        elif name == "momentum":
            if not 0 <= value < 1:
                raise LabError(f"momentum={value!r}; allowed: from 0 to below 1.")
        elif not 0 <= value < float("inf"):
            raise LabError(f"{name}={value!r}; allowed: 0 and more.")

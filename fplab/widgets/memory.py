"""The memory and ZeRO calculator: where the bytes of a training run go on the fullest rank, kind by kind."""

import functools
from dataclasses import asdict, dataclass, replace

from .. import memory
from ..draw.memory import bars_scene
from ..draw.page import Said, bracketed, facts, note, panel, table, title
from ..memory import Estimate, words
from ..memory.activations import RECOMPUTE
from ..words import say, say_of
from .shell import Control, shown

KINDS = {kind: name for kind, name in words.KINDS.items() if kind != "kv cache"}  # of training
CARDS = {"": 0, "24 GB": 24, "40 GB": 40, "80 GB": 80, "141 GB": 141, "192 GB": 192}


@dataclass(frozen=True)
class State:
    """The options of :func:`fplab.memory.estimate` that are moved, and ``card``: the memory of a GPU to hold it to."""

    model: str = "llama3-8b"
    gpus: int = 8
    zero: int = 3
    tensor: int = 1
    pipeline: int = 1
    micro_batch: int = 1
    precision: str = "mixed"
    optimizer: str = "adamw"
    recompute: str = "none"
    card: str = "80 GB"


@functools.lru_cache(maxsize=64)
def estimated(state: State) -> Estimate:
    """The estimate of a state."""
    options = asdict(state)
    model, _ = options.pop("model"), options.pop("card")
    return memory.estimate(model, **options)


def render(state: State) -> str:
    """A bar for each stage of ZeRO, that which was chosen marked, and its bytes by kind."""
    estimates = [estimated(replace(state, zero=zero)) for zero in range(4)]
    chosen = estimates[state.zero]
    rank = chosen.fullest
    bars = {f"ZeRO-{zero}": dict(e.fullest.device) for zero, e in enumerate(estimates)}
    capacity = CARDS[state.card] * 10**9
    fits: Said = ""
    if capacity:
        fits = say("✓ fits") if chosen.total <= capacity else say("✗ does not fit")
    rows = [(str(KINDS.get(kind, kind)), f"{n:,}", f"{n / 1e9:,.2f}") for kind, n in rank.device.items()]
    rows.append((str(say("total")), f"{rank.total:,}", f"{rank.total / 1e9:,.2f}"))
    lines: list[tuple[Said, Said]] = [
        (say_of("memory", "parameters"), f"{chosen.parameters:,}"),
        (say("data-parallel ranks"), f"{chosen.options.data}"),
        (say("sent by a rank in a step"), f"{rank.sent / 1e9:,.2f} GB"),
        *([(state.card, fits)] if fits else []),
    ]
    head, whole = say("fullest rank"), f"{rank.total / 1e9:,.2f} GB"
    return panel(title(f"{state.model}, {state.gpus} GPU, ZeRO-{state.zero}: {bracketed(whole, head)} {fits}"),
                 bars_scene(bars, [CARDS[state.card]] * bool(capacity), f"ZeRO-{state.zero}", KINDS).svg(),
                 table([say("kind"), say("bytes"), "GB"], rows), facts(lines),
                 note(say("GB: 10⁹ bytes. Computed, not measured.")))  # fmt: skip


CONTROLS = (
    Control("model", say("model"), options=tuple(memory.PRESETS)),
    Control("gpus", say("GPUs"), options=tuple(2**i for i in range(13))),
    Control("zero", say("ZeRO"), low=0, high=3),
    Control("tensor", say("tensor parallel"), options=(1, 2, 4, 8)),
    Control("pipeline", say("pipeline stages"), options=(1, 2, 4, 8, 16)),
    Control("micro_batch", say("sequences"), low=1, high=16),
    Control("precision", say("precision"), options=tuple(memory.PRECISIONS)),
    Control("optimizer", say("optimizer"), options=tuple(memory.OPTIMIZERS)),
    Control("recompute", say("recompute"), options=tuple(RECOMPUTE)),
    Control("card", say("a GPU of"), options=tuple(CARDS)),
)


@shown(State, render, CONTROLS)
def widget(state: State) -> None:
    """The memory calculator. Raises LabError for what cannot be run; later wishes are refused in the picture."""
    estimated(state)

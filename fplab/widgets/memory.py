"""The memory and ZeRO calculator: where the bytes of a training run go on the fullest rank, kind by kind."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from .. import memory
from ..draw.memory import bars_scene
from ..draw.page import bracketed, facts, note, panel, say, table, title
from ..errors import quotes_call
from ..language import Text
from ..memory import Estimate, words
from ..memory.activations import RECOMPUTE
from .shell import Board, Control

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


def estimated(state: State, zero: int | None = None) -> Estimate:
    """The estimate of a state, or of the same with another stage of ZeRO."""
    options = asdict(state)
    model, _ = options.pop("model"), options.pop("card")
    if zero is not None:
        options["zero"] = zero
    return memory.estimate(model, **options)


def render(state: State) -> str:
    """A bar for each stage of ZeRO, that which was chosen marked, and its bytes by kind."""
    found = [estimated(state, zero) for zero in range(4)]
    chosen = found[state.zero]
    rank = chosen.fullest
    bars = {f"ZeRO-{zero}": dict(e.fullest.device) for zero, e in enumerate(found)}
    capacity = CARDS[state.card] * 10**9
    fits = ""
    if capacity:
        fits = say("✓ fits", "✓ 放得下") if chosen.total <= capacity else say("✗ does not fit", "✗ 放不下")
    rows = [(str(KINDS.get(kind, kind)), f"{n:,}", f"{n / 1e9:,.2f}") for kind, n in rank.device.items()]
    rows.append((say("total", "合计"), f"{rank.total:,}", f"{rank.total / 1e9:,.2f}"))
    lines = [
        (say("parameters", "参数量"), f"{chosen.parameters:,}"),
        (say("data-parallel ranks", "数据并行数"), f"{chosen.options.data}"),
        (say("sent by a rank in a step", "每步每卡发送"), f"{rank.sent / 1e9:,.2f} GB"),
        *([(state.card, fits)] if fits else []),
    ]
    head, whole = say("fullest rank", "占用最多的一张卡"), f"{rank.total / 1e9:,.2f} GB"
    return panel(
        title(f"{state.model}, {state.gpus} GPU, ZeRO-{state.zero}: {bracketed(whole, head)} {fits}"),
        bars_scene(bars, [CARDS[state.card]] * bool(capacity), f"ZeRO-{state.zero}", KINDS).svg(),
        table([say("kind", "种类"), say("bytes", "字节"), "GB"], rows),
        facts(lines),
        note(say("GB: 10⁹ bytes. Computed, not measured.", "GB：10⁹ 字节。为计算值，非实测。")),
    )


CONTROLS = (
    Control("model", Text("model", "模型"), options=tuple(memory.PRESETS)),
    Control("gpus", Text("GPUs", "GPU 数"), options=tuple(2**i for i in range(13))),
    Control("zero", Text("ZeRO", "ZeRO"), low=0, high=3),
    Control("tensor", Text("tensor parallel", "张量并行"), options=(1, 2, 4, 8)),
    Control("pipeline", Text("pipeline stages", "流水线阶段数"), options=(1, 2, 4, 8, 16)),
    Control("micro_batch", Text("sequences", "序列数"), low=1, high=16),
    Control("precision", Text("precision", "精度"), options=tuple(memory.PRECISIONS)),
    Control("optimizer", Text("optimizer", "优化器"), options=tuple(memory.OPTIMIZERS)),
    Control("recompute", Text("recompute", "重计算"), options=tuple(RECOMPUTE)),
    Control("card", Text("a GPU of", "单卡显存"), options=tuple(CARDS)),
)


@quotes_call
def widget(model: str = "llama3-8b", gpus: int = 8, zero: int = 3) -> Board:
    """The memory calculator. Raises LabError for what cannot be run; later wishes are refused in the picture."""
    state = State(model, gpus, zero)
    estimated(state)
    return Board(state, render, CONTROLS)

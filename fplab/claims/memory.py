"""Claims about the memory of a run: bytes of states, shares of a total, cards for a large model, recomputation."""

from collections.abc import Iterator
from typing import Any

from ..memory import activations, estimate, preset
from ..memory.units import GIB
from ..words import LIST, Text, joined, mark, say, say_of
from .base import Part, beside, equal, part, tries

BILLION = 10**9
BLOOM = 176 * BILLION
CARD = 80 * BILLION  # bytes of an A100 or H100
STATES = ("parameters", "gradients", "master", "states")


def device(model: Any, **options: Any) -> dict[str, int]:
    return dict(estimate(model, **options).fullest.device)


def gb(bytes_: float) -> str:
    return f"{bytes_ / BILLION:,.1f} GB"


@tries("per-billion")
def per_billion() -> Iterator[Part]:
    """Weights and Adam's states of a billion parameters."""
    weights = {f: estimate("bloom-176b", inference=f) for f in ("fp32", "fp16", "int8")}
    each = {f: e.fullest.device["parameters"] / e.parameters for f, e in weights.items()}
    states = device(BILLION, precision="fp32")["states"] / BILLION
    wanted = {"fp32": 4, "fp16": 2, "int8": 1}
    for f, w in wanted.items():
        size, near = f"{each[f]:.2f}", abs(each[f] / w - 1) < 0.03
        yield part(say("{n}: GB a billion parameters", n=f.upper()), str(w), size, near)
    yield equal(say("AdamW's two FP32 states: bytes a parameter"), 8.0, states)


@tries("one-one-two")
def one_one_two() -> Iterator[Part]:
    """Model, gradients and states in units of the model, in FP32 and in mixed precision."""
    for name, label in (("fp32", "FP32"), ("mixed", say_of("precision", "mixed"))):
        bytes_by_kind = device(BILLION, precision=name)
        ratio = [
            sum(bytes_by_kind[k] for k in kinds) / bytes_by_kind["parameters"]
            for kinds in (("parameters",), ("gradients",), ("master", "states"))
        ]
        yield part(say("model : gradients : Adam, {precision}", precision=label), "1 : 1 : 2",
                   " : ".join(f"{r:g}" for r in ratio), ratio == [1, 1, 2], ratio[:2] == [1, 1])  # fmt: skip


@tries("six-billion")
def six_billion() -> Iterator[Part]:
    """Six billion parameters in FP32, in both units."""
    bytes_ = device(6 * BILLION, precision="fp32")["parameters"]
    sizes = f"{bytes_ / GIB:.2f} GiB = {bytes_ / BILLION:g} GB"
    yield part(say("6e9 parameters of 4 bytes"), "22 GB", sizes, f"{bytes_ / BILLION:.0f}" == "22",
               f"{bytes_ / GIB:.0f}" == "22")  # fmt: skip


@tries("bloom-bytes")
def bloom_bytes() -> Iterator[Part]:
    e = estimate("bloom-176b", inference="bf16")
    yield part(say("176 billion parameters of 2 bytes, by its layers"), "352 GB", gb(2 * e.parameters),
               f"{2 * e.parameters / BILLION:.0f}" == "352")  # fmt: skip


@tries("bloom-cards")
def bloom_cards() -> Iterator[Part]:
    """How many cards weights alone take, and model states."""
    weights, states = cards(2 * BLOOM), cards(sum(device(BLOOM, precision="mixed").values()))
    left = 8 * CARD - 2 * BLOOM
    yield part(say("cards for inference"), "8",
               say("{weights} hold the weights; 8 leave {n} for keys and values", weights=weights, n=gb(left)),
               weights == 8, weights < 8)  # fmt: skip
    yield part(say("cards to fine-tune with Adam"), "72",
               say("{states} hold the states; 72 leave {n}", states=states, n=gb(72 * CARD - 16 * BLOOM)), states == 72,
               states < 72)  # fmt: skip


def cards(bytes_: int) -> int:
    return -(-bytes_ // CARD)


def settings() -> Iterator[dict[str, int]]:
    """Bytes by kind of many training settings."""
    for model in ("gpt2", "gpt2-xl", "gpt3", "llama3-8b"):
        for precision in ("fp32", "mixed", "amp"):
            for optimizer in ("sgd", "adamw"):
                for batch in (1, 2, 4, 8, 16, 32, 64):
                    yield device(model, precision=precision, optimizer=optimizer, micro_batch=batch)


def shares(by_kind: dict[str, int], *kinds: str) -> float:
    """What kinds take of parameters, gradients, states and activations."""
    whole = sum(by_kind.get(k, 0) for k in (*STATES, "activations"))
    return sum(by_kind.get(k, 0) for k in kinds) / whole


@tries("training-shares")
def training_shares() -> Iterator[Part]:
    """Shares of the total, over many settings, wherever weights take 5 to 10 per cent."""
    thin = [s for s in settings() if 0.05 <= shares(s, "parameters") <= 0.10]
    with_states = ("gradients", "master", "states")
    kept, more = ([shares(s, *kinds) for s in thin] for kinds in (("activations",), with_states))
    ratio = [s["gradients"] / s["parameters"] for s in thin]
    yield between(say("where weights take 5–10%: activations"), "60–80%", kept, 0.6, 0.8)
    yield part(say("the same: gradients, in units of the weights"), say("2 and more: 20–30% beside 5–10%"),
               f"{min(ratio):g} … {max(ratio):g}", min(ratio) >= 2, max(ratio) >= 2)  # fmt: skip
    yield beside(say("the same: gradients and optimizer states"), spread(more))


def spread(values: list[float]) -> str:
    return f"{min(values):.0%} … {max(values):.0%}"


def between(about: Text, claimed: str, values: list[float], low: float, high: float) -> Part:
    """A share that should lie between two: TRUE where all do, LOOSE where some do."""
    inside = [low <= value <= high for value in values]
    return part(about, claimed, spread(values), all(inside), any(inside))


@tries("memory-halved")
def memory_halved() -> Iterator[Part]:
    """GPT-2 XL, FP32 against mixed precision: states, activations, all."""
    kinds = {p: device("gpt2-xl", precision=p, micro_batch=8) for p in ("fp32", "mixed")}
    states = [sum(f.get(k, 0) for k in STATES) for f in kinds.values()]
    kept = [f["activations"] for f in kinds.values()]
    whole = [sum(f.values()) for f in kinds.values()]
    claimed = say("about half")
    yield part(
        say("model states"),
        claimed,
        f"{states[1] / states[0]:.0%}",
        states[1] / states[0] <= 0.55,
        states[1] <= states[0],
    )
    yield part(say("activations, 8 sequences"), claimed, f"{kept[1] / kept[0]:.0%}", kept[1] / kept[0] <= 0.55)
    yield part(say("all, 8 sequences"), claimed, f"{whole[1] / whole[0]:.0%}", whole[1] / whole[0] <= 0.55,
               whole[1] / whole[0] <= 0.75)  # fmt: skip


@tries("intermediates")
def intermediates() -> Iterator[Part]:
    """The saved tensors of a GPT-2 layer, in units of batch × sequence × dim."""
    c = preset("gpt2")
    unit = c.sequence * c.hidden
    sizes = {t.name: t.elements / unit for t in activations.layer_terms(c, 1, c.sequence)}
    other = {name: size for name, size in sizes.items() if size != 1}
    count = say("{n} of {n2}", n=len(sizes) - len(other), n2=len(sizes))
    yield part(
        say("saved tensors of that size, a GPT-2 layer"), say("all"), count, not other, len(other) < len(sizes) / 2
    )
    yield beside(
        say("the others, in units of it"),
        joined([say("{tensor} {n:g}", tensor=say(n), n=s) for n, s in other.items()], LIST),
    )


SAVED = (  # what a layer saves for its backward pass
    mark("softmax output"),
    mark("softmax dropout mask"),
    mark("softmax dropout output"),
    mark("GELU input"),
    mark("down input"),
)


@tries("recomputation")
def recomputation() -> Iterator[Part]:
    """Gradients with checkpoints and without, and the bytes saved."""
    import torch
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(4)))
    gradients = []
    for how in ("kept", "recomputed"):
        layers.zero_grad()
        x = torch.linspace(-1, 1, 8 * 64).reshape(8, 64)
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False) if how == "recomputed" else layer(x)
        x.square().sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in layers.parameters() if p.grad is not None]))
    saved = [device("llama3-8b", recompute=r)["activations"] for r in ("none", "full")]
    yield part(say("gradients, recomputed against kept"), say("the same"),
               say("{n:,}, every bit", n=gradients[0].numel()), bool((gradients[0] == gradients[1]).all()))  # fmt: skip
    yield part(say("activations of llama3-8b: all, only layers' inputs"), say("less"),
               f"{gb(saved[0])}, {gb(saved[1])}", saved[1] < saved[0] / 5)  # fmt: skip

"""Claims about master weights and optimizers: what an update loses, what holds a state, what decay means."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .. import seeds
from ..arithmetic import add
from ..floats import quantize
from ..widgets.gradients import sample
from ..words import say
from .base import Part, beside, equal, part, tries
from .training import fp16, share

STORED = say("parameters"), say("gradients of parameters"), say("momentum and variance")


@tries("master-copy")
def master_copy() -> Iterator[Part]:
    """Four thousand updates of 2^-12 on a weight of 1."""
    half, single, coarse = np.float32(1), np.float32(1), 0.0
    for _ in range(4096):
        half, single = np.float32(add(half, 2**-12, "fp16")), np.float32(single + np.float32(2**-12))
        coarse = max(coarse, abs(float(fp16(single)) - float(single)) / 2**-10)
    yield part(say("1 + 4096 updates of 2^-12 in FP16"), say("lost"), f"{half:g}", half == 1)
    yield part(say("the same on an FP32 copy, read in FP16"), "2", f"{float(fp16(single)):g}", float(fp16(single)) == 2)
    yield part(say("error of the FP16 weight beside its copy, in its gaps"), "0", f"{coarse:g}", coarse == 0,
               coarse <= 0.5)  # fmt: skip


@tries("all-but-master")
def all_but_master() -> Iterator[Part]:
    """Adam's first step on recorded weight gradients, its states rounded to FP16."""
    g = sample("weight").astype(np.float64)
    m, v, eps = fp16(0.1 * g) == 0, fp16(0.001 * g * g) == 0, float(fp16(1e-8))
    yield part(say("momentum in FP16: zero after a step"), say("none"), share(m), not m.any(), bool(m.mean() < 0.05))
    yield part(say("variance in FP16: zero after a step"), say("none"), share(v), not v.any(), bool(v.mean() < 0.05))
    yield part(say("Adam's eps, 1e-8, in FP16"), "1e-8", f"{eps:g}", eps > 0)


def dtypes_of_step(dtype: str) -> list[Any]:
    """The dtypes of products, parameters, their gradients and Adam's states after a step in torch's autocast."""
    import torch

    layer = torch.nn.Linear(4, 4)
    with torch.autocast("cpu", dtype=getattr(torch, dtype)):
        out = layer(torch.ones(2, 4))
    out.float().square().mean().backward()
    assert layer.weight.grad is not None
    optimizer = torch.optim.Adam(layer.parameters())
    optimizer.step()
    states = {s.dtype for s in optimizer.state[layer.weight].values() if s.dim()}
    return [out.dtype, layer.weight.dtype, layer.weight.grad.dtype, states.pop()]


@tries("amp-loop")
def amp_loop() -> Iterator[Part]:
    """What has which dtype in the loop of the paper, and in torch's autocast."""
    kinds = say("activations"), *STORED
    for kind, want, dtype in zip(kinds, ("FP16", "FP16", "FP16", "FP32"), dtypes_of_step("float16"), strict=True):
        got = short(dtype)
        yield part(say("autocast: {kind}", kind=kind), want, got, want == got, got == "FP32")


@tries("bf16-loop")
def bf16_loop() -> Iterator[Part]:
    """The dtypes of a step in torch's autocast to BF16, and what is lost of gradients without a scale."""
    for about, dtype in zip((say("products"), *STORED), dtypes_of_step("bfloat16"), strict=True):
        claimed = "FP32" if about in STORED else "BF16"
        yield equal(about, claimed, short(dtype))
    lost = np.asarray(quantize(sample("activation"), "bf16")) == 0
    yield part(say("non-zero activation gradients that BF16 makes zero"), "0.0%", share(lost), not lost.any())


def short(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.").replace("bfloat", "BF").replace("float", "FP")


def one_step(made: Callable[..., Any], decay: float, decoupled: bool = False) -> float:
    """A weight of 2 with gradient 0.5 after one step of a torch optimizer, in FP64."""
    import torch

    p = torch.nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    p.grad = torch.tensor([0.5], dtype=torch.float64)
    made([p], lr=0.1, weight_decay=0.0 if decoupled else decay).step()
    return float(p.detach()[0] - (0.1 * decay * 2.0 if decoupled else 0.0))


@tries("adam-written-out")
def adam_written_out() -> Iterator[Part]:
    """Three steps of the formulas in FP64, beside torch's AdamW, compared once rounded to FP32."""
    import torch

    p = torch.nn.Parameter(torch.tensor([2.0, -0.3], dtype=torch.float64))
    optimizer = torch.optim.AdamW([p], lr=0.1, weight_decay=0.01)
    w, m, v = np.array([2.0, -0.3]), np.zeros(2), np.zeros(2)
    for t in range(1, 4):
        g = np.array([0.5, -1e-3]) * t
        p.grad = torch.from_numpy(g)
        optimizer.step()
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w - 0.1 * 0.01 * w
        w = w - 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    got = p.detach().numpy()
    yield part(say("two weights after three steps: torch, the formulas"), str(got.astype(np.float32)),
               str(w.astype(np.float32)), bool((got.astype(np.float32) == w.astype(np.float32)).all()))  # fmt: skip


@tries("decay-is-l2")
def decay_is_l2() -> Iterator[Part]:
    """One step with the decay in the gradient, and with the decay beside it."""
    import torch

    steps = {
        name: (one_step(made, 0.1), one_step(made, 0.1, decoupled=True))
        for name, made in (("SGD", torch.optim.SGD), ("Adam", torch.optim.Adam))
    }
    same = {name: abs(l2 - decoupled) < 1e-9 for name, (l2, decoupled) in steps.items()}
    yield from (part(say("{name}: L2 term, decoupled decay", name=name), say("the same"), f"{l2:.6f}, {decoupled:.6f}",
                     same[name], any(same.values())) for name, (l2, decoupled) in steps.items())  # fmt: skip


def losses_of_digits(decay: float, steps: int = 100) -> tuple[float, float, float, float]:
    """A network trained on a hundred digits, a fifth with random labels: its loss on them, on new digits at its lowest
    and at the end, and the norm of its weights."""
    import torch

    from ..training import data

    (x, y), (new, labels) = (
        (torch.tensor(part.images.reshape(-1, 64) / 16, dtype=torch.float32), torch.tensor(part.labels).long())
        for part in map(data.digits, ("train", "test"))
    )
    x, y, loss = x[:100], y[:100].clone(), torch.nn.functional.cross_entropy
    y[:20] = torch.from_numpy(seeds.bits(20, 5).astype(np.int64) & 7)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer, unseen, seen = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=decay), [], 0.0
    for _ in range(steps):
        optimizer.zero_grad()
        error = loss(model(x), y)
        error.backward()
        optimizer.step()
        seen = float(error.detach())
        unseen.append(float(loss(model(new), labels).detach()))
    return seen, min(unseen), unseen[-1], float(sum(p.detach().square().sum() for p in model.parameters())) ** 0.5


@tries("overfitting")
def overfitting() -> Iterator[Part]:
    """The same network without decay and with it."""
    (seen, low, end, norm), (_, _, held, small) = losses_of_digits(0.0), losses_of_digits(3.0)
    yield part(say("loss on the digits seen, on new ones: lowest, at the end"), say("one falls, the other rises"),
               f"{seen:.2f}, {low:.1f}, {end:.1f}", seen < low and end > 1.5 * low)  # fmt: skip
    yield part(say("norm of the weights: without decay, with it"), say("smaller"), f"{norm:.0f} : {small:.0f}",
               small < 0.8 * norm)  # fmt: skip
    yield part(say("loss on new digits at the end: without decay, with it"), say("smaller"), f"{end:.1f} : {held:.1f}",
               held < 0.8 * end)  # fmt: skip
    yield beside(say("the lowest, had one stopped there"), f"{low:.1f}")

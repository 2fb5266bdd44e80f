"""Faults drawn by number: kind, layer, size and family of the model; and whether ``explain`` names them.

``python tests/planted_faults.py [FIRST] [COUNT]`` prints the table. A fault is *named* where the first cause that
explain says has its kind and its module; *placed* where the module alone is right and the kind says no more than
which operations differ; *misled* where it says another kind or module; *missed* where it finds none.
"""

from __future__ import annotations

import copy
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from fplab.nn import capture, emulate, explain
from fplab.nn.diagnose.dump_explanation import DumpExplanation
from fplab.tensorcore import Plan

Tensor = torch.Tensor
GENERAL = ("operations of", "arithmetic", "shapes of")
FAMILIES = ("gpt", "llama", "bert", "conv")


class Projection(nn.Linear):
    """A linear layer with ``how`` it multiplies."""

    how = "plain"
    size = 0.0

    def forward(self, x: Tensor) -> Tensor:
        w, b = self.weight, self.bias
        match self.how:
            case "low":
                dtype = torch.bfloat16 if x.dtype == torch.float32 else torch.float8_e4m3fn
                return nn.functional.linear(x.to(dtype).to(x.dtype), w.to(dtype).to(x.dtype), b)
            case "bias after":
                return nn.functional.linear(x, w) + b
            case "split k":
                n = int(self.size)
                parts = zip(x.tensor_split(n, -1), w.tensor_split(n, -1), strict=True)
                y = sum((nn.functional.linear(*p) for p in parts), torch.zeros((), dtype=x.dtype))
                return y if b is None else y + b
            case "rows":
                rows = x.reshape(-1, x.shape[-1]).split(1)
                return torch.cat([nn.functional.linear(row, w, b) for row in rows]).view(*x.shape[:-1], -1)
            case "saturates":
                return nn.functional.linear(x, w, b).clamp(-self.size, self.size)
        return super().forward(x)


class Norm(nn.Module):
    def __init__(self, width: int, rms: bool) -> None:
        super().__init__()
        self.weight, self.rms, self.eps, self.high = nn.Parameter(torch.ones(width)), rms, 1e-5, True

    def forward(self, x: Tensor) -> Tensor:
        if not self.rms:
            return nn.functional.layer_norm(x, x.shape[-1:], self.weight, None, self.eps)
        y = x.float() if self.high else x
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, rotary: bool, fused: bool, bias: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (Projection(width, width, bias=bias) for _ in range(4))
        self.heads, self.rotary, self.fused, self.scale = heads, rotary, fused, (width // heads) ** -0.5
        self.theta, self.high, self.cache, self.joined, self.causal = 1e4, True, None, False, True
        self.softmax: Callable[[Tensor], Tensor] = lambda x: x.float().softmax(-1).to(x.dtype)

    def turned(self, x: Tensor) -> Tensor:
        length, size = x.shape[-2:]
        angles = torch.arange(length)[:, None] * self.theta ** (-torch.arange(0, size, 2) / size)
        cos, sin = (f(angles).to(torch.float32 if self.high else torch.bfloat16) for f in (torch.cos, torch.sin))
        x0, x1 = x.float().chunk(2, -1)
        return torch.cat([x0 * cos - x1 * sin, x1 * cos + x0 * sin], -1).to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        if self.joined:
            weights = torch.cat([p.weight for p in (self.q, self.k, self.v)])
            bias = None if self.q.bias is None else torch.cat([p.bias for p in (self.q, self.k, self.v)])
            parts = nn.functional.linear(x, weights, bias).chunk(3, -1)
        else:
            parts = tuple(p(x) for p in (self.q, self.k, self.v))
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        if self.rotary:
            q, k = self.turned(q), self.turned(k)
        if self.cache is not None:
            k, v = k.to(self.cache).to(k.dtype), v.to(self.cache).to(v.dtype)
        if self.fused:
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=self.scale)
        else:
            y = q @ k.transpose(-1, -2) * self.scale
            if self.causal:
                y = y + torch.full((length, length), -1e9, dtype=x.dtype).triu(1)
            y = self.softmax(y) @ v
        return self.o(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, family: str, width: int, heads: int) -> None:
        super().__init__()
        llama, self.post = family == "llama", family == "bert"
        self.n1, self.n2 = Norm(width, llama), Norm(width, llama)
        self.attention = Attention(width, heads, llama, self.post, not llama)
        self.up, self.down = Projection(width, 4 * width, bias=not llama), Projection(4 * width, width, bias=not llama)
        self.gate = Projection(width, 4 * width, bias=False) if llama else None
        self.approximate, self.drop, self.residual, self.act = "none", 0.0, 1.0, nn.functional.silu if llama else None

    def mlp(self, x: Tensor) -> Tensor:
        act = self.act or (lambda y: nn.functional.gelu(y, approximate=self.approximate))
        return self.down(act(self.up(x)) if self.gate is None else act(self.gate(x)) * self.up(x))

    def forward(self, x: Tensor) -> Tensor:
        y = self.attention(x if self.post else self.n1(x))
        y = nn.functional.dropout(y, self.drop) if self.drop else y
        x = x + y if self.residual == 1 else x + y * self.residual
        x = self.n1(x) if self.post else x
        x = x + self.mlp(x if self.post else self.n2(x))
        return self.n2(x) if self.post else x


class Net(nn.Module):
    def __init__(self, family: str, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.conv = family == "conv"
        if self.conv:
            self.layers: Any = nn.ModuleList(
                nn.Sequential(nn.Conv2d(3 if n == 0 else width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
                for n in range(layers)
            )
            self.head = Projection(width * 16, 16)
        else:
            self.words, self.layers = (
                nn.Embedding(64, width), nn.ModuleList(Block(family, width, heads) for _ in range(layers))
            )  # fmt: skip
            self.norm, self.head = Norm(width, family == "llama"), Projection(width, 64, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.conv else self.words(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.flatten(1) if self.conv else self.norm(x))


@dataclass
class Case:
    """Two programs: models, inputs, seeds and contexts; ``kinds`` and ``module``: what is right to say."""

    number: int
    family: str
    fault: str
    models: tuple[nn.Module, nn.Module]
    inputs: list[Tensor]
    kinds: tuple[str, ...]
    module: str
    seeds: tuple[int, int] = (0, 0)
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    size: str = ""


def softmax_low(x: Tensor) -> Tensor:
    """Softmax by its definition, each step in the dtype of its operand."""
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def faults(family: str, dtype: torch.dtype) -> list[str]:
    """The kinds that a family can have."""
    common = ["weights rounded", "weights moved", "data", "head low", "gpu", "head scaled"]
    if family == "conv":
        return [*common, "norm eps", "stride of nothing"][:-1]
    more = ["eps", "scale", "low", "split k", "saturates", "dropout", "cache", "mask", "residual", "weights 8"]
    more += ["rows"] if dtype == torch.float32 else []
    more += ["softmax"] if family != "bert" and dtype != torch.float32 else []
    more += ["fused"] if family != "bert" else []
    more += ["approximate", "bias after"] if family != "llama" else ["rotary", "theta", "activation"]
    more += ["norm"] if family == "llama" and dtype != torch.float32 else []
    return common + more


def drawn(number: int) -> Case:
    """The fault of a number."""
    draw = random.Random(number)
    family = draw.choice(FAMILIES)
    dtype = torch.float32 if family == "conv" else draw.choice((torch.float32, torch.bfloat16))
    fault = draw.choice(faults(family, dtype))
    width, layers = draw.choice((32, 48, 64)), draw.choice((1, 2, 3))
    torch.manual_seed(number)
    a = Net(family, width, draw.choice((2, 4)), layers).eval().to(dtype)
    for p in a.parameters():
        p.data.add_(torch.randn_like(p) * 0.02)
    for buffer in a.buffers():
        if buffer.is_floating_point():
            buffer.add_(torch.rand_like(buffer))
    b = copy.deepcopy(a)
    layer = draw.randrange(layers)
    x = torch.randn(2, 3, 4, 4) if family == "conv" else torch.randint(64, (2, draw.choice((6, 8, 11))))
    case = Case(number, family, fault, (a, b), [x, x], (), "", size=f"{str(dtype)[6:]} {width}x{layers} layer {layer}")
    at = f"layers.{layer}"
    block = b.layers[layer]

    def is_(kinds: str | tuple[str, ...], *module: str) -> None:
        case.kinds, case.module = (kinds,) if isinstance(kinds, str) else kinds, ".".join(module)

    match fault:
        case "weights rounded" | "weights moved" | "weights 8":
            name, module = draw.choice([(n, m) for n, m in b.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)])
            w = module.weight.data
            if fault == "weights rounded":
                w.copy_(w.to(torch.bfloat16 if dtype == torch.float32 else torch.float8_e4m3fn))
            elif fault == "weights 8":
                scale = w.abs().amax(-1, keepdim=True) / 127
                w.copy_((w / scale).round() * scale)
            else:
                w.view(-1)[draw.randrange(w.numel())] += draw.choice((0.01, 0.5))
            is_("weights", name)
        case "data":
            y = x.clone()
            place = tuple(draw.randrange(n) for n in y.shape)
            y[place] = y[place] + 1 if family == "conv" else (y[place] + 1) % 64
            case.inputs[1] = y
            is_("data", f"{at.rpartition('.')[0]}.0.0" if family == "conv" else "words")
        case "head low":
            b.head.how = "low"
            is_(("precision of product",), "head")
        case "head scaled":
            b.head.register_forward_pre_hook(lambda _, args: (args[0] * 1.0009765625,))
            is_("scale", "head")
        case "gpu":
            gpu, plan = draw.choice(("H100", "A100", "V100")), Plan(split_k=draw.choice((1, 2)))
            gpu = gpu if dtype != torch.bfloat16 or gpu != "V100" else "H100"
            case.around = lambda: emulate(gpu, plan=plan)
            is_(("arithmetic",), "")
        case "norm eps":
            block[1].eps = draw.choice((1e-3, 1e-4, 1e-6))
            is_("eps", at, "1")
        case "eps":
            which = draw.choice(("n1", "n2"))
            getattr(block, which).eps = draw.choice((1e-3, 1e-4, 1e-6, 1e-8))
            is_("eps", at, which)
        case "scale":
            block.attention.scale *= draw.choice((1.01, 2**0.5, 8.0, 0.5))
            is_("scale", at, "attention")
        case "low" | "split k" | "rows" | "saturates" | "bias after":
            name = draw.choice(("up", "down", "attention.q", "attention.v", "attention.o"))
            module = block.get_submodule(name)
            module.how, module.size = fault, float(draw.choice((2, 4))) if fault == "split k" else 0.05
            kinds = {"low": "precision of product", "split k": "order of reduction", "rows": "order of reduction",
                     "saturates": "saturation", "bias after": "rounding before the bias"}  # fmt: skip
            is_(kinds[fault], at, name)
        case "dropout":
            for model in (a, b):
                model.layers[layer].drop = 0.1
            case.seeds = 0, 1
            is_("random numbers", at)
        case "cache":
            block.attention.cache = torch.float8_e4m3fn if dtype == torch.bfloat16 else torch.bfloat16
            is_(("precision of attention", "precision of product", "precision of softmax"), at, "attention")
        case "mask":
            block.attention.causal = False
            is_(("mask", "is_causal"), at, "attention")
        case "residual":
            block.residual = draw.choice((0.5, 0.999))
            is_("scale", at)
        case "softmax":
            block.attention.softmax = softmax_low
            is_("precision of softmax", at, "attention")
        case "fused":
            block.attention.fused = True
            is_("fused attention", at, "attention")
        case "approximate":
            block.approximate = "tanh"
            is_("approximate", at)
        case "activation":
            block.act = nn.functional.gelu
            is_(("operations of activation",), at)
        case "rotary":
            block.attention.high = False
            is_("precision of rotary embedding", at, "attention")
        case "theta":
            block.attention.theta = draw.choice((1e5, 5e5))
            is_(("self", "base", "scale"), at, "attention")
        case "norm":
            block.n1.high = False
            is_("precision of normalisation", at, "n1")
    return case


def answer(case: Case) -> DumpExplanation:
    """What explain says of a case's two programs, by their dumps."""
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in "ab"]
        for path, model, x, seed, around in zip(
            paths, case.models, case.inputs, case.seeds, (nullcontext, case.around), strict=True
        ):
            torch.manual_seed(seed)
            with torch.no_grad(), around(), capture(model, path):
                model(x)
        return explain(*paths)


def verdict(case: Case, said: DumpExplanation) -> str:
    """ "named", "placed", "missed", "misled", or "same" where the fault changes no bit of the output."""
    if said.whole == 0:
        return "same"
    if not said.rows:
        return "missed"
    row = said.rows[0]
    kind, module = str(row.kind), not case.module or row.b == case.module
    if kind in case.kinds and module:
        return "named"
    return "placed" if module and kind.startswith(GENERAL) else "misled"


def table(numbers: Iterator[int], count: int, tell: Callable[[str], object] | None = None) -> dict[str, Counter[str]]:
    """Verdicts by fault, of so many cases whose fault changes the output."""
    result: dict[str, Counter[str]] = {}
    left = count
    while left:
        case = drawn(next(numbers))
        began = time.perf_counter()
        said = answer(case)
        one = verdict(case, said)
        left -= one != "same"
        if one != "same":
            result.setdefault(case.fault, Counter())[one] += 1
        if tell is not None and one not in ("named", "same"):
            row = said.rows[0] if said.rows else None
            told = row and (row.b, str(row.kind), row.facts, row.operations)
            what = f"{case.number} {case.family} {case.fault} {case.size} {case.module}"
            tell(f"{what}: {one}: {told} {time.perf_counter() - began:.1f} s")
    return result


def main() -> None:
    first, count = map(int, sys.argv[1:3] or ("0", "200"))
    found = table(iter(range(first, 1 << 30)), count, lambda line: print(line, flush=True))
    heads = ("named", "placed", "missed", "misled")
    for fault, verdicts in sorted(found.items()):
        print(f"{fault:16}", *(f"{verdicts[head]:7}" for head in heads))
    print(f"{'all':16}", *(f"{sum(v[head] for v in found.values()):7}" for head in heads))


if __name__ == "__main__":
    main()

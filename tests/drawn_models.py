"""Models that are drawn from a seed, and an independent count of what their training step multiplies.

The count asks nothing of the lab. Plain torch runs the model as it is, in one process; a hook on every module sees the
shapes that come in and what needs a gradient, and the module's definition says what it multiplies. A checkpoint's
region multiplies once more in the backward pass, and a rank has a part of the batch or of a layer.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import family_steps
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from fplab.nn import emulate, recipes

BATCH, LENGTH = 4, 6
Tensor = torch.Tensor
Draw = random.Random
Counts = Counter[tuple[str, str, str, int]]  # by layer, pass, formats of the operands, and multiply-accumulates
FORWARD, DATA, WEIGHT, ACTIVATIONS, OF_ACTIVATIONS = "forward", "data", "weight", "activations", "of activations"


# --- what a module multiplies -----------------------------------------------------------------------------------------
class Product(NamedTuple):
    """Of a layer; ``kind``: a weight's forward product, its data or weight gradient, or of activations, or backward."""

    layer: str
    kind: str
    macs: int


Kinds = Iterator[tuple[str, int]]


def of_linear(layer: Any, y: Tensor, x: Tensor) -> Kinds:
    """M x K x N, whichever way the weight lies."""
    macs = x.numel() // x.shape[-1] * layer.weight.numel()
    yield FORWARD, macs
    if x.requires_grad:
        yield DATA, macs
    if layer.weight.requires_grad:
        yield WEIGHT, macs


def of_convolution(layer: Any, y: Tensor, x: Tensor) -> Kinds:
    """An output is a sum over a window of the input, an input's gradient one over a window of the output."""
    yield FORWARD, y[:, 0].numel() * layer.weight.numel()
    if x.requires_grad:
        yield DATA, x[:, 0].numel() * layer.weight.numel()
    if layer.weight.requires_grad:
        yield WEIGHT, y[:, 0].numel() * layer.weight.numel()


def of_recurrence(layer: Any, y: Any, x: Tensor) -> Kinds:
    """The inputs of all steps are one product, the hidden states one a step; the first state needs no gradient."""
    batch, steps, _ = x.shape
    for depth in range(layer.num_layers):
        for side in ("", "_reverse")[: 1 + layer.bidirectional]:
            of_input, of_hidden = (getattr(layer, f"weight_{of}_l{depth}{side}") for of in ("ih", "hh"))
            whole, step = steps * batch * of_input.numel(), batch * of_hidden.numel()
            yield from [(FORWARD, whole), *[(FORWARD, step)] * steps]
            yield from [(DATA, whole)] * (depth > 0 or x.requires_grad) + [(DATA, step)] * (steps - 1)
            yield from [(WEIGHT, whole)] * of_input.requires_grad + [(WEIGHT, step)] * steps * of_hidden.requires_grad


def of_attention(heads: int, size: int, fused: bool, x: Tensor) -> Kinds:
    """Scores, and the values weighed by them; each has two gradients, and a fused kernel needs the scores again."""
    batch, length, _ = x.shape
    macs = batch * heads * length * length * size
    yield from [(ACTIVATIONS, macs)] * 2
    yield from [(OF_ACTIVATIONS, macs)] * (4 + fused)


def of_transformers(layer: Any, y: Any, x: Tensor, *rest: Any) -> Kinds:
    heads, fused = layer.config.num_attention_heads, layer.config._attn_implementation == "sdpa"
    return of_attention(heads, layer.config.hidden_size // heads, fused, x)


def of_experts(layer: Any, y: Tensor, x: Tensor, index: Tensor, *rest: Tensor) -> Kinds:
    """Each expert that is chosen multiplies the words that chose it, by both of its weights."""
    for expert, weight in product(index.unique(), layer.parameters()):
        macs = int((index == expert).sum()) * weight[0].numel()
        yield from [(FORWARD, macs), (DATA, macs), *[(WEIGHT, macs)] * weight.requires_grad]


def of_head(net: Any, y: Tensor, x: Tensor) -> Kinds:
    """The embedding's weight once more, in the model itself."""
    if net.tied:
        yield from ((kind, y.numel() * net.stem.weight.shape[0]) for kind in (FORWARD, DATA))
        if net.stem.weight.requires_grad:
            yield WEIGHT, y.numel() * net.stem.weight.shape[0]


RULES: dict[str, Callable[..., Kinds]] = {
    **dict.fromkeys(("Linear", "Conv1D", "MixtralTopKRouter"), of_linear),
    **dict.fromkeys(("Conv1d", "Conv2d"), of_convolution), **dict.fromkeys(("LSTM", "GRU"), of_recurrence),
    "Attend": lambda layer, y, x: of_attention(layer.heads, layer.size, layer.fused, x),
    "Attention": lambda layer, y, x, *rest: of_attention(layer.num_heads, layer.head_dim, layer.fused_attn, x),
    **dict.fromkeys(("GPT2Attention", "LlamaAttention", "MixtralAttention", "BertSelfAttention"), of_transformers),
    "MixtralExperts": of_experts, "Net": of_head,
}  # fmt: skip


def rule_of(layer: nn.Module) -> Any:
    """peft's own layers, named as torch's, call those that they hold."""
    return None if type(layer).__module__.startswith("peft") else RULES.get(type(layer).__name__)


def defined(net: nn.Module, loss_of: Loss, x: Tensor) -> list[Product]:
    """Every product of a training step, by the definitions of the modules that are called."""
    found: list[Product] = []

    def hook(name: str, rule: Any, layer: nn.Module, args: Any, kwargs: Any, y: Any) -> None:
        found.extend(Product(name, *one) for one in rule(layer, y, *args, *kwargs.values()))

    hooks = [
        layer.register_forward_hook(partial(hook, name, rule), with_kwargs=True)
        for name, layer in net.named_modules() if (rule := rule_of(layer))
    ]  # fmt: skip
    with FlopCounterMode(display=False) as flops, sdpa_kernel(SDPBackend.MATH), without_onednn():
        loss_of(net, x)  # its own products: fused kernels are not counted there
    for one in hooks:
        one.remove()
    macs = sum(one.macs for one in found if one.kind in (FORWARD, ACTIVATIONS))
    assert 2 * macs == flops.get_total_flops(), "a module that multiplies has no rule here"
    return found


@contextmanager
def without_onednn() -> Iterator[None]:
    """While an LSTM is made of operations; torch.backends.mkldnn.flags warns of what it does not change."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def expected(
    products: list[Product], narrow: set[str], regions: list[str], early: bool, plan: dict[str, str] | None, ranks: int
) -> Counts:
    """What a step multiplies. ``regions``: checkpoints, of which the last product is spared if they stop ``early``.

    ``plan``: of tensor parallel, the layers that are cut into the ranks' parts.
    """
    found: Counts = Counter()
    weighted = [one.layer for one in products if one.kind == FORWARD]
    last = {[layer for layer in weighted if inside(layer, [at])][-1] for at in regions if early}
    for layer, kind, macs in products:
        of_weight = kind in (FORWARD, DATA, WEIGHT)
        formats = "bf16" if not of_weight or layer not in narrow else "e4m3" if kind == FORWARD else "e4m3 e5m2"
        part = macs // ranks if plan and inside(layer, [*plan]) else macs
        first = kind in (FORWARD, ACTIVATIONS)
        add(found, layer, "forward" if first else "backward", formats, part)
        if first and inside(layer, regions) and layer not in last:
            add(found, layer, "backward", formats, part)
    return found


def add(counts: Counts, layer: str, phase: str, formats: str, macs: int, times: int = 1) -> None:
    """Products that are alike; of experts the sum of all, since the bits decide which of them a word goes to."""
    experts = layer.endswith("experts")
    counts[layer, phase, formats, 0 if experts else macs] += times * macs if experts else times


def inside(layer: str, others: Iterable[str]) -> bool:
    """Whether a layer is one of others or in one; "" is what the model itself multiplies."""
    return any(layer == one or (one and layer.startswith(f"{one}.")) for one in others)


# --- models that are drawn --------------------------------------------------------------------------------------------
class Attend(nn.Module):
    """Attention of several heads, by products or by torch's fused function."""

    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.size, self.fused = heads, width // heads, fused
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for one in (self.q, self.k, self.v))
        if self.fused:
            found = functional.scaled_dot_product_attention(q, k, v)
        else:
            found = (q @ k.mT / self.size**0.5).softmax(-1) @ v
        y: Tensor = self.out(found.transpose(1, 2).flatten(-2))
        return y


class First(nn.Module):
    """What a recurrent layer gives at every step."""

    def forward(self, x: tuple[Tensor, Any]) -> Tensor:
        return x[0]


class Block(nn.Module):
    """A block, residual or ending in a product; its last operation that multiplies is the last of ``inner``."""

    def __init__(self, norm: nn.Module, inner: nn.Module, residual: bool) -> None:
        super().__init__()
        self.norm, self.inner, self.residual = norm, inner, residual

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(self.norm(x))
        return x + y if self.residual else y


class Net(nn.Module):
    """Blocks, some of which may be one; the head may be the stem's weight. ``reentrant``: how blocks are recomputed."""

    def __init__(self, stem: nn.Module, blocks: list[nn.Module], head: nn.Module | None) -> None:
        super().__init__()
        self.stem, self.body, self.tied = stem, nn.ModuleList(blocks), head is None
        self.head = nn.Identity() if head is None else head
        self.reentrant: bool | None = None

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.body:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        x = self.head(x)
        return functional.linear(x, self.stem.weight.mT) if self.tied else x


Loss = Callable[[nn.Module, Tensor], Tensor]


@dataclass
class Drawn:
    """A model, its batch and its loss. ``blocks``: what a checkpoint takes. ``recompute``: by so-and-so a checkpoint.

    ``plan``: of tensor parallel, "columns" or "rows" by layer. ``early``: whether checkpoints stop early.
    """

    net: nn.Module
    x: Tensor
    loss_of: Loss
    blocks: list[nn.Module]
    recompute: Callable[[nn.Module, bool], Any]
    plan: dict[str, str] = field(default_factory=dict)
    early: bool = False

    def names_of(self, net: nn.Module) -> list[str]:
        """The blocks' names in a model that holds them."""
        return [name for name, layer in net.named_modules() if any(layer is one for one in self.blocks)]


def squared(net: nn.Module, x: Tensor) -> Tensor:
    return net(x).square().mean()


def of_own(draw: Draw, kind: str) -> Drawn:
    """A model of this file."""
    heads = draw.choice([2, 4])
    width, wide, images = 8 * heads, 8 * draw.randint(2, 5), kind == "convolution"

    def block() -> nn.Module:
        norm: nn.Module = nn.GroupNorm(2, width) if images else nn.LayerNorm(width)
        if kind == "linear":
            first, last = nn.Linear(width, wide), nn.Linear(wide, width, draw.random() < 0.5)
            inner: nn.Module = nn.Sequential(first, nn.GELU(), last)
        elif kind == "attention":
            inner = Attend(width, heads, draw.random() < 0.5)
        elif kind == "convolution":
            window = nn.Conv2d(width, wide, 3, padding=1, groups=draw.choice([1, 2]))
            inner = nn.Sequential(window, nn.ReLU(), nn.Conv2d(wide, width, 1))
        else:
            both, cell = draw.random() < 0.5, draw.choice([nn.LSTM, nn.GRU])
            layer = cell(width, wide, draw.randint(1, 2), batch_first=True, bidirectional=both)
            inner = nn.Sequential(layer, First(), nn.Linear(wide * (1 + both), width))
        return Block(norm, inner, draw.random() < 0.5)

    blocks = [block() for _ in range(draw.randint(1, 3))]
    body = [nn.Sequential(OrderedDict(unit=one)) if draw.random() < 0.3 else one for one in blocks]
    if draw.random() < 0.5:
        body.append(draw.choice(body))  # one block twice
    if kind == "linear" and draw.random() < 0.5:
        blocks[-1].inner[0].weight = blocks[0].inner[0].weight  # type: ignore[index, union-attr]
    given = draw.randint(3, 9)
    if images:
        stem: nn.Module = nn.Conv2d(given, width, 3, stride=draw.choice([1, 2]))
        head: nn.Module | None = nn.Conv2d(width, 5, 1)
        x = torch.randn(BATCH, given, 7, 7)
    else:
        stem, x = nn.Linear(given, width), torch.randn(BATCH, LENGTH, given)
        head = None if draw.random() < 0.5 else nn.Linear(width, 5)
    net = Net(stem, body, head)
    three = dict.fromkeys(("inner.q", "inner.k", "inner.v"), "columns")
    cut = {"linear": {"inner.0": "columns", "inner.2": "rows"},
           "attention": three | {"inner.out": "rows", "inner": "heads"}}  # fmt: skip
    names = [name for name, layer in net.named_modules() if isinstance(layer, Block)]
    plan = {f"{name}.{end}": how for name in names for end, how in cut.get(kind, {}).items()}
    x.requires_grad_(draw.random() < 0.5)
    return Drawn(net, x, squared, body, lambda net, reentrant: setattr(net, "reentrant", reentrant), plan, early=True)


def of_text(draw: Draw, name: str) -> Drawn:
    """A model of transformers."""
    heads = draw.choice([2, 4])
    sizes = {
        "hidden_size": 8 * heads, "num_hidden_layers": draw.randint(1, 2), "num_attention_heads": heads,
        "intermediate_size": 8 * draw.randint(2, 5), "tie_word_embeddings": draw.random() < 0.5,
        "attn_implementation": draw.choice(["eager", "sdpa"]),
    }  # fmt: skip
    if name in ("llama", "mixture"):
        sizes["num_key_value_heads"] = draw.choice([2, heads])
    net: Any = family_steps.FAMILIES[name](**sizes)
    if name == "mixture":
        net.set_experts_implementation("eager")  # a product for each expert, which torch's counter of operations knows
    x = torch.randint(family_steps.WORDS, (BATCH, LENGTH))
    layers = next(part for part in net.modules() if isinstance(part, nn.ModuleList))
    ends = {f"self_attn.{one}_proj": "rows" if one == "o" else "columns" for one in "qkvo"}
    ends |= {"self_attn": "heads", "mlp.gate_proj": "columns", "mlp.up_proj": "columns", "mlp.down_proj": "rows"}
    plan = {f"model.layers.{i}.{end}": how for i in range(len(layers)) for end, how in ends.items() if name == "llama"}

    def recompute(net: Any, reentrant: bool) -> None:
        net.activation_checkpointing_enable({"use_reentrant": reentrant})

    return Drawn(net, x, lambda net, x: net(input_ids=x, labels=x, use_cache=False).loss, [*layers], recompute, plan)


def of_images(draw: Draw, name: str) -> Drawn:
    """A model of timm or torchvision, whose blocks recompute their forward pass in place."""
    if name == "vit":
        heads = draw.choice([2, 4])
        sizes = {"depth": draw.randint(1, 2), "embed_dim": 8 * heads, "num_heads": heads}
        net = family_steps.vit(**sizes, mlp_ratio=draw.choice([1, 3]), qkv_bias=draw.random() < 0.5)
        blocks = [*net.blocks]
        for block in blocks:
            block.attn.fused_attn = draw.random() < 0.5
    else:
        net = family_steps.resnet(layers=[draw.randint(1, 2), 1, 1, 1], bottleneck=draw.random() < 0.5)
        blocks = [block for part in (net.layer1, net.layer2, net.layer3, net.layer4) for block in part]
    x = torch.randn(BATCH, 3, *[32 if name == "vit" else 16] * 2).requires_grad_(draw.random() < 0.5)

    def recompute(net: nn.Module, reentrant: bool) -> None:
        for block in blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=reentrant)  # type: ignore[method-assign]

    return Drawn(net, x, squared, blocks, recompute)


FAMILIES: dict[str, Callable[[Draw, str], Drawn]] = {
    **dict.fromkeys(("linear", "attention", "convolution", "recurrent"), of_own),
    **dict.fromkeys(("gpt2", "llama", "bert", "mixture"), of_text), **dict.fromkeys(("vit", "resnet"), of_images),
}  # fmt: skip
CUT = ("linear", "attention", "llama")


def drawn(family: str, seed: int) -> tuple[Drawn, Draw]:
    """The same model in every process, and what else is drawn."""
    draw = Draw(f"{family} {seed}")
    torch.manual_seed(seed)
    return FAMILIES[family](draw, family), draw


def adapted(one: Drawn, draw: Draw) -> nn.Module:
    """The model with LoRA on some of its layers, and all else frozen."""
    names = [
        name for name, layer in one.net.named_modules()
        if type(layer).__name__ in ("Linear", "Conv2d", "Conv1D") and getattr(layer, "groups", 1) == 1
    ]  # fmt: skip
    net = family_steps.with_lora(one.net, draw.sample(names, draw.randint(1, len(names))), draw.choice([2, 4]))
    if one.x.is_floating_point():
        one.x.requires_grad_()
    else:
        one.net.enable_input_require_grads()  # type: ignore[operator]
    return net


# --- what is multiplied -----------------------------------------------------------------------------------------------
def multiplied(one: Drawn, net: nn.Module, x: Tensor, named: list[str], kept: bool, inside: bool) -> Counts:
    """What an emulated step of a model says that it multiplied.

    ``named``: layers that alone have the recipe, or, if ``kept``, alone have none.
    """
    root, three = f"{type(net).__name__} 1", recipes.fp8_current()
    patterns = [name or root for name in named]
    products = three.forward, three.data_gradient, three.weight_gradient
    if kept:
        run = emulate("H100", recipe=recipes.Recipe("drawn", *products, scope="all", keep=tuple(patterns)))
    else:
        run = emulate("H100", inputs="bf16", layers=dict.fromkeys(patterns, "fp8_current"))
    with nullcontext() if one.early else set_checkpoint_early_stop(False):
        with run:
            loss = one.loss_of(net, x)
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
    found: Counts = Counter()
    for row in run.report().rows:
        layer = "" if row.layer == root else row.layer
        formats = " ".join(sorted({*row.unit.split()[-1].partition("->")[0].split("*")}))
        add(found, layer, row.phase, formats, row.macs // row.count, row.count)
    return found


def both_counts(family: str, seed: int, way: str, ranks: int = 1) -> tuple[Counts, Counts]:
    """What a step of a drawn model multiplies: as an emulation says, and as it should.

    ``way``: "whole", "reentrant", "not reentrant", "peft"; on ranks "fsdp2" and "tensor".
    """
    one, draw = drawn(family, seed)
    one.net.train()
    net = adapted(one, draw) if way == "peft" or (way == "fsdp2" and draw.random() < 0.3) else one.net
    x = one.x
    if way == "fsdp2":
        x = x.detach().chunk(ranks)[dist.get_rank()].clone().requires_grad_(x.requires_grad)
    products = defined(net, one.loss_of, x)
    if family == "mixture":
        one.net.set_experts_implementation(draw.choice(["eager", "grouped_mm"]))  # type: ignore[operator]
    weighted = sorted({layer for layer, kind, _ in products if kind == FORWARD})
    named, kept = draw.sample(weighted, draw.randint(0, len(weighted))), draw.random() < 0.5
    narrow = {layer for layer in weighted if inside(layer, named) != kept}
    reentrant = {"whole": None, "reentrant": True, "not reentrant": False}.get(way, draw.choice([None, True, False]))
    regions = [] if reentrant is None else one.names_of(net)
    want = expected(
        products, narrow, regions, one.early and reentrant is False, one.plan if way == "tensor" else None, ranks
    )
    if reentrant is not None:
        one.recompute(one.net, reentrant)
    if way == "tensor":
        styles = {"columns": ColwiseParallel, "rows": RowwiseParallel}
        plan = {name: styles[how]() for name, how in one.plan.items() if how in styles}
        parallelize_module(net, init_device_mesh("cpu", (ranks,)), plan)
    elif way == "fsdp2":
        mesh = init_device_mesh("cpu", (ranks,))
        if draw.random() < 0.5 and not shares(net):
            for block in dict.fromkeys(one.blocks):  # one may be there twice
                fully_shard(block, mesh=mesh)
        fully_shard(net, mesh=mesh)
    return multiplied(one, net, x, named, kept, draw.random() < 0.5), want


def shares(net: nn.Module) -> bool:
    """Whether two layers have one weight, which FSDP2 shards in one group only."""
    every = [p for layer in net.modules() for p in layer.parameters(recurse=False)]
    return len({*every}) < len(every)


def on_a_rank(seeds: list[int], ways: dict[str, list[str]]) -> dict[str, Any]:
    """Both counts of all models by all ways, as strings and numbers."""
    ranks = dist.get_world_size()
    return {
        f"{way} {family} {seed}": [sorted(count.items()) for count in both_counts(family, seed, way, ranks)]
        for way, families in ways.items() for family in families for seed in seeds
    }  # fmt: skip

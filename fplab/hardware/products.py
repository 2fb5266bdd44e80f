"""Cases of torch's matrix products, and which order of k they follow.

The operands are large as a kernel for large shapes needs them, yet only a few rows of A and columns of B are distinct:
they repeat over the whole shape. So a record is small, and whether an element's bits depend on its place shows at once
(output ``moved``: at how many places an element differs from its first one).

They answer: one chain of ascending k, several accumulators, split-K, by shape; where alpha, beta and the output cast
round; whether TF32 operands are truncated or rounded; what the flags for reduced precision and FP16 accumulation
change; how ``_scaled_mm`` promotes with and without fast accumulation; which product a convolution becomes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from .. import numeric
from .cases import Arrays, Case, Emulate, Meta, NotHereError
from .environment import torch_for
from .operands import Draw, build, fields
from .software import codes, gpu_of, values
from .tensors import PRECISION, TORCH, bits, flags_set, on_device, tensor

DISTINCT = 16  # rows of A and columns of B
KEY = 700
TF32 = {PRECISION: "high"}
FP16_SUMS = {"cuda.matmul.allow_fp16_accumulation": True}
REDUCED = "cuda.matmul.allow_{}_reduced_precision_reduction"
QUESTION = "In which order of k, and with which roundings?"


@dataclass(frozen=True)
class Product:
    """One product: ``call`` is matmul, addmm, bmm, scaled_mm, int_mm or linear.

    ``inputs``: formats of A and B; ``output``: the format of the result; ``shape``: M, N, K, unless operands are given.
    ``flags``: what is set while it runs. ``alpha``, ``beta``: of addmm. ``fast``: fast accumulation of scaled_mm.
    """

    call: str
    inputs: tuple[str, str]
    output: str
    shape: tuple[int, int, int] = (0, 0, 0)
    flags: Mapping[str, Any] = field(default_factory=dict)
    alpha: float = 1.0
    beta: float = 0.0
    fast: bool = False

    @property
    def name(self) -> str:
        a, b = self.inputs
        words = [self.call, a if a == b else f"{a}*{b}", f"to {self.output}", "x".join(map(str, self.shape))]
        words += [f"{key.split('.')[-1]}={value}" for key, value in self.flags.items()]
        words += [f"alpha={self.alpha:g} beta={self.beta:g}"] if self.beta else []
        words += ["fast accumulation"] if self.fast else []
        return " ".join(words)

    @property
    def distinct(self) -> tuple[int, int]:
        """How many rows of A and columns of B differ; fewer where k is long."""
        most = DISTINCT if self.shape[2] <= 1024 else 8
        return min(most, self.shape[0]), min(most, self.shape[1])

    @property
    def emulated(self) -> str:
        """The Tensor Core input format that the product uses, or "fp32" for plain multiply-adds."""
        return "tf32" if self.inputs[0] == "fp32" and PRECISION in self.flags else self.inputs[0]


def _half(fmt: str) -> list[Product]:
    """Products of FP16 or BF16 at many shapes and flags."""
    pair = (fmt, fmt)
    shapes = [(128, 128, 16), (128, 128, 64), (128, 128, 256), (64, 64, 4096), (1024, 1024, 512), (4096, 4096, 256)]
    shapes += [(16, 16, 2048), (1, 512, 512), (33, 17, 77), (512, 512, 2048)]
    table = [Product("matmul", pair, fmt, shape) for shape in shapes]
    unreduced = {REDUCED.format(fmt): False}
    table += [Product("matmul", pair, fmt, shape, unreduced) for shape in ((64, 64, 4096), (16, 16, 2048))]
    table += [Product("bmm", pair, fmt, (64, 64, 128)), Product("linear", pair, fmt, (128, 128, 256))]
    return [*table, Product("addmm", pair, fmt, (128, 128, 64), alpha=0.3, beta=0.7),
            Product("addmm", pair, fmt, (128, 128, 64), beta=1.0)]  # fmt: skip


def _products() -> tuple[Product, ...]:
    fp32, fp16 = ("fp32", "fp32"), ("fp16", "fp16")
    table = _half("fp16") + _half("bf16")
    table += [Product("matmul", fp16, "fp16", s, FP16_SUMS) for s in ((128, 128, 64), (64, 64, 4096), (512, 512, 512))]
    for shape in ((128, 128, 64), (64, 64, 2048), (512, 512, 512), (33, 17, 77), (1, 512, 512)):
        table += [Product("matmul", fp32, "fp32", shape), Product("matmul", fp32, "fp32", shape, TF32)]
    table += [Product("addmm", fp32, "fp32", (128, 128, 64), TF32, alpha=0.3, beta=0.7)]
    for pair in (("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3")):
        for fast in (False, True):
            table += [Product("scaled_mm", pair, out, (128, 128, 512), fast=fast) for out in ("bf16", "fp32", "fp16")]
    fp8 = ("e4m3", "e4m3")
    for fast in (False, True):
        table += [Product("scaled_mm", fp8, "fp32", shape, fast=fast) for shape in ((64, 64, 4096), (1024, 1024, 128))]
        table += [Product("scaled_mm", fp8, "bf16", shape, fast=fast) for shape in ((16, 64, 2048), (512, 512, 32))]
    table += [Product("int_mm", ("int8", "int8"), "int32", shape) for shape in ((64, 64, 256), (32, 64, 4096))]
    return (*table, Product("matmul", ("fp64", "fp64"), "fp64", (128, 128, 64)))


PRODUCTS: tuple[Product, ...] = _products()


def cases() -> tuple[Case, ...]:
    return (*(product_case(product, KEY + i) for i, product in enumerate(PRODUCTS)), *map(conv_case, CONVOLUTIONS))


# --- one product ------------------------------------------------------------------------------------------------
def product_case(product: Product, key: int) -> Case:
    """Inputs ``a`` (rows, K), ``b`` (columns, K) and for addmm ``c``; outputs ``d`` (rows, columns) and ``moved``."""
    settled = product.call == "int_mm"
    return Case(
        product.name, partial(product_inputs, product, key), partial(product_compute, product),
        partial(product_emulate, product, ONE_CHAIN if settled else None),
        {"d": "bits32" if product.output == "int32" else product.output, "moved": "bits32"},
        open="" if settled else QUESTION, hypotheses={} if settled else hypotheses(product),
    )  # fmt: skip


def product_inputs(product: Product, key: int) -> Arrays:
    """Numbers of both signs within 8 binades; INT8 uniform.

    B holds every number twice, at two random places of k, and every second row of A the same with opposite signs: there
    the products cancel, all but those of two places, and what is left are roundings. Bits of an ordinary sum say little
    about the order once they are rounded to a half format; these say much.
    """
    draw = Draw(key)
    rows, columns = product.distinct
    k = product.shape[2]
    if product.inputs[0] == "int8":
        words = (draw.words(rows, k), draw.words(columns, k))
        return {name: (w >> np.uint64(56)).astype(np.uint8) for name, w in zip("ab", words, strict=True)}
    a, b = (build(draw, f, draw.between(-4, 3, n, k)) for f, n in zip(product.inputs, (rows, columns), strict=True))
    place = draw.order(1, k)[0][: (k - 1) // 2 * 2]
    first, second = place[0::2], place[1::2]
    b[:, second] = b[:, first]
    a[1::2, second] = a[1::2, first] ^ np.array(fields(product.inputs[0]).sign_mask, a.dtype)
    rest = np.setdiff1d(np.arange(k), place)
    a[1::2, rest] = build(draw, product.inputs[0], draw.between(-6, -5, len(a[1::2]), rest.size))
    inputs = {"a": a, "b": b}
    if product.beta:
        inputs["c"] = build(draw, product.output, draw.between(-3, 3, rows, columns))
    return inputs


def product_compute(product: Product, given: Arrays, device: str) -> Arrays:
    """The product at its full shape; the first occurrence of each distinct element, and where others differ."""
    m, n = on_device(device, *product.shape[:2])
    a, b = (tensor(given[name], fmt, device) for name, fmt in zip("ab", product.inputs, strict=True))
    rows, columns = len(a), len(b)
    c = None
    if product.beta:
        c = _repeated(_repeated(tensor(given["c"], product.output, device), m).t(), n).t().contiguous()
    with flags_set(product.flags):
        result = bits(CALLS[product.call](product, _repeated(a, m), _repeated(b, n), c))
    result = result.reshape(-1, m, n)[0]
    first = np.ascontiguousarray(result[:rows, :columns])
    expected = first[np.ix_(np.arange(m) % rows, np.arange(n) % columns)]
    moved = np.zeros((rows, columns), np.uint32)
    at = np.argwhere(result != expected)
    np.add.at(moved, (at[:, 0] % rows, at[:, 1] % columns), 1)
    return {"d": first, "moved": moved}


def _repeated(x: Any, count: int) -> Any:
    """Rows again and again until there are ``count``; through integers, which every format can be indexed as."""
    import torch

    integers = x.view(getattr(torch, f"int{8 * x.element_size()}"))
    at = torch.arange(count, device=x.device) % x.shape[0]
    return integers[at].view(x.dtype).contiguous()


def _matmul(product: Product, a: Any, b: Any, c: Any) -> Any:
    """Where halves are to give FP32, without the cast at the end (torch 2.8 and later)."""
    import torch

    if product.output != "fp32" or product.inputs[0] == "fp32":
        return a @ b.t()
    try:
        return torch.mm(a, b.t(), out_dtype=torch.float32)
    except TypeError:
        raise NotHereError(f"torch {torch.__version__} returns no FP32 from a product of half tensors.") from None


def scaled_mm(product: Any, a: Any, b: Any, c: Any = None) -> Any:
    """By scales of 1, to ``product.output``."""
    import torch

    scale = torch.ones((), dtype=torch.float32, device=a.device)
    dtype = getattr(torch, TORCH[product.output])
    return torch._scaled_mm(a, b.t(), scale_a=scale, scale_b=scale, out_dtype=dtype, use_fast_accum=product.fast)


def _int_mm(product: Product, a: Any, b: Any, c: Any) -> Any:
    from ..nn.int8_layers import int_mm

    return int_mm(a, b.t(), pad=False)


def _addmm(product: Product, a: Any, b: Any, c: Any) -> Any:
    import torch

    return torch.addmm(c, a, b.t(), alpha=product.alpha, beta=product.beta)


def _linear(product: Product, a: Any, b: Any, c: Any) -> Any:
    import torch

    return torch.nn.functional.linear(a, b)


CALLS: dict[str, Callable[[Product, Any, Any, Any], Any]] = {
    "matmul": _matmul,
    "bmm": lambda product, a, b, c: a.expand(4, *a.shape) @ b.t().expand(4, *b.t().shape),
    "addmm": _addmm,
    "linear": _linear,
    "scaled_mm": scaled_mm,
    "int_mm": _int_mm,
}


# --- hypotheses -------------------------------------------------------------------------------------------------
Plan = Mapping[str, Any]
ONE_CHAIN: Plan = {}


def hypotheses(product: Product) -> dict[str, Emulate]:
    """Plans that the product may follow."""
    plans: dict[str, Plan] = {"one chain": ONE_CHAIN}
    if product.emulated not in ("fp32", "fp64"):
        plans["one chain of mma"] = {"instruction": "mma"}
    if product.emulated == "tf32":
        plans |= {f"one chain, {c}": {"conversion": c} for c in ("rna", "rne")}
    plans |= {f"split-K {n}": {"split_k": n} for n in (2, 3, 4, 6, 8, 16)}
    plans |= {f"{n} accumulators": {"accumulators": n} for n in (2, 4, 8)}
    if product.call == "scaled_mm":
        plans |= {f"promoted every {n}": {"promote": n} for n in (32, 64, 128, 256, 512)}
    if product.beta:
        plans |= {"c in the accumulator": {"c": "accumulator"}, "c in the epilogue": {"c": "epilogue"}}
    if product.inputs[0] == "fp16":
        plans["FP16 sums"] = {"accumulate": "fp16"}
    return {name: partial(product_emulate, product, plan) for name, plan in plans.items()}


def product_emulate(product: Product, plan: Plan | None, given: Arrays, meta: Meta) -> Arrays:
    """What a plan gives; ``None``: only that nothing moves."""
    outputs = {"moved": np.zeros((len(given["a"]), len(given["b"])), np.uint32)}
    if plan is None:
        return outputs
    if product.emulated == "fp32":
        return {**outputs, "d": plain_product(given["a"], given["b"], plan)}
    c = values(given["c"], product.output) if product.beta else None
    return {**outputs, "d": core_product(product, given["a"], given["b"], c, plan, meta)}


def core_product(product: Product, a: np.ndarray, b: np.ndarray, c: Any, plan: Plan, meta: Meta) -> np.ndarray:
    """Tensor Core product of rows a (R, K) and b (C, K), by a plan, stored as torch stores it."""
    from ..tensorcore import Plan as Order
    from ..tensorcore import matmul

    order = {name: plan[name] for name in ("split_k", "accumulators", "promote", "c") if name in plan}
    x, y = values(a, product.inputs[0]), values(b, product.inputs[1])
    pair: Any = (product.emulated, product.emulated if product.emulated == "tf32" else product.inputs[1])
    accumulate = None if product.output in ("int32", "fp64") else plan.get("accumulate", "fp32")
    with np.errstate(all="ignore"):
        result = matmul(
            x, y.T, c, gpu=gpu_of(meta), inputs=pair, output=accumulate,
            store=product.output if product.output in ("fp16", "bf16") and accumulate == "fp32" else None,
            instruction=plan.get("instruction"), alpha=product.alpha, beta=product.beta or 1.0,
            plan=Order(**order) if order else None, conversion=plan.get("conversion"),
        )  # fmt: skip
    if product.output == "bf16":
        return (np.ascontiguousarray(result).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return codes(np.ascontiguousarray(result), product.output)


def plain_product(a: np.ndarray, b: np.ndarray, plan: Plan) -> np.ndarray:
    """FP32 product by fused multiply-adds in ascending k: slices added in order, accumulators dealt in turn."""

    x, y = values(a, "fp32"), values(b, "fp32")
    turns = int(plan.get("accumulators", 1))
    slices = np.array_split(np.arange(x.shape[1]), int(plan.get("split_k", 1)))
    chains = [part[turn::turns] for part in slices for turn in range(turns)]
    longest = max(map(len, chains))
    x, y = (np.pad(v, ((0, 0), (0, 1))) for v in (x, y))  # shorter chains end with 0 * 0, which changes nothing
    at = np.array([np.pad(chain, (0, longest - len(chain)), constant_values=-1) for chain in chains])
    sums = np.zeros((len(chains), len(x), len(y)), np.float32)
    for k in at.T:
        sums = np.asarray(numeric.fma(x[:, k].T[:, :, None], y[:, k].T[:, None, :], sums, "fp32"))
    total = sums[0]
    for addend in sums[1:]:
        total = total + addend
    return np.ascontiguousarray(total).view(np.uint32)


# --- convolutions -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Convolution:
    """One conv2d: ``shape`` is batch, channels, height and width, filters, and the filter's width (padding half)."""

    fmt: str
    shape: tuple[int, int, int, int, int]
    channels_last: bool = False
    flags: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        batch, channels, side, filters, width = self.shape
        text = f"conv2d {self.fmt} {batch}x{channels}x{side}x{side} {filters} filters {width}x{width}"
        text += " channels_last" * self.channels_last
        return " ".join([text, *(f"{key}={value}" for key, value in self.flags.items())])


CONVOLUTIONS: tuple[Convolution, ...] = tuple(
    Convolution(fmt, shape, last, flags)
    for fmt, flags in (
        ("fp16", {}), ("bf16", {}), ("fp32", {"cudnn.allow_tf32": False}), ("fp32", {"cudnn.allow_tf32": True}),
    )
    for shape, last in (
        ((2, 64, 6, 32, 3), False), ((2, 64, 6, 32, 3), True), ((2, 256, 4, 32, 1), True), ((2, 3, 8, 16, 3), False),
    )
)  # fmt: skip


def conv_case(convolution: Convolution) -> Case:
    """Inputs ``x`` and ``w``, output ``y`` (batch, filters, side, side)."""
    batch, channels, side, filters, width = convolution.shape

    def inputs() -> Arrays:
        draw = Draw(KEY + 300 + sum(convolution.shape))
        x = build(draw, convolution.fmt, draw.between(-6, 1, batch, channels, side, side))
        return {"x": x, "w": build(draw, convolution.fmt, draw.between(-6, 1, filters, channels, width, width))}

    def compute(given: Arrays, device: str) -> Arrays:
        torch = torch_for(device)
        memory = torch.channels_last if convolution.channels_last else torch.contiguous_format
        x, w = (tensor(given[name], convolution.fmt, device).contiguous(memory_format=memory) for name in "xw")
        with flags_set(convolution.flags):
            y = torch.nn.functional.conv2d(x, w, padding=width // 2)
        return {"y": bits(y.contiguous())}

    def emulate(order: str, conversion: str, given: Arrays, meta: Meta) -> Arrays:
        a, b = unfolded(given["x"], given["w"], order)
        tf32 = {PRECISION: "high"} if convolution.fmt == "fp32" and convolution.flags["cudnn.allow_tf32"] else {}
        like = Product("matmul", (convolution.fmt, convolution.fmt), convolution.fmt, (*a.shape[:1], *b.shape), tf32)
        if like.emulated == "fp32":
            y = plain_product(a, b, {})
        else:
            y = core_product(like, a, b, None, {"conversion": conversion} if tf32 else {}, meta)
        return {"y": np.ascontiguousarray(y.reshape(batch, side, side, filters).transpose(0, 3, 1, 2))}

    orders = {"k = (channel, row, column)": "crs", "k = (row, column, channel)": "rsc"}
    tried: dict[str, Emulate] = {f"one chain, {text}": partial(emulate, o, "truncate") for text, o in orders.items()}
    if convolution.flags.get("cudnn.allow_tf32"):
        tried |= {f"{text}, {c}": partial(emulate, o, c) for text, o in orders.items() for c in ("rna", "rne")}
    return Case(
        convolution.name, inputs, compute, lambda given, meta: {}, {"y": convolution.fmt},
        open="Which product does a convolution become?", hypotheses=tried,
    )  # fmt: skip


def unfolded(x: np.ndarray, w: np.ndarray, order: str) -> tuple[np.ndarray, np.ndarray]:
    """A convolution's operands as rows: a (batch*side*side, K) and b (filters, K), K in the order named."""
    batch, _, side, _ = x.shape
    width = w.shape[2]
    padded = np.pad(x, ((0, 0), (0, 0), (width // 2,) * 2, (width // 2,) * 2))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (width, width), axis=(2, 3))  # n c y x r s
    axes = (0, 2, 3, 1, 4, 5) if order == "crs" else (0, 2, 3, 4, 5, 1)
    a = windows.transpose(axes).reshape(batch * side * side, -1)
    b = (w if order == "crs" else w.transpose(0, 2, 3, 1)).reshape(w.shape[0], -1)
    return np.ascontiguousarray(a), np.ascontiguousarray(b)

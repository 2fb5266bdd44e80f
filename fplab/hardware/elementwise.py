"""Cases of torch's elementwise operations: arithmetic, contraction, functions, casts from FP64, optimizers.

They answer: are +, -, *, / and sqrt rounded correctly, FP32's division and square root too; where does the compiler
contract a*b + c into a fused multiply-add; what do exp and its relatives give; does a cast from FP64 round twice.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np

from .. import numeric
from .cases import Arrays, Case, Emulate, Meta, philox_bits, unmodelled
from .environment import torch_for
from .instructions import Scalar
from .programs import asked, cast, program
from .scalars import operands
from .tensors import bits, tensor

FORMATS = ("fp16", "bf16", "fp32")
KEY = 500
ALPHA = 0.3  # no power of two, so that a product by it rounds
ARITHMETIC = ("add", "sub", "mul", "div", "two steps", "reciprocal")
CONTRACTED: dict[str, Callable[[Any, Any, Any], Any]] = {  # of tensors
    "add alpha": lambda x, y, z: x.add(y, alpha=ALPHA),
    "sub alpha": lambda x, y, z: x.sub(y, alpha=ALPHA),
    "addcmul": lambda x, y, z: z.addcmul(x, y),
    "addcmul value": lambda x, y, z: z.addcmul(x, y, value=ALPHA),
    "addcdiv": lambda x, y, z: z.addcdiv(x, y, value=ALPHA),
    "lerp": lambda x, y, z: x.lerp(y, ALPHA),
    "lerp far": lambda x, y, z: x.lerp(y, 1 - ALPHA),
}
FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {  # torch's name, and the function in float64
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    "Adam": {"lr": 0.001},
    "AdamW": {"lr": 0.001, "weight_decay": 0.1},
}
WAYS: dict[str, dict[str, bool]] = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def cases() -> tuple[Case, ...]:
    by_format = [make(fmt) for make in (arithmetic_case, sqrt_case, contraction_case, function_case) for fmt in FORMATS]
    return (*by_format, from_fp64_case(), *(optimizer_case(name) for name in OPTIMIZERS))


def triple(fmt: str) -> Arrays:
    """Three operands: all combinations of special values, then random ones of like exponents."""
    suffix = {"fp16": "f16", "bf16": "bf16", "fp32": "f32"}[fmt]
    like = Scalar(f"fma.rn.{suffix}", 3, "f" if fmt == "fp32" else "h", "f")
    return dict(zip("xyz", operands(like, KEY + FORMATS.index(fmt)), strict=True))


def arithmetic_case(fmt: str) -> Case:
    """Operations that round once."""

    def does(x: Any, y: Any, z: Any) -> dict[str, Any]:
        results = {"add": x + y, "sub": x - y, "mul": x * y, "div": x / y}
        return {**results, "two steps": x * y + z, "reciprocal": x.reciprocal()}

    return program(f"arithmetic in {fmt}", partial(triple, fmt), dict.fromkeys("xyz", fmt), does,
                   dict.fromkeys(ARITHMETIC, fmt))  # fmt: skip


def every_code(fmt: str) -> Arrays:
    """All codes of a 16-bit format; of FP32 those of :func:`triple`'s first operand."""
    if fmt != "fp32":
        return {"x": np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)}
    return {"x": triple("fp32")["x"]}


def sqrt_case(fmt: str) -> Case:
    """The square root. torch's FP32 one on CPUs is not always correctly rounded, and so it is a question on a GPU."""
    question = "Is torch's FP32 square root correctly rounded?" if fmt == "fp32" else ""
    return program(f"square root in {fmt}", partial(every_code, fmt), {"x": fmt}, lambda x: {"sqrt": x.sqrt()},
                   {"sqrt": fmt}, open=question)  # fmt: skip


# --- contraction ------------------------------------------------------------------------------------------------
def contraction_case(fmt: str) -> Case:
    """Operations whose a*b + c the compiler may fuse. Half formats compute in FP32 and round once at the end."""
    hypotheses = {
        "every step rounds": partial(contracted, fmt, "never"),
        "the last product is fused": partial(contracted, fmt, "last"),
        "value times x first, then fused": partial(contracted, fmt, "scaled"),
    }
    if fmt != "fp32":  # the number alpha may be rounded to the tensors' format before
        hypotheses |= {
            f"{text}, alpha in {fmt}": partial(contracted, fmt, fused, narrow=True)
            for text, fused in (("every step rounds", "never"), ("the last product is fused", "last"))
        }
    return asked(f"contraction in {fmt}", fmt, partial(triple, fmt), CONTRACTED, "Does the compiler contract a*b + c?",
                 hypotheses)  # fmt: skip


def contracted(fmt: str, fused: str, given: Arrays, meta: Meta, narrow: bool = False) -> Arrays:
    """The operations in FP32 steps. ``fused``: "never", "last" (the sum's last product), or "scaled".

    ``narrow``: the number alpha is rounded to the tensors' format first.
    """

    def add(p: Any, q: Any) -> Any:
        return numeric.add(p, q, "fp32")

    def mul(p: Any, q: Any) -> Any:
        return numeric.mul(p, q, "fp32")

    def multiply_add(p: Any, q: Any, r: Any) -> Any:
        return add(mul(p, q), r) if fused == "never" else numeric.fma(p, q, r, "fp32")

    with np.errstate(all="ignore"):
        x, y, z = (numeric.decode(given[name], fmt, np.float32) for name in "xyz")
        alpha, far = np.full_like(x, ALPHA), np.full_like(x, 1 - ALPHA)
        if narrow:
            alpha, far = (numeric.quantize(v, fmt) for v in (alpha, far))
        gap = numeric.sub(y, x, "fp32")
        results = {
            "add alpha": multiply_add(alpha, y, x),
            "sub alpha": multiply_add(-alpha, y, x),
            "addcmul": add(z, mul(x, y)) if fused == "last" else multiply_add(x, y, z),
            "addcmul value": multiply_add(alpha, mul(x, y), z),
            "addcdiv": multiply_add(alpha, numeric.div(x, y, "fp32"), z),
            "lerp": multiply_add(alpha, gap, x),
            "lerp far": multiply_add(-gap, numeric.sub(np.ones_like(x), far, "fp32"), y),
        }
        if fused == "scaled":
            results["addcmul value"] = multiply_add(mul(alpha, x), y, z)
            results["addcdiv"] = add(z, numeric.div(mul(alpha, x), y, "fp32"))
        return {name: np.asarray(numeric.encode(value, fmt)) for name, value in results.items()}


# --- functions --------------------------------------------------------------------------------------------------
def function_case(fmt: str) -> Case:
    """exp and its relatives on every code."""
    hypotheses: dict[str, Emulate] = {"the correctly rounded result": partial(rounded, fmt, False)}
    if fmt != "fp32":
        hypotheses["rounded to FP32, then again"] = partial(rounded, fmt, True)
    functions = {name: methodcaller(name) for name in FUNCTIONS}
    return asked(f"functions in {fmt}", fmt, partial(every_code, fmt), functions,
                 "What do exp and its relatives give?", hypotheses)  # fmt: skip


def rounded(fmt: str, twice: bool, given: Arrays, meta: Meta) -> Arrays:
    """The functions in float64, rounded to the format (``twice``: to float32 first)."""
    with np.errstate(all="ignore"):
        x = numeric.decode(given["x"], fmt, np.float64)
        values = {name: function(x) for name, function in FUNCTIONS.items()}
        if twice:
            values = {name: value.astype(np.float32) for name, value in values.items()}
        return {name: np.asarray(numeric.encode(value, fmt)) for name, value in values.items()}


# --- casts ------------------------------------------------------------------------------------------------------
def from_fp64_case() -> Case:
    """FP64 to narrow formats, just above and below midpoints: once, or through FP32."""
    targets = ("fp32", "fp16", "bf16", "e4m3", "e5m2")

    def inputs() -> Arrays:
        near_midpoints = []
        for number, fraction_bits in enumerate((10, 7, 3, 2)):
            raw = philox_bits(KEY + 20 + number, 512, dtype=np.uint64)
            exponent = (raw % np.uint64(12)).astype(np.int64) - 6
            midpoint = 1 + ((raw >> np.uint64(30)).astype(np.int64) % (1 << fraction_bits) + 0.5) / (1 << fraction_bits)
            nudge = np.where(raw >> np.uint64(63), 1, -1) * 2.0**-40
            near_midpoints.append(np.ldexp(midpoint + nudge, exponent))
        values = np.concatenate([*near_midpoints, [65520 - 2.0**-30, 448.0, 464.0, 1e300, -1e300, 5e-324, 0.0, -0.0]])
        return {"x": values.view(np.uint64)}

    def does(x: Any, through: bool) -> dict[str, Any]:
        x = cast(x, "fp32") if through else x
        return {target: cast(x, target) for target in targets}

    once, twice = (
        program("casts from fp64", inputs, {"x": "fp64"}, partial(does, through=through), {t: t for t in targets})
        for through in (False, True)
    )
    return replace(once, emulate=twice.emulate, hypotheses={"rounded once": once.emulate})


# --- optimizers -------------------------------------------------------------------------------------------------
def optimizer_case(name: str) -> Case:
    """Three steps of an optimizer on 512 FP32 parameters, in each of torch's three ways."""

    def inputs() -> Arrays:
        raw = philox_bits(KEY + 40, 4, 512)
        exponent = np.uint32(115) + raw % np.uint32(14)  # 2**-12 to 2**1
        codes = (raw & np.uint32(0x807FFFFF)) | (exponent << np.uint32(23))
        return {"parameters": codes[0].copy(), "gradients": codes[1:].copy()}

    def compute(given: Arrays, device: str) -> Arrays:
        torch = torch_for(device)
        results = {}
        for way, options in WAYS.items():
            parameter = tensor(given["parameters"], "fp32", device).clone().requires_grad_(True)
            optimizer = getattr(torch.optim, name)([parameter], **OPTIMIZERS[name], **options)
            for gradient in tensor(given["gradients"], "fp32", device):
                parameter.grad = gradient.clone()
                optimizer.step()
            results[way] = bits(parameter.detach())
        return results

    return Case(
        f"three steps of {name}", inputs, compute, unmodelled, dict.fromkeys(WAYS, "fp32"),
        open="Which operations of the optimizer are contracted?",
    )  # fmt: skip

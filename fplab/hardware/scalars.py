"""Instructions on single numbers: their operands, running them, and what the lab says they give."""

from collections.abc import Callable, Sequence

import numpy as np

from .. import formats, numeric
from .cases import philox_bits
from .instructions import Launcher, Scalar
from .tiles import Codes, to_device, to_host

ROWS = 4096
THREADS = 256


def operands(scalar: Scalar, key: int) -> list[Codes]:
    """Codes of every operand: all specials with all, then random ones, half of them of like exponents.

    An 8-bit or a 16-bit source of one operand gives all its codes.
    """
    if scalar.source is np.uint16 and scalar.operands == 1:
        return [np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)]
    half = scalar.element == "fp16x2"
    form = formats.get("fp16" if half else scalar.element)
    word = np.uint16 if form.bits == 16 else np.uint32
    plain = [0, 1, 2, (1 << form.fraction_bits) - 1, 1 << form.fraction_bits, form.max_code - 1, form.max_code]
    top = (1 << (form.bits - 1)) - 1
    plain += [form.inf_code or 0, (form.inf_code or 0) + 1, top, int(form.bias or 0) << form.fraction_bits]
    special = np.array([*plain, *(p | form.sign_mask for p in plain)], word)
    grid = [g.ravel() for g in np.meshgrid(*[special] * scalar.operands, indexing="ij")]
    inputs = []
    for number, ends in enumerate(grid):
        bits = philox_bits(key * 10 + number, ROWS, dtype=word)
        near = bits[::2]  # exponents within 16 of 1
        exponent = (near >> form.fraction_bits) % 33 + (form.bias or 0) - 16 if form.exponent_bits > 5 else None
        if exponent is not None:
            keep = np.array(form.sign_mask | ((1 << form.fraction_bits) - 1), word)
            bits[::2] = (near & keep) | (exponent.astype(word) << np.array(form.fraction_bits, word)).astype(word)
        inputs.append(np.concatenate([ends, bits]))
    if half:  # two numbers a word
        inputs = [x.astype(np.uint32) | (np.roll(x, 1).astype(np.uint32) << np.uint32(16)) for x in inputs]
    return inputs


def run(scalar: Scalar, given: Sequence[Codes], device: str, launcher: Launcher) -> Codes:
    """The instruction on a device; missing operands are the first again, and not read."""
    n = given[0].size
    tensors = [to_device(x, device) for x in given]
    tensors += [tensors[0]] * (3 - len(tensors))
    out = to_device(np.full(n, -1).astype(scalar.result), device)
    launcher.launch(scalar.kernel, -(-n // THREADS), THREADS, [*tensors, out, n])
    return to_host(out, scalar.result)


def emulate(scalar: Scalar, given: Sequence[Codes]) -> Codes | None:
    """What the lab says, or None where it has no model: the approximations."""
    operation, *modifiers = scalar.opcode.split(".")
    if "approx" in modifiers or "full" in modifiers:
        return None
    with np.errstate(all="ignore"):
        y = _converted(scalar, given) if operation == "cvt" else _computed(scalar, operation, given)
        return np.asarray(y, scalar.result)


def _computed(scalar: Scalar, operation: str, given: Sequence[Codes]) -> Codes:
    x = [numeric.decode(v, scalar.element, np.float32) for v in given]
    if operation == "rcp":
        operation, x = "div", [np.ones_like(x[0]), *x]
    return np.asarray(numeric.encode(getattr(numeric, operation)(*x, scalar.element), scalar.element))


def _converted(scalar: Scalar, given: Sequence[Codes]) -> Codes:
    """A conversion; of two numbers the first goes to the upper half, and a NaN of FP8 or of a pair is all ones."""
    modifiers = scalar.opcode.split(".")[1:]
    target, mode = modifiers[-2], {"rn": "rne", "rna": "rna", "rz": "rtz"}[modifiers[0]]
    if target in ("tf32", "f16", "bf16"):
        single, fmt = given[0].view(np.float32), "fp16" if target == "f16" else target
        code = np.asarray(numeric.encode(single, fmt, rounding=mode))
        return code.astype(np.uint32) << np.uint32(13) if target == "tf32" else code
    if target == "f16x2":
        source, fmt, low_bits = modifiers[-1].removesuffix("x2"), "fp16", 16
        numbers = [np.asarray(numeric.decode(_part(given[0], i, 8), source, np.float32)) for i in (1, 0)]
    elif scalar.element == "fp16x2":
        fmt, low_bits = target.removesuffix("x2"), 8
        numbers = [np.asarray(numeric.decode(_part(given[0], i, 16), "fp16", np.float32)) for i in (1, 0)]
    else:
        fmt, low_bits, numbers = target.removesuffix("x2"), 8, [v.view(np.float32) for v in given]
    codes = []
    for number in numbers:
        policy = "saturate" if "satfinite" in modifiers else None
        code = np.asarray(numeric.encode(number, fmt, overflow=policy))
        codes.append(np.where(np.isnan(number), (1 << (low_bits - 1)) - 1, code).astype(np.uint32))
    return np.asarray((codes[0] << np.uint32(low_bits)) | codes[1])


def _part(words: Codes, number: int, width: int) -> Codes:
    """The lower (0) or upper (1) ``width`` bits of words twice as wide."""
    codes: Codes = (words >> np.array(width * number, words.dtype)).astype(np.uint16 if width == 16 else np.uint8)
    return codes


FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "tanh": np.tanh,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
    "rcp": lambda x: 1 / x,
    "div": np.divide,
}


def correctly_rounded(scalar: Scalar, given: Sequence[Codes]) -> Codes:
    """What an approximation approximates, from float64, rounded once to its format (float64's own error apart)."""
    with np.errstate(all="ignore"):
        exact = FUNCTIONS[scalar.opcode.split(".")[0]](*(numeric.decode(x, scalar.element, np.float64) for x in given))
        return np.asarray(numeric.encode(np.asarray(exact, np.float64), scalar.element)).astype(scalar.result)

"""Part ``silicon``: this CPU's own conversions, in every case there is, and its arithmetic in many, against the lab."""

import numpy as np

from fplab.hardware import cpu_cases, cpu_units

from .casts import BLOCK, BLOCKS
from .shares import Part, Share, cut, demand_same

MANY = 1 << 16  # operands of an operation in one share, each under 16 settings of MXCSR


def to_half(rounding: str, numbers: range) -> int:
    """FP32 patterns to FP16: F16C against encode."""
    count = 0
    for number in numbers:
        x = np.arange(number * BLOCK, (number + 1) * BLOCK, dtype=np.uint32)
        got, _ = cpu_units.run(cpu_units.TO_HALF[rounding], x)
        count += demand_same(cpu_cases.halves(x, rounding), got, f"encode to fp16, {rounding}, and F16C", x)
    return count


def to_bf16(numbers: range) -> int:
    """FP32 patterns to BF16: AVX512-BF16 against encode of what is not subnormal."""
    count = 0
    for number in numbers:
        x = np.arange(number * BLOCK, (number + 1) * BLOCK, dtype=np.uint32)
        got, _ = cpu_units.run(cpu_units.TO_BF16, x)
        count += demand_same(cpu_cases.shortened(x), got, "encode to bf16 and vcvtneps2bf16", x)
    return count


def arithmetic(operation: str, fmt: str, n: int, part: int) -> int:
    """One operation under every setting: bits and flags."""
    count = 0
    given = [cpu_cases.numbers(n, fmt, 90_000 + 10 * part + i) for i in range(cpu_cases.OPERANDS.get(operation, 2))]
    for mode in cpu_cases.MODES:
        rounding, daz, ftz = mode
        unit = cpu_units.SCALARS[operation, fmt]
        got, raised = cpu_units.run(unit, *given, rounding=rounding, daz=daz, ftz=ftz)
        want, flags = cpu_cases.operate(operation, fmt, given, *mode)
        what = f"{operation} in {fmt}, {cpu_cases.mode_name(*mode)}, and {unit.name}"
        count += demand_same(want, got, what, *given)
        demand_same(flags, raised, f"flags of {what}", *given)
    return count


def pairs(n: int, part: int) -> int:
    """Pairs of BF16 into FP32: AVX512-BF16 against two fused multiply-adds."""
    a, b = (cpu_cases.pairs(cpu_cases.numbers(2 * n, "bf16", 95_000 + 10 * part + i)) for i in range(2))
    c = cpu_cases.numbers(n, "fp32", 95_002 + 10 * part)
    got, _ = cpu_units.run(cpu_units.BF16_PAIRS, a, b, c)
    got, want = got.view(np.float32), cpu_cases.chain(a, b, c).view(np.float32)
    return demand_same(want, np.where(np.isnan(got) & np.isnan(want), want, got), "vdpbf16ps", a, b, c)


def shares(quick: bool) -> list[Share]:
    """Everything that this CPU has a unit for; nothing where it has none."""
    found: list[Share] = []
    claim, against = "FP32 to FP16, every pattern, four roundings", "F16C of this CPU"
    for rounding, unit in cpu_units.TO_HALF.items():
        if cpu_units.present(unit):
            found += [Share(claim, against, to_half, (rounding, part)) for part in cut(BLOCKS, 16, quick)]
    if cpu_units.present(cpu_units.TO_BF16):
        claim, against = "FP32 to BF16, every pattern, subnormals flushed", "AVX512-BF16 of this CPU"
        found += [Share(claim, against, to_bf16, (part,)) for part in cut(BLOCKS, 16, quick)]
        many, n = (1, MANY) if quick else (16, 1 << 22)
        found += [Share("pairs of BF16 into FP32", against, pairs, (n, part)) for part in range(many)]
    for (operation, fmt), unit in cpu_units.SCALARS.items():
        if cpu_units.present(unit):
            n = {"fp32": MANY, "fp64": 256}[fmt] // (16 if quick else 1)
            claim = f"arithmetic of {fmt.upper()}, four roundings, subnormals kept and flushed; flags"
            parts = range(1 if quick else 17)
            found += [Share(claim, "SSE and FMA of this CPU", arithmetic, (operation, fmt, n, part)) for part in parts]
    return found


PART = Part("silicon", "this CPU's own units", shares)

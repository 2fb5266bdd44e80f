"""Rounding of tensors into any format that float32 holds, on the device where they are."""

from typing import Any

import numpy as np
import torch

from ...errors import LabError, quotes_call
from ...formats import Format, FormatLike, Overflow, Rounding, get
from ...kernels.rounding import MODES, stream_keys
from ...plans import layout, options, seed_bits
from . import running

PART = 1 << 30  # elements of one launch, whose indices are 32-bit numbers


@quotes_call
def quantize(
    x: torch.Tensor, fmt: FormatLike, rounding: str | Rounding = "rne", overflow: str | Overflow | None = None,
    subnormals: bool | str = True, *, seed: int | None = None, nan: str | None = None,
) -> torch.Tensor:  # fmt: skip
    """:func:`fplab.quantize` of a tensor, whose device it stays on: float32 of its shape, bit for bit the same.

    ``x``: float32, float16, bfloat16 or an 8-bit float. Raises LabError for float64, which would be rounded twice,
    for formats that float32 does not hold, and for more than 2**30 elements with a ``seed``.
    """
    form = get(fmt)
    opt = options(form, rounding, overflow, subnormals, nan)
    if not running.has_values(x) or not x.is_floating_point() or x.dtype == torch.float64:
        raise LabError("x must be a dense tensor of float32 or fewer bits; fplab.quantize takes others, on the CPU.")
    if not form.fits_float32:
        raise LabError(f"{form.name} does not fit float32, in which tensors travel here; fplab.quantize takes it.")
    flat = x.detach().float().contiguous().view(-1)
    if not form.has_nan and nan is None and bool(torch.isnan(flat).any()):
        at = int(torch.isnan(flat).nonzero()[0])
        raise LabError(f'element {at} gives NaN, and {form.name} has none; pass nan="zero" or nan="max" to replace it.')
    if opt.mode == MODES["stochastic"] and flat.numel() > PART:
        raise LabError(f"x has {flat.numel():,} elements; with a seed at most {PART:,} are rounded at once here.")
    keys = [int(key) for key in stream_keys(seed_bits(opt.mode, seed), np.uint64(0))]
    kernel, out = _kernel(form, opt), torch.empty_like(flat)
    for start in range(0, flat.numel(), PART):
        part, into = flat[start : start + PART], out[start : start + PART]
        signed = [key - (key >> 31 << 32) for key in keys]
        running.run(kernel, str(x.device), part.numel(), part, into, part.numel(), *signed)
    return out.view(x.shape)


def _kernel(form: Format, opt: Any) -> Any:
    """The kernel of a format and its options."""
    result = layout(form)
    return running.kernel("quantize", ("quantize.h",), {
        "FRACTION": result.fraction_bits, "EMIN": result.emin, "ZERO": result.zero, "MAX_CODE": result.max_code,
        "SIGNED": int(result.sign_shift >= 0), "SPECIALS": result.specials, "BY_CODE": result.ties_by_code,
        "MODE": opt.mode, "TO": opt.overflow,
        "DAZ": opt.daz, "FTZ": opt.ftz, "NAN_TO": opt.nan,
    })  # fmt: skip

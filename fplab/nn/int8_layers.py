"""Linear layers that compute in integers, for inference with any torch model.

``int8_linears(model)`` gives a copy of a model whose ``nn.Linear`` layers multiply INT8 codes with ``torch._int_mm`` by
a method of LLM.int8()'s Table 1; ``int4_linears(model)`` one whose weights are INT4 in groups. The bits of an
:class:`Int8Linear` without bias are those of :func:`fplab.integers.matmul`.
"""

import functools
from collections.abc import Callable, Collection

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import LabError, door, quoted, quotes_call
from ..integers import Method, quantize, quantize_groups, scheme, symmetric
from ..integers.affine import SMALLEST_SCALE
from ..integers.products import THRESHOLD, demand_choice, demand_int32, demand_threshold, method_of
from .converting import IntegerLinear, convert_experts, experts_of, linear_of, say_what_is_left
from .replacing import named_modules, replaced

LOW, HIGH = -127, 127
CUDA_ROWS, CUDA_MULTIPLE = 32, 8  # torch._int_mm on CUDA wants more than 16 rows, and multiples of 8 elsewhere


@functools.cache
def saturates_here() -> bool:
    """Whether ``torch._int_mm`` is wrong here.

    On some CPUs torch hands it to oneDNN, which adds products in pairs to 16 bits where it may not use the VNNI
    instructions, and what does not fit saturates (oneDNN's developer guide, "Nuances of int8 computations"). On others,
    an AMD one with AVX2 alone among them, torch's own loop adds in 32 bits.
    """
    full = torch.full((32, 32), HIGH, dtype=torch.int8)
    return bool((torch._int_mm(full, full) != 32 * HIGH * HIGH).any())


def int_mm(a: Tensor, b: Tensor, pad: bool | None = None) -> Tensor:
    """``torch._int_mm`` of int8 (M, K) and (K, N) of any size: padded with zeros where the device (CUDA) demands it.

    On a CPU that :func:`saturates_here` the sums are FP64's, exact too, and wrap at 32 bits as they do elsewhere.
    """
    if a.device.type == "cpu" and saturates_here():
        return (a.double() @ b.double()).long().int()
    if not (a.is_cuda if pad is None else pad):
        return torch._int_mm(a, b)
    (m, k), n = a.shape, b.shape[1]
    more_m = max(CUDA_ROWS - m, 0)
    more_k, more_n = -k % CUDA_MULTIPLE, -n % CUDA_MULTIPLE
    return torch._int_mm(nn.functional.pad(a, (0, more_k, 0, more_m)), nn.functional.pad(b, (0, more_n, 0, more_k)))[
        :m, :n
    ]


def demand_linear(linear: nn.Module) -> None:
    """An error for what is no linear layer."""
    if not isinstance(linear, nn.Linear):
        raise LabError(f"linear is {type(linear).__name__}, and takes the place of an nn.Linear.")
    if linear.weight.is_meta:
        raise LabError("linear is on the device meta, where there are no values to quantise.")


def demand_features(x: Tensor, k: int) -> Tensor:
    """The input, if its last axis has the ``k`` features of a layer."""
    if not x.ndim or x.shape[-1] != k:
        raise LabError(f"inputs have shape {tuple(x.shape)}, and the layer takes {k} features in the last axis.")
    return x


@door
class Int8Linear(IntegerLinear):
    """A linear layer in INT8: (..., K) in, (..., N) out in the input's dtype. For inference: it has no gradient.

    Computed in INT8, INT32 and float32 whatever the dtype; a 16-bit result is the float32 one rounded once.
    ``linear``: the layer it stands for, which is left as it is. ``method``: of :data:`fplab.integers.METHODS`.
    ``threshold`` and ``outlier_weights``: as in :func:`fplab.integers.matmul`; "fp16" holds a second copy of the
    weights, three bytes each in all, "int8" the bytes of ``fplab.memory.estimate(..., inference="int8")``.
    ``amax``: a calibrated largest input, which fixes the inputs' scale instead of taking it from each
    batch (methods with one symmetric constant for X).

    Raises LabError for a layer so wide that its INT32 sums could overflow, and for inputs with NaN or infinity.
    """

    fixed = ("scale", "rows16")

    codes: Tensor
    scale: Tensor
    zero_point: Tensor | None
    rows16: Tensor | None
    bias: Tensor | None

    def __init__(
        self, linear: nn.Linear, method: str | Method = "llm_int8", threshold: float = THRESHOLD,
        outlier_weights: str = "fp16", amax: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        demand_linear(linear)
        self.method, self.threshold = method_of(method), demand_threshold(threshold)
        demand_choice(outlier_weights)
        width = HIGH - LOW if self.method.zero_point else HIGH
        demand_int32(linear.in_features, width, width)
        if amax is not None and (self.method.inputs != "tensor" or self.method.zero_point):
            raise LabError(f'amax fixes the one scale of method "absmax"; {self.method.name} has others.')
        self.amax = amax
        if amax is not None:
            symmetric(amax, "int8")  # refuses what is no magnitude
        w = linear.weight.detach().float().cpu().numpy().T
        how = scheme(w, "int8", self.method.weights, self.method.zero_point)
        keeps = self.method.decompose and outlier_weights == "fp16"
        self.keep(
            linear, codes=quantize(w, how), scale=np.atleast_2d(how.scale),
            zero_point=np.atleast_2d(how.zero_point) if self.method.zero_point else None,
            rows16=linear.weight.detach().T.half().contiguous() if keeps else None,
        )  # fmt: skip

    def weights(self) -> int:
        """The number of codes."""
        return self.codes.numel()

    @torch.no_grad()
    def forward(self, input: Tensor) -> Tensor:
        """The product in integers, scaled back, and the bias."""
        x = demand_features(input, self.codes.shape[0])
        flat = x.reshape(-1, x.shape[-1]).float()
        if not torch.isfinite(flat).all():
            raise LabError("the inputs of an Int8Linear hold NaN or infinity, which no integer stands for.")
        result = flat.new_zeros(flat.shape[0], self.codes.shape[1])
        if flat.numel():
            apart = (flat.abs() >= self.threshold).any(0) if self.method.decompose else None
            if apart is None or not apart.any():
                result = self._quantised(flat, self.codes)
            else:
                if not apart.all():
                    result = self._quantised(flat[:, ~apart], self.codes[~apart])
                result = result + self._decomposed(flat, apart)
        if self.bias is not None:
            result = result + self.bias.float()
        return result.reshape(*x.shape[:-1], self.codes.shape[1]).to(x.dtype if x.is_floating_point() else result.dtype)

    def _scheme(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and zero point of inputs, (T, 1) or (1, 1). Divisors are tensors: CUDA multiplies by 1 / a number."""
        if self.amax is not None:
            how = symmetric(np.float32(self.amax), "int8")
            return x.new_full((1, 1), float(how.scale)), torch.zeros(1, 1, dtype=torch.int32, device=x.device)
        over = x if self.method.inputs == "row" else x.reshape(1, -1)
        if not self.method.zero_point:
            amax = over.abs().amax(1, keepdim=True)
            scale = (amax / torch.full_like(amax, HIGH)).clamp(min=float(SMALLEST_SCALE))
            return scale, torch.zeros_like(scale, dtype=torch.int32)
        low, high = over.amin(1, keepdim=True).clamp(max=0), over.amax(1, keepdim=True).clamp(min=0)
        scale = ((high - low) / torch.full_like(low, HIGH - LOW)).clamp(min=float(SMALLEST_SCALE))
        return scale, (LOW - torch.round(low / scale)).clamp(LOW, HIGH).int()

    def _quantised(self, x: Tensor, codes: Tensor) -> Tensor:
        """The part in INT8. With zero points, (a - za)(b - zb) is multiplied out: the product itself stays INT8."""
        scale, zero = self._scheme(x)
        steps = torch.round(x * torch.reciprocal(scale))
        own = (torch.minimum(torch.maximum(steps, (LOW - zero).float()), (HIGH - zero).float()).int() + zero).to(
            torch.int8
        )
        total = int_mm(own, codes)
        if self.zero_point is not None:
            rows, columns = own.sum(1, keepdim=True, dtype=torch.int32), codes.sum(0, keepdim=True, dtype=torch.int32)
            total = total - zero * columns - self.zero_point * rows + x.shape[1] * zero * self.zero_point
        return total.float() * (scale * self.scale)

    def _decomposed(self, x: Tensor, apart: Tensor) -> Tensor:
        """The part in FP16: a dimension after another into FP64 sums, so that the bits depend on no device."""
        a = x[:, apart].half().double()
        if not torch.isfinite(a).all():
            raise LabError(f"an outlier is {float(x.abs().max())!r}, beyond FP16's 65504.")
        zero = 0 if self.zero_point is None else self.zero_point
        b = self.rows16[apart] if self.rows16 is not None else (self.codes[apart].int() - zero) * self.scale
        b = b.half().double()
        if not torch.isfinite(b).all():
            raise LabError("a weight that an outlier meets is beyond FP16's 65504.")
        total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64, device=a.device)
        for k in range(a.shape[1]):
            total += a[:, k, None] * b[k]
        return total.float()

    def extra_repr(self) -> str:
        """The sizes and the method, for ``print(model)``."""
        return f"{self.codes.shape[0]}, {self.codes.shape[1]}, method={self.method.name!r}, threshold={self.threshold}"


@door
class Int4Linear(IntegerLinear):
    """A linear layer whose weights are INT4 in groups along the inputs; the product itself is in the input's dtype.

    ``group``: weights of one output that share a scale (128). ``zero_point``: groups with zero points on 16 codes;
    otherwise symmetric, on the 15 codes from -7 to 7. Weights are unpacked at every call: what this saves is memory.
    Scales are float32: with ``group=64`` it holds the bytes of ``fplab.memory.estimate(..., inference="int4")``.
    """

    packed: Tensor
    scale: Tensor
    zero_point: Tensor | None
    bias: Tensor | None
    fixed = ("scale",)

    def __init__(self, linear: nn.Linear, group: int = 128, zero_point: bool = False) -> None:
        super().__init__()
        demand_linear(linear)
        w = linear.weight.detach().float().cpu().numpy()
        groups = quantize_groups(w, group, "int4_full" if zero_point else "int4", zero_point)
        self.k, self.group = groups.k, groups.group
        codes = groups.zero_point.astype(np.int8) if zero_point else None  # one of 16
        self.keep(linear, packed=groups.packed, scale=groups.scale, zero_point=codes)

    def weights(self) -> int:
        """The number of codes, two in a byte."""
        return self.k * len(self.packed)

    def weight(self) -> Tensor:
        """The weights (N, K) that the codes stand for, float32."""
        both = torch.stack([self.packed & 15, self.packed >> 4], -1).flatten(1)[:, : self.k]
        codes = (both ^ 8).int() - 8
        if self.zero_point is not None:
            codes = codes - self._of_weights(self.zero_point)
        return codes.float() * self._of_weights(self.scale)

    def _of_weights(self, groups: Tensor) -> Tensor:
        """A number of each group for each of its weights."""
        return groups.repeat_interleave(self.group, 1)[:, : self.k]

    @torch.no_grad()
    def forward(self, input: Tensor) -> Tensor:
        """(..., K) in, (..., N) out."""
        x = demand_features(input, self.k)
        return nn.functional.linear(x, self.weight().to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))

    def extra_repr(self) -> str:
        """The sizes, for ``print(model)``."""
        return f"{self.k}, {self.packed.shape[0]}, group={self.group}"


@quotes_call
def int8_linears(
    model: nn.Module, method: str | Method = "llm_int8", threshold: float = THRESHOLD, outlier_weights: str = "fp16",
    skip: Collection[str] = (),
) -> nn.Module:  # fmt: skip
    """A copy of a model whose linear layers are :class:`Int8Linear`, those named in ``skip`` excepted.

    They are ``nn.Linear``, and Hugging Face's ``Conv1D`` and experts; :func:`conversion` says what was converted, and a
    warning if much was not. ``method``, ``threshold`` and ``outlier_weights``: as :class:`Int8Linear`'s.
    What a ``nn.MultiheadAttention`` multiplies by itself stays as it is: its projections are no layers that are called.

    >>> int8_linears(nn.Sequential(nn.Linear(4, 2)), "vectorwise")[0]
    Int8Linear(4, 2, method='vectorwise', threshold=6.0)
    """
    return _with_linears(model, lambda linear: Int8Linear(linear, method, threshold, outlier_weights), skip)


@quotes_call
def int4_linears(model: nn.Module, group: int = 128, zero_point: bool = False, skip: Collection[str] = ()) -> nn.Module:
    """A copy of a model whose linear layers are :class:`Int4Linear`, those named in ``skip`` excepted.

    Which they are: as :func:`int8_linears`. ``group`` and ``zero_point``: as :class:`Int4Linear`'s.
    """
    return _with_linears(model, lambda linear: Int4Linear(linear, group, zero_point), skip)


def _with_linears(model: nn.Module, make: Callable[[nn.Linear], nn.Module], skip: Collection[str]) -> nn.Module:
    """A copy of a model with its linear layers made anew."""
    left = (skip,) if isinstance(skip, str) else skip
    linears = named_modules(model, lambda module: linear_of(module) is not None or bool(experts_of(module)))
    if not linears:
        raise LabError(f"{type(model).__name__} has no nn.Linear; what could be quantised is of other types.")
    if missing := [name for name in left if name not in linears]:
        raise LabError(f"skip names {quoted(missing)}, but the linear layers are {list(linears)}.")

    def made(_: str, module: nn.Module) -> nn.Module:
        linear = linear_of(module)
        return convert_experts(module, make) if linear is None else make(linear)

    result = replaced(model, [name for name in linears if name not in left], made)
    say_what_is_left(result, left)
    return result

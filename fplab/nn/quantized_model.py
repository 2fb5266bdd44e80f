"""Any model with integer weights and inputs in its layers: calibrated, fake-quantised, and trained further as it is.

::

    seen = observe(model, batches)                      # histograms of every layer's inputs
    how = Quantization(weights="int4", inputs="uint4", along="channel", calibrator="p99.99")
    quantised = fake_quantized(model, seen, how)        # post-training quantisation
    train(quantised, ...)                               # quantisation-aware training: the same loop

A layer is a convolution or a linear one; its bias and its sums stay in FP32, as INT32 sums of codes do on a device.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from ..errors import LabError, door, quotes_call, summary, unknown
from ..integers import CALIBRATORS, Affine, Histogram, affine, symmetric
from ..integers.affine import demand_sign
from ..integers.calibration import BINS, Calibrator
from ..integers.grids import GridLike, get
from .fake_quantization import FakeQuantize, LearnedStep
from .replacing import named_modules, replaced

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
WEIGHTS_ALONG = ("tensor", "channel")


@door
@dataclass(frozen=True)
class Quantization:
    """How a model is quantised. ``weights``, ``inputs``: grids by name. ``along``: of weights, "tensor" or "channel".

    ``calibrator``: by name, of :data:`fplab.integers.CALIBRATORS`; it sets the inputs' ranges, and those of weights if
    ``calibrate_weights`` (otherwise their largest magnitude does). ``zero_point``: inputs with a zero point, whose
    range is what was seen, cut at the calibrated magnitude on both sides. ``learned``: scales are parameters.
    """

    weights: str = "int8"
    inputs: str = "int8"
    along: str = "channel"
    calibrator: str = "max"
    calibrate_weights: bool = False
    zero_point: bool = False
    learned: bool = False


def calibrator_of(name: str) -> Calibrator:
    """The calibration rule of a name."""
    for one in CALIBRATORS:
        if one.name == name:
            return one
    raise unknown("calibrator", name, [one.name for one in CALIBRATORS])


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that can be quantised, by name; not those whose weights ``nn.MultiheadAttention`` takes itself."""

    def wanted(module: nn.Module) -> bool:
        return isinstance(module, LAYERS) and not isinstance(module, NonDynamicallyQuantizableLinear)

    found = named_modules(model, wanted)
    if not found:
        raise LabError(f"{type(model).__name__} has no layer to quantise; linear layers and convolutions are.")
    return found


@quotes_call
def observe(model: nn.Module, batches: Iterable[Tensor | Mapping[str, Any]], bins: int = BINS) -> dict[str, Histogram]:
    """Run a model over batches of its inputs; a :class:`~fplab.integers.Histogram` of each layer's inputs, by name.

    A batch is what the model is called with: a tensor, or a dictionary of named arguments (Hugging Face's models).
    It runs in evaluation mode, so that dropout hides nothing and batch norms learn nothing, and is left as it was.
    ``bins``: of a histogram of magnitudes.
    """
    layers = layers_of(model)
    own = {layer: Histogram(bins) for layer in layers.values()}

    names = {layer: name for name, layer in reversed(layers.items())}  # of a shared layer the first

    def keep(layer: nn.Module) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(_module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            x = given[0] if given else named["input"]
            if x.is_meta:
                raise LabError(f"inputs of layer {names[layer]!r} are on the device meta, where there are no values.")
            try:
                own[layer].collect(x.detach().cpu())
            except LabError as error:
                raise LabError(f"inputs of layer {names[layer]!r}: {error}") from None

        return hook

    handles = [layer.register_forward_pre_hook(keep(layer), with_kwargs=True) for layer in own]
    modes = [(module, module.training) for module in model.modules()]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # torch's transformer layers then call their parts
    try:
        model.eval()
        with torch.no_grad():
            for place, batch in enumerate(batches):
                if isinstance(batch, Mapping):
                    model(**batch)
                    continue
                if not isinstance(batch, Tensor):
                    raise LabError(
                        f"batch {place} is a {type(batch).__name__}; batches are the model's inputs, tensors: of a "
                        "loader of pairs (x for x, _ in loader); or dictionaries of named arguments."
                    )
                model(batch)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, mode in modes:
            module.training = mode
        for handle in handles:
            handle.remove()
    return {name: own[layer] for name, layer in layers.items()}


class QuantizedLayer(nn.Module):
    """A layer whose weight and input pass through quantisers; its parameters stay in full precision below them."""

    def __init__(self, layer: nn.Module, weights: nn.Module, inputs: nn.Module) -> None:
        super().__init__()
        self.layer, self.weights, self.inputs = layer, weights, inputs

    def forward(self, input: Tensor) -> Tensor:
        """The layer's own function of quantised values."""
        weight = self.weights(self.layer.weight)
        result: Tensor = torch.func.functional_call(self.layer, {"weight": weight}, (self.inputs(input),))
        return result


def weight_scheme(weight: np.ndarray, grid: GridLike, along: str, calibrator: Calibrator | None) -> Affine:
    """The symmetric scheme of a weight (outputs first): by its largest magnitudes, or by a calibrator's."""
    if along not in WEIGHTS_ALONG:
        raise unknown("granularity", along, WEIGHTS_ALONG)
    demand_sign(weight, get(grid))
    rows = weight.reshape(len(weight), -1) if along == "channel" else weight.reshape(1, -1)
    if calibrator is None:
        amax = np.abs(rows).max(axis=1)
    else:
        amax = np.array([calibrator.amax(Histogram().collect(row), grid) for row in rows], np.float32)
    return symmetric(amax.reshape(-1, *[1] * (weight.ndim - 1)) if along == "channel" else amax[0], grid)


def input_scheme(seen: Histogram, grid: GridLike, calibrator: Calibrator, zero_point: bool) -> Affine:
    """The scheme of inputs, one for the tensor, from what was seen of them."""
    form = get(grid)
    amax = calibrator.amax(seen, form)
    if zero_point:
        return affine(np.float32(max(seen.least, -amax)), np.float32(min(seen.most, amax)), form)
    if not form.signed and seen.least < 0:
        raise LabError(f"inputs reach {seen.least!r}, and grid {form.name} has no sign; use a signed grid.")
    return symmetric(np.float32(amax), form)


@quotes_call
def fake_quantized(model: nn.Module, seen: Mapping[str, Histogram], how: Quantization) -> nn.Module:
    """A copy of a model with its layers quantised as ``how`` says, from the histograms of :func:`observe`.

    The copy can be evaluated, which is post-training quantisation, or trained: gradients pass straight through.
    """
    if not isinstance(seen, Mapping):  # a layer's name would be looked for in range(10**12)
        raise LabError(f"seen={summary(seen)} is not possible; allowed: what observe(model, batches) gives.")
    rule, make = calibrator_of(how.calibrator), LearnedStep if how.learned else FakeQuantize

    def quantised(name: str, layer: Any) -> nn.Module:
        if name not in seen:
            raise LabError("there is no histogram of it; observe(model, batches) makes them all.")
        if not seen[name].total:
            raise LabError("the calibrator saw no data: no batch went through it; give observe(model, batches) some.")
        weight = layer.weight.detach().float().cpu().numpy()
        own = weight_scheme(weight, how.weights, how.along, rule if how.calibrate_weights else None)
        entering = input_scheme(seen[name], how.inputs, rule, how.zero_point)
        return QuantizedLayer(layer, make(own), make(entering)).to(layer.weight.device)

    return replaced(model, layers_of(model), quantised)

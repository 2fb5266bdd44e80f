"""The network that the training experiments share: small, and shaped like the VGG nets of the papers."""

from collections import OrderedDict

import torch
from torch import nn

from ..errors import door, integer
from .data import Digits


@door
def digits_net(seed: int = 0) -> nn.Sequential:
    """A convolutional net for the digits: (n, 1, 8, 8) float32 images in, (n, 10) logits out; 25,866 parameters.

    Three 3x3 convolutions with ReLU, two max pools between them, one linear layer; torch's default initialisation,
    drawn from ``seed`` without touching torch's global generator.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer("seed", seed, 0, 2**64 - 1))
        return nn.Sequential(OrderedDict(conv1=nn.Conv2d(1, 16, 3, padding=1), relu1=nn.ReLU(),
                                         conv2=nn.Conv2d(16, 32, 3, padding=1), relu2=nn.ReLU(), pool2=nn.MaxPool2d(2),
                                         conv3=nn.Conv2d(32, 64, 3, padding=1), relu3=nn.ReLU(), pool3=nn.MaxPool2d(2),
                                         flatten=nn.Flatten(), linear=nn.Linear(256, 10)))  # fmt: skip


@door
def layers(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that have parameters of their own, by name, in the order of the model."""
    return {name: m for name, m in model.named_modules() if any(True for _ in m.parameters(recurse=False))}


@door
def tensors(data: Digits) -> tuple[torch.Tensor, torch.Tensor]:
    """Images as float32 (n, 1, 8, 8) between 0 and 1 (sixteenths: exact in 16 bits), labels as int64."""
    images = torch.from_numpy(data.images).to(torch.float32).div(16).unsqueeze(1)
    return images, torch.from_numpy(data.labels).to(torch.int64)


@door
def accuracy(model: nn.Module, data: Digits) -> float:
    """The share of ``data`` that the model labels right, 0 to 1."""
    images, labels = tensors(data)
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).double().mean())

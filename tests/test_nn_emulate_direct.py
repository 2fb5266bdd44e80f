"""Convolutions of small groups of channels, which pack no patches, against those that do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from emulated import random, same
from torch import nn

from fplab.nn import emulate
from fplab.nn.emulation.multiply import Products

Fill = Callable[[torch.Tensor], torch.Tensor]


def spread_out(x: torch.Tensor) -> torch.Tensor:
    """Far apart, a sixth of them zeros."""
    made = torch.Generator().manual_seed(0)
    return torch.ldexp(x, torch.randint(-12, 5, x.shape, generator=made)) * (
        torch.rand(x.shape, generator=made) > 1 / 6
    )


def alike(x: torch.Tensor) -> torch.Tensor:
    """Sixteen products of these fill int32 beyond what is left for the accumulator."""
    return torch.full_like(x, 1.9990234375)


def huge(x: torch.Tensor) -> torch.Tensor:
    """Their sums overflow FP32."""
    return torch.full_like(x, 1.875 * 2.0**60)


def infinite(x: torch.Tensor) -> torch.Tensor:
    """Some are infinities."""
    return x.index_fill(-1, torch.tensor([1]), float("inf"))


CASES: list[tuple[str, str, nn.Module, tuple[int, ...], Fill]] = [
    ("H100", "fp16", nn.Conv2d(70, 70, 3, padding=1, groups=70), (9, 10), spread_out),
    ("H100", "bf16", nn.Conv2d(16, 16, (5, 4), 2, 1, groups=16, bias=False), (12, 11), spread_out),
    ("A100", "tf32", nn.Conv1d(32, 64, 7, padding=3, dilation=2, groups=16), (70,), spread_out),
    ("V100", "fp16", nn.Conv3d(36, 18, (2, 3, 3), padding=(0, 1, 2), groups=18), (5, 6, 6), spread_out),
    ("T4", "fp16", nn.ConvTranspose2d(34, 17, 3, 2, 1, 1, groups=17), (6, 7), spread_out),
    ("B200", "fp16", nn.Conv2d(16, 16, 7, padding=3, groups=16), (16, 15), alike),
    ("H100", "bf16", nn.Conv2d(16, 16, 19, padding=9, groups=16), (16, 15), huge),
    ("H100", "fp16", nn.Conv2d(16, 16, 3, groups=16), (16, 15), infinite),
    ("H100", "bf16", nn.Conv2d(16, 16, 3, groups=16), (16, 15), infinite),
]


@pytest.mark.parametrize(("gpu", "inputs", "layer", "sizes", "fill"), CASES)
def test_few_channels_of_a_group_have_the_bits_of_patches(
    gpu: str, inputs: str, layer: Any, sizes: tuple[int, ...], fill: Fill,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    x = fill(random(2, layer.in_channels, *sizes))
    if gpu == "B200":
        x = x.contiguous(memory_format=torch.channels_last)
    taken: list[bool] = []
    found = {}
    with torch.no_grad():
        for i, parameter in enumerate(layer.parameters()):
            parameter.copy_((fill if fill in (alike, huge) else spread_out)(random(*parameter.shape, seed=i)))
    direct = Products.direct

    def watched(*given: Any) -> torch.Tensor | None:
        result = direct(*given)
        taken.append(result is not None)
        return result

    for way in (watched, lambda *given: None):
        monkeypatch.setattr(Products, "direct", way)
        x = x.detach().requires_grad_()
        layer.zero_grad()
        with emulate(gpu, inputs) as run:
            y = layer(x)
        y.backward(fill(random(*y.shape, seed=9)))
        found[way] = [y, x.grad, *(p.grad for p in layer.parameters())], run.report()
    (ours, report), (want, other) = found.values()
    assert all(map(same, ours, want))
    assert [one.stride() for one in ours] == [one.stride() for one in want]
    assert report == other
    assert taken == [fill is not infinite] * 3
    if fill is huge:
        assert torch.isinf(ours[0]).any()


def test_a_stride_that_leaves_most_places_out_and_many_channels_of_a_group_take_patches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*given: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(Products, "direct", never)
    with emulate("H100", "fp16"), torch.no_grad():
        nn.Conv2d(8, 8, 3, stride=3, groups=8)(random(2, 8, 24, 24))
        nn.Conv2d(8, 8, 3)(random(2, 8, 24, 24))

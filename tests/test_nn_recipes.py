"""Recipes: training steps against routes of their own over ``scaled.quantize`` and ``tensorcore.matmul``, bit for bit.

A route knows nothing of :class:`fplab.nn.Recipe`: its schemes, scales, histories and seeds are written out here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from emulated import random, same
from torch import nn

import fplab
from fplab import scaled, seeds
from fplab.nn import emulate, recipes
from fplab.tensorcore import Plan, matmul

Array = np.ndarray[Any, Any]
f32 = np.float32
SIZES, BATCH, STEPS = (160, 144, 40), 150, 5


# --- a linear network, emulated and by hand -------------------------------------------------------------------------
def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(*SIZES[:2]), nn.ReLU(), nn.Linear(*SIZES[1:]))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs that grow from step to step, with outliers, and what the network is to give."""
    x = random(BATCH, SIZES[0], seed=step) * 1.25**step
    x[step, ::7] *= 8
    return x, random(BATCH, SIZES[-1], seed=100 + step)


def emulated_steps(recipe: Any, gpu: str, steps: int = STEPS) -> list[torch.Tensor]:
    """Weights and biases after each step of plain SGD."""
    net, seen = network(), []
    run = emulate(gpu, recipe=recipe)
    for step in range(steps):
        x, target = batch(step)
        with run:
            y = net(x)
        y.backward(y.detach() - target)
        with torch.no_grad():
            for p in net.parameters():
                assert p.grad is not None
                p -= 2.0**-14 * p.grad
        net.zero_grad()
        seen += [p.detach().clone() for p in net.parameters()]
    return seen


class Route:
    """The products of one recipe, by hand. ``step`` counts from 1, ``layer`` from 0; ``behind``: the backward plan."""

    gpu, step, layer = "H100", 0, 0
    behind: Plan | None = None

    def product(self, a: Array, b: Array, plan: Plan | None = None) -> Array:
        raise NotImplementedError

    def forward(self, x: Array, w: Array, bias: Array) -> Array:
        return self.product(x, w.T) + bias

    def data(self, dy: Array, w: Array) -> Array:
        return self.product(dy, w, self.behind)

    def weight(self, dy: Array, x: Array) -> Array:
        return self.product(dy.T, x, self.behind)

    def steps(self) -> list[torch.Tensor]:
        net, seen = network(), []
        first, last = net[0], net[2]
        parameters = [p.detach().clone().numpy() for p in (first.weight, first.bias, last.weight, last.bias)]
        for self.step in range(1, STEPS + 1):
            w1, b1, w2, b2 = parameters
            x, target = (t.numpy() for t in batch(self.step - 1))
            self.layer = 0
            h = self.forward(x, w1, b1)
            act = np.maximum(h, 0)
            self.layer = 1
            dy = self.forward(act, w2, b2) - target
            dh = self.data(dy, w2) * (h > 0)
            grads = [
                None,
                torch.from_numpy(dh).sum(0).numpy(),
                self.weight(dy, act),
                torch.from_numpy(dy).sum(0).numpy(),
            ]
            self.layer = 0
            grads[0] = self.weight(dh, x)
            parameters = [p - f32(2.0**-14) * g for p, g in zip(parameters, grads, strict=True)]
            seen += [torch.from_numpy(p.copy()) for p in parameters]
        return seen


class Mxfp8(Route):
    gpu = "B200"

    def product(self, a: Array, b: Array, plan: Plan | None = None) -> Array:
        q, r = (scaled.quantize(v, "mxfp8_e4m3", k, rule="rceil", variant="te") for v, k in ((a, -1), (b, -2)))
        scales = {"scale_a": q.scale_values(each_row=True), "scale_b": r.scale_values(each_row=True)}
        return matmul(q.elements(), r.elements(), gpu="B200", inputs="mxfp8_e4m3", **scales)


class Nvfp4(Route):
    gpu = "B200"

    def product(self, q: scaled.Scaled, r: scaled.Scaled, bias: Array | None = None) -> Array:
        assert q.amax is not None
        assert r.amax is not None
        scales = {"scale_a": q.scale_values(each_row=True), "scale_b": r.scale_values(each_row=True)}
        alpha = (q.amax * r.amax * f32(1 / (36 * 448**2))).item()
        plan = Plan(c="epilogue")
        return matmul(q.elements(), r.elements(), bias, gpu="B200", inputs="nvfp4", alpha=alpha, plan=plan, **scales)

    def seed(self, product: int, side: int) -> int:
        """Of a gradient: by the step, the layer's product in it, and the backward product."""
        return seeds.word(7, self.step, self.layer, ((product + 1) << 16) + side)

    def weights(self, w: Array) -> scaled.Scaled:
        return scaled.quantize(w, "nvfp4", -2, variant="te", block=(16, 16))

    def forward(self, x: Array, w: Array, bias: Array) -> Array:
        return self.product(scaled.quantize(x, "nvfp4", variant="te"), self.weights(w.T), bias)

    def data(self, dy: Array, w: Array) -> Array:
        noisy = scaled.quantize(dy, "nvfp4", variant="te", rounding="stochastic", seed=self.seed(0, 0))
        return self.product(noisy, self.weights(w))

    def weight(self, dy: Array, x: Array) -> Array:
        number = 1 if self.layer else 0  # the first layer has no data gradient
        a, b = (np.pad(v, ((0, -len(v) % 16), (0, 0))) for v in (dy, x))
        a, b = scaled.hadamard(a.T), scaled.hadamard(b, 0)
        noisy = scaled.quantize(a, "nvfp4", rounding="stochastic", seed=self.seed(number, 0))
        return self.product(noisy, scaled.quantize(b, "nvfp4", 0))


class Fp8(Route):
    """One scale a tensor; E5M2 for gradients; the backward products promoted."""

    delayed = False

    def __init__(self) -> None:
        self.seen: dict[str, list[float]] = {}

    def codes(self, v: Array, name: str, scheme: str, k: int) -> scaled.Scaled:
        role = f"{self.layer} {name}"
        if not self.delayed:
            return scaled.quantize(v, scheme, k)
        seen = self.seen.setdefault(role, [])
        if len(seen) < self.step:
            seen.append(float(np.abs(v).max()))
        past = seen[: self.step - 1][-2:]
        return scaled.quantize(v, scheme, k, amax=2 * max(past) if past else scaled.get_scheme(scheme).element.max)

    def product(self, q: scaled.Scaled, r: scaled.Scaled, plan: Plan, bias: Array | None = None) -> Array:
        inputs, alpha = (q.scheme.element.name, r.scheme.element.name), (q.scales * r.scales).item()
        return matmul(q.elements(), r.elements(), bias, inputs=inputs, alpha=alpha, plan=plan)

    def forward(self, x: Array, w: Array, bias: Array) -> Array:
        codes = self.codes(x, "x", "fp8_tensor", -1), self.codes(w.T, "w", "fp8_tensor", -2)
        return self.product(*codes, Plan(c="epilogue"), bias)

    def data(self, dy: Array, w: Array) -> Array:
        dy_codes = self.codes(dy, "dy", "fp8_tensor_e5m2", -1)
        return self.product(dy_codes, self.codes(w, "w", "fp8_tensor", -2), Plan(promote=128))

    def weight(self, dy: Array, x: Array) -> Array:
        dy_codes = self.codes(dy.T, "dy", "fp8_tensor_e5m2", -1)
        return self.product(dy_codes, self.codes(x, "x", "fp8_tensor", -2), Plan(promote=128))


class Delayed(Fp8):
    delayed = True


class Rowwise(Route):
    behind = Plan(promote=128)

    def product(self, a: Array, b: Array, plan: Plan | None = None) -> Array:
        q, r = (scaled.quantize(v, "fp8_row", k, rule="divide", variant="torchao") for v, k in ((a, -1), (b, -2)))
        return matmul(q.elements(), r.elements(), inputs="e4m3", plan=plan) * q.scales * r.scales


class Block(Route):
    """DeepGEMM's: each 128 of K from zero, then one FP32 multiply-add by the product of both scales."""

    def product(self, a: Array, b: Array, plan: Plan | None = None, high: int = 128) -> Array:
        given: dict[str, Any] = {"rule": "pow2", "variant": "te"}
        q = scaled.quantize(a, "fp8_block", -1, block=(1, 128), **given)
        r = scaled.quantize(b, "fp8_block", -2, block=(high, 128), **given)
        total = np.zeros((len(a), b.shape[1]), f32)
        for n in range(-(-a.shape[1] // 128)):
            k = slice(128 * n, 128 * n + 128)
            part = matmul(q.elements()[:, k], r.elements()[k], inputs="e4m3")
            both = q.scales[:, n : n + 1] * np.repeat(r.scales[n : n + 1], high, 1)[:, : b.shape[1]]
            total = np.asarray(fplab.fma(both, part, total, "fp32"))
        return total

    def weight(self, dy: Array, x: Array) -> Array:
        return self.product(dy.T, x, high=1)


class Bf16(Route):
    def product(self, a: Array, b: Array, plan: Plan | None = None) -> Array:
        return matmul(a, b, inputs="bf16")


ROUTES: dict[str, tuple[Callable[[], Route], dict[str, Any]]] = {
    "mxfp8": (Mxfp8, {}),
    "nvfp4": (Nvfp4, {"seed": 7}),
    "fp8_delayed": (Delayed, {"amax_history_len": 2, "margin": 1}),
    "fp8_current": (Fp8, {}),
    "fp8_rowwise": (Rowwise, {"power_2_scale": False}),
    "fp8_block": (Block, {}),
    "bf16": (Bf16, {}),
}


@pytest.mark.parametrize("name", ROUTES)
def test_five_steps_have_the_bits_of_a_route_of_their_own(name: str) -> None:
    route, given = ROUTES[name]
    by_hand = route()
    got, want = emulated_steps(recipes.RECIPES[name](scope="all", **given), by_hand.gpu), by_hand.steps()
    assert len(got) == len(want) == 4 * STEPS
    assert all(x.isfinite().all() for x in got)
    wrong = [n for n, (a, b) in enumerate(zip(got, want, strict=True)) if not same(a, b)]
    assert not wrong, f"of {len(got)} tensors {wrong} differ"


def test_every_recipe_has_a_route_of_its_own() -> None:
    missing = recipes.RECIPES.keys() - ROUTES.keys()
    assert not missing, f"no route without the lab's recipes computes {missing}: write one beside those of ROUTES, here"


def test_an_infinite_scale_is_the_largest_of_the_layers_dtype() -> None:
    """Of BF16 activations of 2**-124 each block of 128 has BF16's largest number for its scale, of FP32's FP32's."""
    results = {}
    for fmt, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        layer = torch.nn.Linear(128, 4, bias=False).to(dtype)
        torch.nn.init.constant_(layer.weight, 2.0**20)
        x = torch.full((3, 128), 2.0**-124, dtype=dtype)
        with emulate("H100", recipe=recipes.fp8_block(power_2_scale=False, scope="all")):
            y = layer(x).detach().float()
        q = scaled.quantize(x, "fp8_block", block=(1, 128), rule="divide")
        r = scaled.quantize(layer.weight.detach().T, "fp8_block", -2, block=(128, 128), rule="divide")
        part = matmul(q.elements(), r.elements(), inputs="e4m3")
        want = fplab.quantize(fplab.fma(q.scales * r.scales, part, np.zeros((3, 4), f32), "fp32"), fmt)
        assert y.numpy().tobytes() == np.asarray(want, f32).tobytes()
        results[fmt] = y
    assert (results["bf16"] != results["fp32"].bfloat16().float()).all()

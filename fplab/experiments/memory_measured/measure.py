"""Real training steps whose bytes are counted, and the estimates of the same steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...hardware.cases import Arrays
from ...memory import OPTIMIZERS, Transformer, estimate
from ...memory.gap import EXTRAS, explained
from ...memory.published import TORCHTITAN, estimated
from ...memory.stages import KINDS
from ..base import Tick

if TYPE_CHECKING:
    import torch

HELD = ("parameters", "gradients", "master", "states")
TERMS = ("formula", *EXTRAS)
SHARED = (*HELD, "activations")


class Recipe(NamedTuple):
    """A precision, an optimizer and what is computed again: names of :mod:`fplab.memory`."""

    precision: str
    optimizer: str = "adamw"
    recompute: str = "none"

    @property
    def name(self) -> str:
        """For tables and figures."""
        parts = [self.precision, *([] if self.optimizer == "adamw" else [self.optimizer])]
        return ", ".join([*parts, *([] if self.recompute == "none" else [self.recompute])])


RECIPES: tuple[Recipe, ...] = (
    *(Recipe(p, recompute=r) for p in ("fp32", "mixed", "amp") for r in ("none", "selective", "full")),
    *(Recipe("bf16", recompute=r) for r in ("none", "full")),  # its activations are those of "mixed"
    Recipe("mixed", "adamw8bit"),
    Recipe("bf16", "adamw8bit"),
    Recipe("bf16", "adamw8bit", "full"),
)
MODELS = ("convolutional net, FP32, AdamW", "transformer, FP32, AdamW", "transformer, mixed, AdamW")


@dataclass(frozen=True)
class Params:
    """The transformer that is trained, and how many batch sizes the shares are measured at (powers of two)."""

    layers: int = 4
    hidden: int = 128
    heads: int = 4
    vocabulary: int = 640
    sequence: int = 128
    batch: int = 3
    batches: int = 8

    @property
    def model(self) -> Transformer:
        """Its configuration."""
        return Transformer("gpt", self.layers, self.hidden, self.heads, self.vocabulary, self.sequence)


QUICK = Params(layers=2, hidden=64, vocabulary=320, sequence=64, batches=5)


def make_optimizer(name: str) -> Callable[[list[torch.Tensor]], Any]:
    """An optimizer of the lab's or torch's by its name in the calculator; 8-bit states in blocks of 256."""
    import torch

    if name == "adamw8bit":
        from ...training.eight_bit import AdamW8bit

        return lambda parameters: AdamW8bit(parameters, lr=1e-3, block=256)
    return lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)


def tokens_of(c: Transformer, batch: int, key: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and their successors, int64 (batch, sequence), from Philox's raw stream."""
    import torch

    raw = np.random.Philox(key=key).random_raw(batch * (c.sequence + 1)) % np.uint64(c.vocabulary)
    tokens = torch.from_numpy(raw.astype(np.int64).reshape(batch, -1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def run(params: Params, tick: Tick) -> Arrays:
    """Bytes, int64.

    ``held`` and ``estimated`` (recipe, kind): model states by :data:`HELD`, measured and calculated. ``activations``
    (recipe,): alive after the forward pass, ``traced``: on shapes alone; ``terms`` (recipe, term): the traced ones by
    :data:`TERMS`. ``peak`` (recipe,): of the forward and the backward pass; ``temporary``: what the calculator adds.
    ``shares`` (model, size, kind by :data:`SHARED`): measured at ``batches`` (model, size). ``published`` (run, kind):
    estimates of torchtitan's runs, ``published_gib``: their measured peaks, float64.
    """
    arrays = measured_recipes(params, lambda done, text: tick(0.7 * done, text))
    arrays |= measured_shares(params, lambda done, text: tick(0.7 + 0.28 * done, text))
    published = [estimated(one) for one in TORCHTITAN]
    arrays["published"] = np.array([[one[kind] for kind in KINDS[:6]] for one in published])
    arrays["published_gib"] = np.array([one.peak for one in TORCHTITAN])
    tick(1.0, "done")
    return arrays


def measured_recipes(params: Params, tick: Tick) -> Arrays:
    """Every recipe's step, measured, traced and calculated."""
    import torch

    from ...memory.measuring import Trainer, measured_step
    from ...memory.networks import build
    from ...memory.tracing import trace
    from ...training.loop import one_thread

    c, found = params.model, []
    inputs = tokens_of(c, params.batch)
    for i, recipe in enumerate(RECIPES):
        tick(i / len(RECIPES), recipe.name)
        wide = recipe.precision in ("fp32", "amp")
        network = build(c, dtype=torch.float32 if wide else torch.bfloat16, recompute=recipe.recompute)
        trainer = Trainer(network, recipe.precision, make_optimizer(recipe.optimizer))
        with one_thread():
            step = measured_step(trainer, *inputs)
            saved = trace(trainer.module, *inputs, device="cpu")
        terms = explained(c, params.batch, c.sequence, 4 if recipe.precision == "fp32" else 2, saved, recipe.recompute)
        ours = estimated_step(params, recipe)
        found.append(
            {
                "held": [step.kinds[kind] for kind in HELD],
                "estimated": [ours.device[kind] for kind in HELD],
                "activations": step.kinds["activations"],
                "traced": sum(one.bytes for one in saved),
                "terms": [terms[name] for name in TERMS],
                "missing": terms["missing"],
                "peak": step.peak,
                # under autocast the casts of the weights are saved, and so among the traced activations
                "temporary": sum(size for name, size in ours.temporary.items() if "casts" not in name),
            }
        )
    return {name: np.array([one[name] for one in found]) for name in found[0]}


def estimated_step(params: Params, recipe: Recipe) -> Any:
    """What the calculator says of the same step, a ``Rank``."""
    return estimate(
        params.model,
        precision=recipe.precision,
        optimizer=recipe.optimizer,
        recompute=recipe.recompute,
        micro_batch=params.batch,
        step_counts=OPTIMIZERS[recipe.optimizer].counts,
    ).fullest


def measured_shares(params: Params, tick: Tick) -> Arrays:
    """Bytes by kind of a convolutional net and of the transformer, at batches of 1, 2, 4 and so on."""
    import torch
    from torch.nn import functional

    from ...memory.measuring import Trainer, measured_step
    from ...memory.networks import build
    from ...training import digits, digits_net, tensors
    from ...training.loop import one_thread

    images, labels = tensors(digits("train"))

    class Loss(torch.nn.Module):
        """The digits' net and its loss."""

        def __init__(self) -> None:
            super().__init__()
            self.net = digits_net()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(self.net(x), y)

    c, make = params.model, make_optimizer("adamw")
    sizes = np.array([[2**i * (4 if model == MODELS[0] else 1) for i in range(params.batches)] for model in MODELS])
    shares: list[list[int]] = []
    for model, own in zip(MODELS, sizes.tolist(), strict=True):
        for size in own:
            tick(len(shares) / sizes.size, f"shares, batch {size}")
            images_in = model == MODELS[0]
            inputs = (images[:size], labels[:size]) if images_in else tokens_of(c, size)
            mixed = model == MODELS[2]
            module = Loss() if images_in else build(c, dtype=torch.bfloat16 if mixed else torch.float32)
            with one_thread():
                step = measured_step(Trainer(module, "mixed" if mixed else "fp32", make), *inputs)
            shares.append([step.kinds[kind] for kind in SHARED])
    return {"shares": np.array(shares).reshape(*sizes.shape, len(SHARED)), "batches": sizes}

"""Watching models that nobody here wrote: every tensor is seen once, nothing is changed, every hook goes away."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from watched import loop, mlp, step, watched

import fplab
from fplab import training
from fplab.nn import watch

Tensor = torch.Tensor


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def none_is_left_open():
    yield
    assert watch._open is None


def total(seen: watch, kind: str, layer: str | None = None) -> int:
    fates = seen.fates("fp16", kind, layer)
    return fates.nonzero + fates.zero + fates.infinite + fates.nan


def hooks_of(model: nn.Module) -> int:
    return sum(len(h) for m in model.modules() for name, h in vars(m).items()
               if name.endswith("_hooks") and isinstance(h, dict))  # fmt: skip


# --- what is counted -----------------------------------------------------------------------------------------------
def test_every_value_of_every_kind_is_counted_once():
    model = mlp()
    seen = watched(model, torch.optim.Adam(model.parameters()))
    assert seen.steps == 3
    assert seen.kinds == (
        "activations", "activation gradients", "weight gradients", "updates", "weights",
        "state exp_avg", "state exp_avg_sq",
    )  # fmt: skip
    assert seen.layers() == ("one", "act", "two")
    assert seen.layers("weights") == ("one", "two")
    outputs = {"one": 8, "act": 8, "two": 4}
    for layer, width in outputs.items():
        assert total(seen, "activations", layer) == total(seen, "activation gradients", layer) == 3 * 5 * width
    for kind in seen.kinds[2:]:
        assert total(seen, kind, "one") == 3 * (48 + 8)
        assert total(seen, kind, "two") == 3 * (32 + 4)
    assert total(seen, "gradients") == total(seen, "activation gradients") + total(seen, "weight gradients")


def test_counts_are_those_of_the_run_s_own_tensors():
    """Against the digits network's own snapshots: gradients, weights and updates, element by element."""
    model = training.digits_net(3)
    recipe = training.Recipe(epochs=1, seed=2)
    data = training.digits("test")
    taken = training.train(training.digits_net(3), data, recipe, snapshots=range(recipe.steps(359))).snapshots
    optimizer = training.Momentum(model, recipe.lr, recipe.momentum)  # no torch optimizer: only step()
    images, labels = training.tensors(data)
    with watch(model, optimizer, every=2) as seen:
        for index in training.batches(359, recipe):
            model.zero_grad()
            chosen = torch.from_numpy(index)
            nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
    counted = taken[::2]
    for kind, field in (("activation gradients", "activation_gradients"), ("weight gradients", "weight_gradients")):
        for layer in ("conv1", "conv2", "conv3", "linear"):
            values = np.concatenate([
                x.ravel() for one in counted for n, x in getattr(one, field).items() if n.split(".")[0] == layer
            ])  # fmt: skip
            for fmt, scale in (("fp16", 0), ("fp16", 9), ("e5m2", 3), ("bf16", 24)):
                kept = fplab.quantize(values * np.float32(2.0**scale), fmt)
                found = seen.fates(fmt, kind, layer, scale)
                assert found.zero + found.vanish == (kept == 0).sum()
                assert found.overflow == np.isinf(kept).sum()
    for fmt in ("fp16", "bf16", "e4m3", "e5m2"):
        lost = 0
        for one in counted:
            for name, w in one.weights.items():
                with torch.no_grad():
                    after = torch.from_numpy(w) + torch.from_numpy(one.updates[name])
                u = after.numpy() - w
                kept = fplab.quantize(w, fmt).astype(np.float64)
                lost += int(((fplab.quantize(kept + u.astype(np.float64), fmt) == kept) & (u != 0)).sum())
        assert seen.lost().absorbed[fmt] == lost
    after = [w + u for one in counted for w, u in zip(one.weights.values(), one.updates.values(), strict=True)]
    assert seen.histogram("weights")[1].sum() == sum(map(np.count_nonzero, after))


def test_states_and_what_they_would_lose():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    before: dict[str, np.ndarray] = {}
    lost = 0
    with watch(model, optimizer, every=1) as seen:
        for _ in range(6):
            old = {n: optimizer.state[p]["exp_avg_sq"].numpy().copy() for n, p in model.named_parameters()
                   if optimizer.state}  # fmt: skip
            loop(model, optimizer, 1)
            for n, p in model.named_parameters():
                if n in old:
                    new = optimizer.state[p]["exp_avg_sq"].numpy()
                    u = (new - old[n]).astype(np.float64)
                    kept = fplab.quantize(old[n], "bf16").astype(np.float64)
                    lost += int(((fplab.quantize(kept + u, "bf16") == kept) & (u != 0)).sum())
            before = old
    assert before
    assert seen.lost(kind="state exp_avg_sq").absorbed["bf16"] == lost > 0


def test_watching_changes_no_bit_of_the_run():
    finals = []
    for is_watched in (False, True):
        torch.manual_seed(4)
        model = mlp(nn.Dropout(0.5))
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        if is_watched:
            with watch(model, optimizer, every=1):
                loop(model, optimizer)
        else:
            loop(model, optimizer)
        finals.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    assert torch.equal(finals[0], finals[1])


def test_leaving_removes_every_hook_and_every_reference():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scale, step = torch.amp.GradScaler.scale, torch.amp.GradScaler.step
    hooks = hooks_of(model)
    seen = watch(model, optimizer)

    def broken() -> None:
        with seen:
            loop(model, optimizer)
            assert hooks_of(model) > hooks
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        broken()
    assert hooks_of(model) == hooks
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert torch.amp.GradScaler.scale is scale
    assert torch.amp.GradScaler.step is step
    steps = seen.steps
    loop(model, optimizer)
    assert seen.steps == steps
    momentum = training.Momentum(model, 0.1, 0.9)
    with watch(model, momentum):
        assert "step" in vars(momentum)
        out = model(torch.randn(5, 6))
        out.sum().backward()
        momentum.step()
        gone = weakref.ref(out)
        del out
    assert "step" not in vars(momentum)
    gc.collect()
    assert gone() is None


def test_memory_does_not_grow_with_the_steps():
    """The tables and the trail after 100 steps and after 300."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sizes = []
    with watch(model, optimizer, every=1, keep=8) as seen:
        for steps in (100, 200):
            loop(model, optimizer, steps)
            tables = sum(table.nbytes for table in seen._tables._tables.values())
            kept = sum(p.sample.nbytes for prints in seen._fingerprints.steps.values() for p in prints.values())
            sizes.append((tables, len(seen._tables._tables), len(seen._fingerprints.steps) <= 8, kept < 8 * 30 * 64))
    assert sizes[0] == sizes[1]
    assert seen.steps == 300
    assert sizes[0][0] / sizes[0][1] < 31_000


# --- models of every kind --------------------------------------------------------------------------------------------
class Twice(nn.Module):
    """A module called twice, a shared module, tied weights, outputs in a dictionary, a frozen layer, one never used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.again = self.first
        self.act = nn.ReLU(inplace=True)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.first.weight
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> dict[str, Any]:
        x = self.act(self.first(x))
        x = self.act(self.again(x))
        return {"out": self.tied(self.frozen(x)), "both": (x, x.detach()), "n": 3}


def test_shared_tied_frozen_unused_in_place_and_dictionaries():
    model = Twice()
    optimizer = torch.optim.SGD(
        [{"params": [model.first.weight], "lr": 0.1},
         {"params": [model.first.bias, *model.frozen.parameters(), *model.unused.parameters()]}],
        lr=0.01,
    )  # fmt: skip
    with watch(model, optimizer, every=1) as seen:
        loop(model, optimizer, loss=lambda out: out["out"].square().mean() + out["both"][0].mean())
    assert total(seen, "activations", "first") == 2 * 3 * 30
    assert total(seen, "activations", "act") == 2 * 3 * 30
    assert total(seen, "activation gradients", "first") == 2 * 3 * 30
    assert seen.fates("fp16", "activations", "first").zero < seen.fates("fp16", "activations", "act").zero
    assert total(seen, "weights", "first") == 3 * 42
    assert total(seen, "weights", "frozen") == 3 * 42
    assert total(seen, "weights", "unused") == 3 * 6
    assert set(seen.layers("updates")) == {"first"}
    assert seen.layers("activations") == ("model", "first", "act", "frozen", "tied")
    assert total(seen, "activations", "model") == 3 * 30  # the detached tensor is a new one, the others are not
    assert seen.report().rows


def test_an_lstm_and_a_transformer_of_torch_s():
    lstm = nn.LSTM(6, 5, num_layers=2)
    seen = watched(lstm, torch.optim.RMSprop(lstm.parameters()), loss=lambda out: out[0].square().mean())
    assert seen.layers() == ("model",)
    assert total(seen, "activations") == 3 * (5 * 5 + 2 * 5 + 2 * 5)  # unbatched: outputs, h and c of both layers
    assert total(seen, "activation gradients") == 3 * 25
    layer = nn.TransformerEncoderLayer(6, 2, 12, dropout=0.1, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    seen = watched(encoder, torch.optim.NAdam(encoder.parameters()))
    assert "layers.1.self_attn" in seen.layers("activations")
    assert "layers.0.self_attn.out_proj" in seen.layers("weights")
    assert total(seen, "activations", "layers.0.linear1") == 3 * 5 * 12
    assert "LOSS SCALE  fp16" in str(seen.report())
    assert str(seen) == str(seen.report())


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_forward_is_counted_once(reentrant):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp()

        def forward(self, x: Tensor) -> Tensor:
            out = checkpoint(self.body, x.requires_grad_(), use_reentrant=reentrant)
            assert isinstance(out, Tensor)
            return out * 2

    model = Model()
    seen = watched(model)
    assert total(seen, "activations", "body.one") == 3 * 40
    assert total(seen, "activation gradients", "body.one") == 3 * 40
    assert total(seen, "weight gradients", "body.one") == 3 * 56


def test_gradients_accumulated_over_batches_are_one_step():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, optimizer, every=1) as seen:
        for i in range(6):
            model(torch.randn(5, 6)).square().mean().backward()
            if i % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
    assert seen.steps == 2
    assert total(seen, "activations", "one") == 6 * 40
    assert total(seen, "weight gradients", "one") == 2 * 56


def test_lbfgs_with_its_closure():
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x = torch.randn(5, 6)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    with watch(model, optimizer, every=1) as seen:
        for _ in range(2):
            optimizer.step(closure)
    assert seen.steps == 2
    assert total(seen, "weight gradients") == total(seen, "updates") == 2 * 92
    assert total(seen, "activations", "one") > 2 * 40
    assert {"state d", "state old_dirs"} <= set(seen.kinds)
    assert seen.lost().moved == 2 * 92
    assert "optimizer" in {row.layer for row in seen.report().rows}


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.Adagrad(p, lr=0.1), lambda p: torch.optim.Adafactor(p), lambda p: torch.optim.Rprop(p),
        lambda p: torch.optim.AdamW(p, foreach=True), lambda p: torch.optim.AdamW(p, fused=True),
        lambda p: torch.optim.ASGD(p),
    ],
    ids=["Adagrad", "Adafactor", "Rprop", "foreach", "fused", "ASGD"],
)  # fmt: skip
def test_optimizers_of_every_kind(make):
    model = mlp()
    seen = watched(model, make(model.parameters()))
    assert total(seen, "updates") == 3 * 92
    assert any(kind.startswith("state ") for kind in seen.kinds)
    assert seen.report().steps == 3


def test_a_step_that_calls_its_base_s_step_is_one_step():
    class Mine(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    torch.optim.SGD(mlp().parameters(), 0.1)  # the base's own step now has hooks too
    model = mlp()
    seen = watched(model, Mine(model.parameters(), 0.1))
    assert seen.steps == 3
    assert total(seen, "updates") == total(seen, "weight gradients") == 3 * 92


def test_half_precision_double_precision_sparse_and_complex_parameters():
    for dtype in (torch.float64, torch.bfloat16):
        model = mlp().to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        with watch(model, optimizer, every=1) as seen:
            for _ in range(2):
                step(optimizer, model(torch.randn(5, 6, dtype=dtype)).square().mean())
        assert total(seen, "weights") == 2 * 92
        assert seen.fates("bf16", "weights").vanish == 0
        assert (seen.lost().still > 0) == (dtype is torch.bfloat16)
    table = nn.Embedding(10, 3, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), 0.1)
    with watch(table, optimizer, every=1) as seen:
        table(torch.tensor([1, 2, 2])).sum().backward()
        optimizer.step()
    assert (total(seen, "weight gradients"), seen.fates("fp16", "weight gradients").zero) == (30, 24)

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(3, 3, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            return self.w @ x.to(torch.complex64)

    turned = Turned()
    adam = torch.optim.Adam(turned.parameters())
    with watch(turned, adam, every=1) as seen:
        turned(torch.randn(3, 2)).abs().sum().backward()
        adam.step()
    assert total(seen, "weights") == 18
    assert total(seen, "activations") == 12


def test_autocast_activations_are_seen_in_their_own_format():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, optimizer, every=1) as seen:
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.randn(5, 6)).float().square().mean()
            loss.backward()
            optimizer.step()
    assert total(seen, "activations", "two") == 2 * 20
    assert seen.first is None


def test_validation_is_not_watched():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, optimizer, every=1) as seen:
        loop(model, optimizer)
        with torch.no_grad():
            model(torch.full((5, 6), torch.inf))
        with torch.inference_mode():
            model(torch.full((5, 6), torch.inf))
        loop(model, optimizer, 1)
    assert total(seen, "activations", "one") == 4 * 40
    assert seen.first is None


def test_what_cannot_be_read_is_named():
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp()

        def forward(self, x: Tensor) -> Tensor:
            return torch.func.vmap(self.body)(x)

    model = Hidden()
    seen = watched(model)
    assert "activations of body.one" in seen.unread
    assert "not read" in str(seen.report())
    assert total(seen, "weight gradients") == 3 * 92

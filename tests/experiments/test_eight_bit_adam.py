"""The experiment on 8-bit Adam, and the stable embedding that it trains with."""

import copy
import io
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from xarray import DataArray

from experiments.frame import Mutant, frame
from fplab import codebooks
from fplab.experiments import eight_bit_adam
from fplab.experiments.eight_bit_adam import BETA2, HOLD, VARIANTS, E, cases, elsewhere, final_losses, unstable
from fplab.experiments.outcomes import Status
from fplab.training import Adam8bit, StableEmbedding

SMALL = replace(E.quick, trace=250, copies=255)
SHORT = replace(SMALL, steps=1)
SEVEN = (codebooks.dynamic(True, 7), codebooks.dynamic(False, 7))
BLOCKS, LINEAR = "dynamic + blocks", "linear"


def other_states(name: str, **options: Any) -> Any:
    """Another set of options in the place of a variant's."""
    return lambda good: {**good, name: options}


MUTANTS = (
    Mutant("codes of seven bits", ("followed",), "VARIANTS", other_states(BLOCKS, block=256, code=SEVEN)),
    Mutant("linear states for dynamic ones", ("as_good",), "VARIANTS",
           other_states(BLOCKS, block=None, code="linear")),
    Mutant("a rate ten times as small", ("as_good",), "adam",
           lambda good: lambda p, name, rate: good(p, name, rate / 10 if name == BLOCKS else rate)),
    Mutant("the dynamic map under the name of the linear one", ("linear",), "VARIANTS",
           other_states(LINEAR, block=None)),
    Mutant("scales that are not counted", ("state_sizes",), "fplab.training.Adam8bit.state_bytes",
           lambda good: lambda self: good(self) // 4 * 4 - 8, params=SHORT),
    Mutant("blocks of another size", ("state_sizes",), "adam",
           lambda good: lambda p, name, rate: good(p, "dynamic" if name == BLOCKS else name, rate), params=SHORT),
    Mutant("stochastic rounding that rounds to nearest", ("held",), "KEPT",
           lambda good: {name: {} if "stochastic" in name else options for name, options in good.items()}),
)  # fmt: skip

globals().update(frame(eight_bit_adam, SMALL, MUTANTS, ("peer_codes", "peer_adam"), "bitsandbytes is not installed"))


def test_what_counts_as_unstable() -> None:
    """Twenty steps, so the last two count; one measure for all: half a nat above 32 bits at their best rate."""
    losses = np.full((8, 2, 1, 20), 2.0)
    losses[0, 1, 0, -2:] = 2.6  # 32-bit itself
    losses[1, 0, 0, -2:] = 2.4
    losses[2, 0, 0, -2:] = 2.6
    losses[3, 0, 0, 5:] = np.nan
    losses[4, 1, 0, -2:] = 2.6  # no farther from 32 bits at this rate than nothing
    given = {"states": [*VARIANTS], "lr": [1e-3, 1e-2], "seed": [0]}
    result = E.result(SMALL).replace(losses=DataArray(losses, given, ("states", "lr", "seed", "step")))
    assert unstable(result).values[:5, :, 0].tolist() == [
        [False, True], [False, False], [True, False], [True, False], [False, True],
    ]  # fmt: skip
    assert final_losses(result.losses)[2, 0, 0] == 2.6


def test_runs_that_diverge_are_cut_off_and_counted(result: Any) -> None:
    assert unstable(result).sel(states="linear").all()
    assert result.losses.sel(states="linear").values[0, 0, 0] == pytest.approx(math.log(96), abs=0.2)
    assert E.rows(result)["unstable"][:6] == [False] * 3 + [True] * 3


def test_the_held_state_in_closed_form(result: Any) -> None:
    """Float32 decays as 0.999^t from 1 - 0.999^50; the nearest code, once it stands, is carried up by the scale."""
    exact, nearest, *_, stochastic = result.traces.values
    t = np.arange(HOLD, SMALL.trace)
    np.testing.assert_allclose(exact[HOLD:], (1 - BETA2**HOLD) * BETA2 ** (t + 1 - HOLD), rtol=1e-3)
    assert abs(stochastic[-1] / exact[-1] - 1) < 0.05
    codes = (nearest / (4 * (1 - BETA2 ** np.arange(1, SMALL.trace + 1))))[-100:]
    assert codes.max() / codes.min() < 1.001
    assert nearest[-1] > 2 * exact[-1]
    np.testing.assert_array_equal(E.result(SMALL).traces, result.traces)


class FakeAdam:
    """A peer in bitsandbytes' place: the step that is rebuilt, kept honest by ``spoil``."""

    def __init__(self, params: Any, lr: float, betas: Any, eps: float, spoil: float = 0.0) -> None:
        (self.p,), self.t, self.spoil = params, 0, spoil
        self.held = [elsewhere.zeros(True), elsewhere.zeros(False)]

    def step(self) -> None:
        self.t += 1
        with torch.no_grad():
            self.held = elsewhere.rebuilt(self.p.detach(), self.p.grad, self.held, self.t)
            self.p[-1] += self.spoil

    @property
    def state(self) -> Any:
        return {self.p: {f"state{i}": torch.from_numpy(q.codes) for i, q in enumerate(self.held, 1)}}


def test_the_peer_is_compared_when_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for bitsandbytes: right, spoilt, without a CPU optimizer, and absent."""

    def quantised(x: Any, code: Any, blocksize: int, spoil: int = 0) -> Any:
        book = codebooks.dynamic(bool(code[0] < 0))
        q = codebooks.quantize_blockwise(x.numpy(), book, blocksize, elsewhere.RULE)
        q.codes[-1] ^= spoil
        return torch.from_numpy(q.codes), SimpleNamespace(absmax=torch.from_numpy(q.absmax), q=q)

    def mapped(signed: bool, _: int, bits: int) -> Any:
        return torch.from_numpy(elsewhere.padded(codebooks.dynamic(signed, bits).values))

    there = SimpleNamespace(
        create_dynamic_map=mapped, quantize_blockwise=quantised, Adam8bit=FakeAdam,
        dequantize_blockwise=lambda codes, state: torch.from_numpy(codebooks.dequantize_blockwise(state.q)),
    )  # fmt: skip
    monkeypatch.setattr(elsewhere, "peer", lambda name: there)
    assert elsewhere.same_codes().status is elsewhere.same_adam().status is Status.PASS
    there.quantize_blockwise = partial(quantised, spoil=1)
    there.Adam8bit = partial(FakeAdam, spoil=1e-3)
    assert "1 of 40,000 codes" in str(elsewhere.same_codes().detail)
    assert str(elsewhere.same_adam().detail) == "step 1: weights or codes differ from those rebuilt"
    there.create_dynamic_map = lambda *_: torch.zeros(256)
    assert elsewhere.same_codes().detail == "create_dynamic_map(True, 1, 2) has other values"
    monkeypatch.setattr(FakeAdam, "step", lambda self: (_ for _ in ()).throw(NotImplementedError("cuda only")))
    assert elsewhere.same_adam().status is Status.ABSENT
    monkeypatch.setattr(elsewhere, "peer", lambda name: None)
    assert elsewhere.same_codes().detail is elsewhere.same_adam().detail is elsewhere.MISSING


def test_the_cases_move() -> None:
    trajectory, root = cases(SMALL)
    found = trajectory.compute(trajectory.inputs(), "cpu")
    assert len(np.unique(found["codes1"])) > 50
    assert (found["weights"][0] != found["weights"][-1]).mean() > 0.9
    inputs = root.inputs()
    want = np.sqrt(inputs["x"].view(np.float32)).view(np.uint32)
    np.testing.assert_array_equal(root.emulate(inputs, {})["root"], want)
    assert "correctly rounded?" in root.open


# --- the stable embedding ----------------------------------------------------------------------------------------
def test_a_stable_embedding_is_xavier_uniform_and_normalised() -> None:
    torch.manual_seed(0)
    table = StableEmbedding(500, 64, padding_idx=3)
    bound = math.sqrt(6 / (500 + 64))
    assert table.weight.abs().max() <= bound
    assert table.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert not table.weight[3].any()
    rows = table(torch.tensor([[0, 5], [7, 499]]))
    assert rows.shape == (2, 2, 64)
    torch.testing.assert_close(rows.mean(-1), torch.zeros(2, 2), atol=1e-5, rtol=0)
    torch.testing.assert_close(rows.var(-1, unbiased=False), torch.ones(2, 2), atol=1e-2, rtol=0)


def test_its_norm_is_computed_in_float32_and_cast_back() -> None:
    torch.manual_seed(0)
    table = StableEmbedding(10, 8).bfloat16()
    got = table(torch.arange(10))
    want = nn.functional.layer_norm(table.weight.float(), (8,)).bfloat16()
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, want)


def test_a_stable_embedding_has_a_shape_without_values() -> None:
    """On the "meta" device, which knows no autocast."""
    assert StableEmbedding(5, 4, device="meta")(torch.zeros(2, dtype=torch.int64, device="meta")).shape == (2, 4)


@pytest.mark.parametrize("through", ["itself", "deepcopy", "pickle", "dtype"])
def test_its_states_stay_in_32_bits_wherever_it_goes(through: str) -> None:
    table = StableEmbedding(128, 64)
    if through == "deepcopy":
        table = copy.deepcopy(table)
    elif through == "pickle":
        file = io.BytesIO()
        torch.save(table, file)
        file.seek(0)
        table = torch.load(file, weights_only=False)
    elif through == "dtype":
        table = table.to(torch.bfloat16)
    plain = nn.Embedding(128, 64)
    optimizer = Adam8bit([*table.parameters(), *plain.parameters()])
    (table(torch.arange(128)).float().sum() + plain(torch.arange(128)).sum()).backward()
    optimizer.step()
    assert optimizer.state[table.weight]["state1"].dtype == torch.float32
    assert optimizer.state[plain.weight]["state1"].dtype == torch.uint8

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
from gpu_cases import compute_with_little_installed
from torch import nn

from experiments.frame import Mutant, frame
from fplab import codebooks
from fplab.experiments import eight_bit_adam
from fplab.experiments.eight_bit_adam import BETA2, HOLD, NAMES, QUICK, Result, cases, elsewhere, held_state
from fplab.experiments.outcomes import Status
from fplab.training import Adam8bit, StableEmbedding

SMALL = replace(QUICK, trace=250, copies=255)
SHORT = replace(SMALL, steps=1)
SEVEN = (codebooks.dynamic(True, 7), codebooks.dynamic(False, 7))
BLOCKS, LINEAR = "dynamic + blocks", "linear"


def other_states(name: str, **options: Any) -> Any:
    """Another set of options in the place of a variant's."""
    return lambda good: {**good, name: options}


def runs(result: Result) -> dict[str, Any]:
    """The runs of two variants."""
    losses, p = result.losses.copy(), result.params
    for name in (BLOCKS, LINEAR):
        losses[NAMES.index(name), 0] = [eight_bit_adam.train(name, p, p.rates[0], seed)[0] for seed in p.seeds]
    return {"losses": losses}


def sizes(result: Result) -> dict[str, Any]:
    """Bytes of states after one step."""
    return {"state_bytes": np.array([eight_bit_adam.train(name, SHORT, 1e-3, 0)[1] for name in NAMES])}


def steps(result: Result) -> dict[str, Any]:
    """Steps on the gradients of 32 bits."""
    return {"misled": np.stack([eight_bit_adam.misled(result.params, seed) for seed in result.params.seeds], axis=1)}


def traces(result: Result) -> dict[str, Any]:
    """The held state."""
    return {"traces": held_state(result.params)}


MUTANTS = (
    Mutant("codes of seven bits", ("followed",), "VARIANTS", other_states(BLOCKS, block=256, code=SEVEN), part=steps),
    Mutant("linear states for dynamic ones", ("as_good",), "VARIANTS",
           other_states(BLOCKS, block=None, code="linear"), part=runs),
    Mutant("a rate ten times as small", ("as_good",), "adam",
           lambda good: lambda p, name, rate: good(p, name, rate / 10 if name == BLOCKS else rate), part=runs),
    Mutant("the dynamic map under the name of the linear one", ("linear",), "VARIANTS",
           other_states(LINEAR, block=None), part=runs),
    Mutant("scales that are not counted", ("state_sizes",), "fplab.training.Adam8bit.state_bytes",
           lambda good: lambda self: good(self) // 4 * 4 - 8, part=sizes),
    Mutant("blocks of another size", ("state_sizes",), "adam",
           lambda good: lambda p, name, rate: good(p, "dynamic" if name == BLOCKS else name, rate), part=sizes),
    Mutant("stochastic rounding that rounds to nearest", ("held",), "KEPT", lambda good: (*good[:2], {}, {}, {}),
           part=traces),
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
    result = Result(SMALL, losses, *np.zeros((3, 1)))
    assert result.unstable[:5, :, 0].tolist() == [
        [False, True], [False, False], [True, False], [True, False], [False, True],
    ]  # fmt: skip
    assert result.finals[2, 0, 0] == 2.6


def test_runs_that_diverge_are_cut_off_and_counted(result: Result) -> None:
    assert result.unstable[NAMES.index("linear")].all()
    assert result.losses[NAMES.index("linear"), 0, 0, 0] == pytest.approx(math.log(96), abs=0.2)
    assert eight_bit_adam.rows(result)["unstable"][:6] == [False] * 3 + [True] * 3


def test_the_held_state_in_closed_form(result: Result) -> None:
    """Float32 decays as 0.999^t from 1 - 0.999^50; the nearest code, once it stands, is carried up by the scale."""
    exact, nearest, *_, stochastic = result.traces
    t = np.arange(HOLD, SMALL.trace)
    np.testing.assert_allclose(exact[HOLD:], (1 - BETA2**HOLD) * BETA2 ** (t + 1 - HOLD), rtol=1e-3)
    assert abs(stochastic[-1] / exact[-1] - 1) < 0.05
    codes = (nearest / (4 * (1 - BETA2 ** np.arange(1, SMALL.trace + 1))))[-100:]
    assert codes.max() / codes.min() < 1.001
    assert nearest[-1] > 2 * exact[-1]
    np.testing.assert_array_equal(held_state(SMALL), result.traces)


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


def test_the_cases_move_and_need_numpy_and_torch_alone() -> None:
    trajectory, root = cases(SMALL)
    found = trajectory.compute(trajectory.inputs(), "cpu")
    assert len(np.unique(found["codes1"])) > 50
    assert (found["weights"][0] != found["weights"][-1]).mean() > 0.9
    inputs = root.inputs()
    want = np.sqrt(inputs["x"].view(np.float32)).view(np.uint32)
    np.testing.assert_array_equal(root.emulate(inputs, {})["root"], want)
    assert "correctly rounded?" in root.open
    compute_with_little_installed(eight_bit_adam)


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

"""One model in two ways that engines choose between: eager and fused attention, eager and ``torch.compile``."""

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import family_steps
import numpy as np
import pytest
import torch
from torch import nn

from fplab import LabError
from fplab.nn import Way, capture, explain
from fplab.nn.diagnose import compiled, dumps, hybrids
from fplab.nn.diagnose.compiled import Fused
from fplab.nn.diagnose.tensors import laid_out

Tensor = torch.Tensor


def made(name: str, layers: int, dtype: torch.dtype, **settings: Any) -> Any:
    """A model of transformers with weights so large that roundings show."""
    torch.manual_seed(2)
    model: nn.Module = getattr(family_steps, name)(num_hidden_layers=layers, **settings).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4 if weight.dim() > 1 else 1)
    return model.to(dtype)


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(family_steps.WORDS, (3, 7), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_dumps_of_eager_and_fused_attention_are_explained_to_the_bit(
    name: str, dtype: torch.dtype, tokens: Tensor, tmp_path: Path
) -> None:
    for path in ("eager", "sdpa"):
        model = made(name, 2, dtype, attn_implementation=path)
        with torch.no_grad(), capture(model, tmp_path / path):
            model(tokens, use_cache=False)
    found = explain(tmp_path / "eager", tmp_path / "sdpa", progress=str)
    assert found.whole > 0
    assert found.rest == 0
    assert [row.exact for row in found.rows] == [True, True]
    assert [row.a.rpartition(".")[2] in ("attn", "self_attn") for row in found.rows] == [True, True]
    assert all("scaled_dot_product" in row.operations[1] for row in found.rows)


class Gated(nn.Module):
    """Gate and up in one projection, whose halves lie in memory with gaps, or each in a layer of its own."""

    def __init__(self, joined: bool) -> None:
        super().__init__()
        self.joined, self.act, self.down_proj = joined, nn.SiLU(), nn.Linear(36, 24)
        for name in ("gate", "up"):
            setattr(self, name, nn.Linear(24, 36, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([self.gate.weight, self.up.weight])
        gate, up = (x @ both.t()).chunk(2, -1) if self.joined else (self.gate(x), self.up(x))
        y: Tensor = self.down_proj(self.act(gate) * up)
        return y


def test_an_operand_s_layout_decides_on_bits_and_is_kept_and_named(tmp_path: Path) -> None:
    """SiLU of a slice takes other vectors than of a copy without gaps."""
    torch.manual_seed(0)
    model, x = Gated(True), torch.randn(21, 24) * 3
    found = explain(model, x, {}, {"tensor_parallel": 2}, progress=str)
    assert [row.layer for row in found.rows] == ["down_proj"]  # act gives the same on the same operands
    for name in ("a", "b"):
        model.joined = name == "a"
        with torch.no_grad(), capture(model, tmp_path / name):
            model(x)
    for one, other in ("ab", "ba"):
        (row,) = explain(tmp_path / one, tmp_path / other, progress=str).rows
        assert (row.a, str(row.kind), row.exact, row.share) == ("act", "layout of operands in memory", True, 1)
        assert row.facts["strides"] == tuple({"a": "[72, 1]", "b": "[36, 1]"}[side] for side in (one, other))


@pytest.mark.parametrize("of", [
    lambda x: x, lambda x: x[:, :, :3], lambda x: x.transpose(0, 2), lambda x: x[:, 1], lambda x: x[..., ::2],
    lambda x: x[:, :1].expand(4, 5, 8), lambda x: x.reshape(-1).unfold(0, 4, 2), lambda x: x[0, 0, 0], lambda x: x[:0],
])  # fmt: skip
def test_a_copy_has_the_strides_of_what_it_was_made_of(of: Callable[[Tensor], Tensor]) -> None:
    x = of(torch.arange(192.0).view(4, 6, 8))
    y = laid_out(x, x.stride())
    assert torch.equal(x, y)
    assert y.stride() == x.stride()
    assert y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr() or not x.numel()


# --- torch.compile --------------------------------------------------------------------------------------------------


def bits(f: Any, *given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What a function gives as it is, compiled by Inductor, and with its operations fused."""
    with torch.no_grad(), hybrids._compiling():
        eager, theirs = f(*given), torch.compile(f)(*given)
        with Fused() as first:
            f(*given)
        with Fused(users=first.counted):
            return eager, theirs, f(*given)


def drawn(seed: int) -> Callable[..., Tensor]:
    """A chain of eight operations element by element on three tensors."""
    draw = random.Random(seed)
    steps = [(draw.choice(["add", "sub", "mul", "div", "maximum", "relu", "abs", "neg", "add_"]),
              draw.randrange(3)) for _ in range(8)]  # fmt: skip

    def chain(*given: Tensor) -> Tensor:
        result = given[0] * given[1]
        for name, place in steps:
            other = given[place]
            match name:
                case "relu" | "abs" | "neg":
                    result = getattr(torch, name)(result) + other
                case "div":
                    result = result / (other.abs() + 1)
                case "add_":
                    result = result.clone().add_(other)
                case _:
                    result = getattr(torch, name)(result, other)
        return result

    return chain


CHAINS: dict[str, Callable[..., Tensor]] = {
    "silu x up": lambda x, y, z: nn.functional.silu(x) * y,
    "gelu x up": lambda x, y, z: nn.functional.gelu(x, approximate="tanh") * y + z,
    "residual, LayerNorm": lambda x, y, z: nn.functional.layer_norm(x + y, (48,), z[0]) * x,
    "residual, RMSNorm": lambda x, y, z: z * ((x + y) * (x + y).float().pow(2).mean(-1, True).rsqrt().to(x.dtype)),
    "root": lambda x, y, z: (x * x + y.abs()).sqrt() * z + x,
    "scores, softmax": lambda x, y, z: (x * y + z).softmax(-1),
    **{f"drawn {seed}": drawn(seed) for seed in range(6)},
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("name", CHAINS)
def test_fused_chains_have_inductor_s_bits(name: str, dtype: torch.dtype) -> None:
    """All bits where FP32 operations are correctly rounded; else nearly all."""
    draw = torch.Generator().manual_seed(1)
    given = [torch.randn(24, 48, generator=draw).to(dtype) for _ in range(3)]
    eager, theirs, mine = bits(CHAINS[name], *given)
    others = [int((x.nan_to_num() != theirs.nan_to_num()).sum()) for x in (eager, mine)]
    assert others[0] > 20
    assert others[1] <= (0 if name.startswith(("drawn", "root")) else 3)


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() != "AVX512", reason="Inductor's kernels are for AVX512")
def test_a_compiled_root_is_rounded_correctly_and_torch_s_own_is_within_an_ulp() -> None:
    x = torch.rand(1 << 12, generator=torch.Generator().manual_seed(0)) * 100
    eager, theirs, mine = bits(torch.sqrt, x)
    right = torch.from_numpy(np.sqrt(x.numpy()))
    assert torch.equal(theirs, right)
    assert torch.equal(mine, right)
    assert int((eager.view(torch.int32) - right.view(torch.int32)).abs().max()) <= 1


@pytest.mark.parametrize(("name", "layers"), [("gpt2", 2), ("llama", 4), ("bert", 2), ("mixture", 2)])
def test_what_compiling_changes_is_explained_to_the_bit(name: str, layers: int, tokens: Tensor) -> None:
    model = made(name, layers, torch.bfloat16)
    found = explain(model, tokens, {}, Way(compiled=True), most=2, progress=str)
    assert found.whole > 0
    rest = found.rests[1]
    if torch.backends.cpu.get_cpu_capability() == "AVX512":  # others add and approximate functions otherwise
        assert rest == 0
        assert "Way b has the bits that torch.compile gives here." in str(found)
    assert rest < 0.1
    assert found.first.unlike["fused"] == ("-", "fp32")
    assert all(row.causes["fused"] == ("-", "fp32") for row in found.rows)


@pytest.mark.parametrize(("name", "layers"), [("gpt2", 2), ("llama", 1), ("llama", 2)])
def test_dumps_of_eager_and_compiled_are_explained_to_the_bit_or_to_a_stated_rest(
    name: str, layers: int, tokens: Tensor, tmp_path: Path
) -> None:
    model = made(name, layers, torch.bfloat16)
    with torch.no_grad(), hybrids._compiling():
        program = torch.compile(model)
        want = program(tokens, use_cache=False).logits
        with capture(model, tmp_path / "a"):
            model(tokens, use_cache=False)
        with capture(program, tmp_path / "b") as recording:
            again = program(tokens, use_cache=False).logits
    assert torch.equal(again, want)
    assert [op["name"] for op in recording.operations] == ["torch.compile"]
    read = dumps.read(tmp_path / "b")
    kept = read.whole(read.operations[0].results[0])
    assert kept is not None
    assert torch.equal(kept, want)
    found = explain(tmp_path / "a", tmp_path / "b", progress=str)
    (row,) = found.rows
    assert found.whole > 0
    assert str(row.kind) == "torch.compile"
    assert str(row.way) == "operations fused, what goes from one to the next kept in FP32"
    assert abs(found.rest) < 0.1
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        assert row.exact
        assert found.rest == 0
    other = made(name, layers, torch.bfloat16)
    with torch.no_grad(), capture(other, tmp_path / "other"):
        other.lm_head.weight.mul_(0.9)
        other(tokens, use_cache=False)
    found = explain(tmp_path / "other", tmp_path / "b", progress=str)  # fusing is not all that differs
    assert not any(row.exact for row in found.rows)
    assert abs(found.rest) > 0.1


def test_a_training_step_of_a_compiled_module_is_left_as_it_is(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU()), torch.randn(4, 8)
    program, steps = torch.compile(model, backend="aot_eager"), []
    recording = capture(model, tmp_path)
    for context in (contextlib.nullcontext(), recording):
        model.zero_grad()
        with context, hybrids._compiling():
            program(x).sum().backward()
            model[0](x)
        steps.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(steps[0]) == 2
    assert all(map(torch.equal, *steps))
    assert {"", "0"} == {op["module"] for op in recording.operations}  # modules are followed again
    assert [op["name"] for op in recording.operations if op["name"].startswith("torch.")] == [
        "torch.compile", "torch.compile backward"
    ]  # fmt: skip
    with capture(model, tmp_path), hybrids._compiling():
        program(x)
        with pytest.raises(RuntimeError, match=r"torch\.compile joins operations"):
            torch.compile(lambda x: x * 2, backend="eager")(x)


def losses(name: str, tokens: Tensor) -> tuple[nn.Module, Callable[[Any], Tensor]]:
    """A model in BF16, and its loss as a function of it or of what compiles it."""
    if name == "llama":
        return made("llama", 1, torch.bfloat16), lambda program: nn.functional.cross_entropy(
            program(tokens, use_cache=False).logits.float().flatten(0, 1), tokens.flatten()
        )
    torch.manual_seed(0)
    layers = [nn.Linear(32, 64), nn.GELU(approximate="tanh"), nn.LayerNorm(64), nn.Linear(64, 16), nn.SiLU()]
    x = torch.randn(24, 32).bfloat16()
    return nn.Sequential(*layers).bfloat16(), lambda program: program(x).float().square().mean()


@pytest.mark.parametrize("name", ["layers", "llama"])
def test_dumps_of_eager_and_compiled_training_steps_are_explained(name: str, tokens: Tensor, tmp_path: Path) -> None:
    """The gradient of the first weights: by what the forward pass stores, its result, and the backward pass."""
    model, loss = losses(name, tokens)
    program, gradients = torch.compile(model), []
    with hybrids._compiling():
        for recorded, side in ((False, program), (True, program), (True, model)):
            model.zero_grad()
            recording = capture(model, tmp_path / ("b" if side is program else "a"), "all")
            with recording if recorded else contextlib.nullcontext():
                loss(side).backward()
                gradients.append([p.grad for p in model.parameters()])
                if recorded:
                    recording.gave(gradients[-1][0])
    assert all(map(torch.equal, gradients[0], gradients[1]))  # noting it changes nothing
    found = explain(tmp_path / "a", tmp_path / "b", progress=str)
    assert found.whole > 0
    assert {str(row.kind) for row in found.rows} == {"torch.compile"}
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        assert found.rest == (0 if name == "layers" else pytest.approx(0, abs=0.3))
        forward = [row for row in found.rows if row.operations[1] == "torch.compile"]
        assert forward
        assert all(row.left < 1e-7 for row in forward)


class Rotary(nn.Module):
    """A model that ends with a fused operation."""

    def forward(self, q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return q * cos + torch.cat((-q[..., 8:], q[..., :8]), -1) * sin


def test_what_a_compiled_model_gives_is_rounded() -> None:
    draw = torch.Generator().manual_seed(0)
    given = tuple(torch.randn(2, 7, 16, generator=draw).bfloat16() for _ in range(3))
    found = explain(Rotary(), given, {}, {"compiled": True}, lambda model, batch: model(*batch).float(), progress=str)
    assert found.faithful == (True, True)
    assert found.whole > 0
    assert found.rests[1] == 0


def test_what_is_left_is_stated(tokens: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    given = made("llama", 2, torch.bfloat16), tokens, {}, {"compiled": True}
    monkeypatch.setattr(compiled, "READS", 0)
    found = explain(*given, most=1, progress=str)
    assert 0 < found.rests[1] < 2
    assert found.faithful == (True, False)
    assert f"{found.rests[1]:.1%} of the difference is left" in str(found)
    plain = explain(made("llama", 1, torch.float32), tokens, {}, {"compiled": True}, most=1, progress=str)
    assert plain.whole == 0  # nothing to round, and sums in another order are not modelled
    monkeypatch.setattr(torch, "compile", lambda model: 1 / 0)
    found = explain(*given, most=1, progress=str)
    assert found.faithful == (True, None)
    assert "torch.compile computes nothing here that way b could be held to." in str(found)


@pytest.mark.parametrize(("rule", "value", "name", "layers"), [
    ("READS", 0, "gpt2", 1), ("READS", 100, "bert", 1), ("MOST", 100, "mixture", 1), ("UNROLLED", 0, "mixture", 1),
    ("_in_rows", lambda *_: False, "llama", 2),
])  # fmt: skip
def test_when_results_are_stored_decides_on_bits(
    rule: str, value: Any, name: str, layers: int, tokens: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, rule, value)
    model = made(name, layers, torch.bfloat16)
    _, theirs, mine = bits(lambda x: model(x).logits, tokens)
    assert not torch.equal(theirs, mine)


def test_compiled_is_true_or_false() -> None:
    assert repr(Way(compiled=True)) == "Way(compiled=True)"
    assert repr(Way(compiled=False)) == "Way()"
    with pytest.raises(LabError, match="compiled"):
        Way(compiled="inductor")  # type: ignore[arg-type]

"""Two programs that differ in one drawn fault: explain names its kind and its place, and never another's."""

from collections.abc import Callable
from itertools import count

import planted_faults
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from fplab import LabError
from fplab.nn import capture, explain
from fplab.nn.diagnose.dump_explanation import SAME


def test_of_forty_drawn_faults_nine_in_ten_are_named_and_none_is_misled() -> None:
    lines: list[str] = []
    table = planted_faults.table(count(), 40, lines.append)
    verdicts = [one for found in table.values() for one in found.elements()]
    assert len(verdicts) == 40
    assert len(table) >= 15
    assert "misled" not in verdicts, lines
    assert verdicts.count("named") >= 36, lines


def test_every_word_of_an_answer_agrees_with_its_causes() -> None:
    """A fault in two places has two causes; their parts are all of the difference, and none is left."""
    case = planted_faults.drawn(next(n for n in count() if planted_faults.drawn(n).fault == "eps"))
    block = case.models[1].layers[-1]
    block.residual = 0.75
    said = planted_faults.answer(case)
    assert {str(row.kind) for row in said.rows} == {"eps", "scale"}
    assert all(row.exact for row in said.rows)
    assert sum(row.share for row in said.rows) == pytest.approx(1, abs=1e-9)
    assert abs(said.rest) < 1e-9
    text = str(said)
    assert str(SAME) not in text
    assert "Causes found: 2, with 100.0% of the difference at the output" in text
    assert case.module in text


def test_programs_that_are_one_are_said_to_be(tmp_path) -> None:
    a = planted_faults.drawn(0).models[0]
    x = planted_faults.drawn(0).inputs[0]
    said = explain(lambda: a(x), lambda: a(x))
    assert (said.whole, said.rows, str(said.text)) == (0, (), str(SAME))
    with capture(a, tmp_path):
        a(x)
    assert explain(tmp_path, lambda: a(x)).whole == 0
    said.save(tmp_path / "answer")
    assert {path.name for path in (tmp_path / "answer").iterdir()} == {
        f"explain.{x}" for x in ("csv", "json", "txt", "html")
    }


@pytest.mark.parametrize("draw", [lambda *n: torch.randint(-9, 9, n).float(), torch.randn])
def test_other_names_a_joined_projection_and_transposed_weights_are_followed(draw) -> None:
    torch.manual_seed(1)
    x, parts = draw(4, 80), [torch.nn.Parameter(draw(8, 80)) for _ in range(3)]

    class Joined(torch.nn.Module):
        def __init__(self, eps: float) -> None:
            super().__init__()
            self.qkv, self.eps = torch.nn.Parameter(torch.cat(parts).T.contiguous()), eps

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (x @ self.qkv).chunk(3, -1)
            return torch.nn.functional.layer_norm(q * k + v, (8,), eps=self.eps)

    def apart() -> torch.Tensor:
        q, k, v = (x @ p.T for p in parts)
        return torch.nn.functional.layer_norm(q * k + v, (8,), eps=1e-5)

    joined = Joined(1e4)
    said = explain(apart, lambda: joined(x))
    *before, last = said.rows
    assert (str(last.kind), last.facts, last.exact) == ("eps", {"eps": ("1e-05", "10000")}, True)
    assert {str(row.kind) for row in before} <= {"order of reduction"}  # none where sums are exact
    assert not before or draw is torch.randn
    assert said.rest == 0


def trained(kind: str, seed: int = 0, **settings: object) -> Callable[[], torch.Tensor]:
    """A weight after two steps of an optimizer."""

    def program() -> torch.Tensor:
        torch.manual_seed(seed)
        model, x = (
            torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)),
            torch.randn(8, 16),
        )
        optimizer = getattr(torch.optim, kind)(model.parameters(), **{"lr": 1e-3, **settings})
        for _ in range(2):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        return model[2].weight

    return program


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(
    ("kind", "name", "values"),
    [("AdamW", "lr", (1e-3, 2e-3)), ("AdamW", "betas", ((0.9, 0.999), (0.9, 0.99))), ("AdamW", "eps", (1e-8, 1e-4)),
     ("AdamW", "weight_decay", (0.01, 0.1)), ("SGD", "momentum", (0.9, 0.8)), ("SGD", "weight_decay", (0, 0.1))],
)  # fmt: skip
def test_an_optimizer_s_hyperparameters_are_named(kind: str, name: str, values: tuple[object, ...], foreach) -> None:
    said = explain(*(trained(kind, foreach=foreach, **{name: value}) for value in values))
    assert said.whole > 0
    assert {str(row.kind) for row in said.rows} == {"optimizer's hyperparameters"}
    assert all(kind in (row.a, row.b) for row in said.rows)
    assert all(row.facts == {name: tuple(map(str, values))} and row.exact for row in said.rows)
    assert foreach or abs(said.rest) < 1e-9


def test_what_an_optimizer_did_not_do_is_not_laid_to_it() -> None:
    said = explain(trained("AdamW"), trained("AdamW", seed=1))
    assert "optimizer's hyperparameters" not in {str(row.kind) for row in said.rows}
    assert said.rows


def test_what_is_no_program_is_refused() -> None:
    with pytest.raises(LabError, match="holds no dump that fplab can read: No such file"):
        explain("nowhere", "nowhere")
    with pytest.raises(LabError, match="pass the folder of a dump, or a function"):
        explain(lambda: None, 3)  # type: ignore[call-overload]


def on_ranks(rank: int, folder: str, dtype: torch.dtype) -> None:
    """One of two ranks of a tensor-parallel MLP."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{folder}/meeting-{dtype}")
    model, x = split(dtype)
    mesh = init_device_mesh("cpu", (2,))
    parallelize_module(model.layers[0], mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    with torch.no_grad(), capture(model, f"{folder}/two"):
        output = model(x)
    torch.save(output, f"{folder}/output-{rank}.pt")
    dist.destroy_process_group()


def split(dtype: torch.dtype) -> tuple[planted_faults.Net, torch.Tensor]:
    torch.manual_seed(0)
    return planted_faults.Net("gpt", 32, 4, 1).eval().to(dtype), torch.randint(64, (2, 8))


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_ranks_of_tensor_parallel_are_one_process_to_the_bit(dtype: torch.dtype, tmp_path) -> None:
    model, x = split(dtype)
    with torch.no_grad(), capture(model, tmp_path / "one"):
        model(x)
    torch.multiprocessing.spawn(on_ranks, (str(tmp_path), dtype), 2)
    said = explain(tmp_path / "one", tmp_path / "two")
    ranks = {"tensor_parallel": 2, "rowwise": ("layers.0.down",)}
    both = [torch.load(tmp_path / f"output-{rank}.pt") for rank in (0, 1)]
    way = explain(model, x, {}, ranks, lambda net, x: (net(x) - both[0]).abs().max(), progress=str)
    (row,) = said.rows
    assert (str(row.kind), row.a, row.b) == ("tensor-parallel split", "layers.0.down", "layers.0.down")
    assert str(row.way) == "tensor parallel over 2 ranks, each with its part of the bias, then all-reduced"
    assert row.exact
    assert said.rest == 0
    assert said.state["ranks"] == ("1", "2")
    assert torch.equal(*both)
    assert way.ends[1] == 0  # in one process the output of the ranks, all of it, to the bit
    assert way.ends[0] > 0
    assert [row.layer for row in way.rows if row.own > 0] == ["layers.0.down"]


def on_sequences(rank: int, folder: str, dtype: torch.dtype) -> None:
    """One of four ranks whose sums are scattered over the tokens."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=4, init_method=f"file://{folder}/meeting")
    model, x = split(dtype)
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=Shard(1))}
    parallelize_module(model.layers[0], init_device_mesh("cpu", (4,)), plan)

    def gathered(_: torch.nn.Module, given: object, part: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(part) for _ in range(4)]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts, 1)

    model.layers[0].down.register_forward_hook(gathered)
    with torch.no_grad():
        torch.save(model(x), f"{folder}/output-{rank}.pt")
    dist.destroy_process_group()


def experts(dtype: torch.dtype) -> tuple[torch.nn.Module, torch.Tensor]:
    """A Mixtral of one layer and eight experts, of which each token asks four."""
    torch.manual_seed(3)
    from family_steps import library

    transformers = library("transformers")
    config = transformers.MixtralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=4, max_position_embeddings=32,
    )  # fmt: skip
    config._experts_implementation = "eager"
    model = transformers.MixtralForCausalLM(config).to(dtype).eval()
    return model, torch.randint(64, (2, 12))


def on_experts(rank: int, folder: str, dtype: torch.dtype) -> None:
    """One of two ranks with half of the experts; the others' weights are not there."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{folder}/meeting")
    model, x = experts(dtype)
    layer = model.model.layers[0].mlp.experts
    with torch.no_grad():
        for weight in (layer.gate_up_proj, layer.down_proj):
            weight[4 * (1 - rank) : 4 * (2 - rank)] = torch.nan

    def own(_: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        hidden, index, weights = given
        mine = index // 4 == rank
        return hidden, torch.where(mine, index, 8), weights * mine

    def added(_: torch.nn.Module, given: object, part: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(part)
        return part

    layer.register_forward_pre_hook(own)
    layer.register_forward_hook(added)
    with torch.no_grad():
        torch.save(model(x).logits, f"{folder}/output-{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_ranks_of_expert_parallel_are_one_process_to_the_bit(dtype: torch.dtype, tmp_path) -> None:
    torch.multiprocessing.spawn(on_experts, (str(tmp_path), dtype), 2)
    (model, x), real = experts(dtype), torch.load(tmp_path / "output-1.pt")

    def far(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return (net(x).logits - real).abs().max()

    way = explain(model, x, {}, {"expert_parallel": 2}, far, progress=str)
    assert way.ends[1] == 0
    assert way.ends[0] > 0
    assert [row.layer for row in way.rows if row.alone] == ["model.layers.0.mlp.experts"]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_four_ranks_of_sequence_parallel_are_one_process_to_the_bit(dtype: torch.dtype, tmp_path) -> None:
    torch.multiprocessing.spawn(on_sequences, (str(tmp_path), dtype), 4)
    (model, x), real = split(dtype), torch.load(tmp_path / "output-3.pt")
    way = {"tensor_parallel": 4, "rowwise": ("layers.0.down",)}
    outputs = [
        explain(model, x, {}, {**way, **more}, lambda net, x: (net(x) - real).abs().max(), progress=str)
        for more in ({"sequence_parallel": True}, {})
    ]
    assert outputs[0].ends[1] == 0  # all of the ranks' output, to the bit
    assert outputs[0].ends[0] > 0
    assert outputs[1].ends[1] > 0  # added in the order of the ranks it is another
    assert [row.layer for row in outputs[0].rows if row.own > 0] == ["layers.0.down"]

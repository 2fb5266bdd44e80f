"""Emulation, formats, watch and optimizers inside DDP, FSDP2, tensor parallel and pipelines, 2 and 4 processes of gloo.

Every weight after three steps has the bits that one process computes: gloo adds the ranks' gradients in an order of its
own, which one process takes as well (:mod:`fplab.parallel.gloo`); tensor parallel also cuts the second layer's k into
the ranks' parts, and gives each rank its share of the bias. A pipeline adds the gradients of a batch's parts in their
order, as one process that takes them one after the other. Under a recipe a rank quantises the parts that it
holds; what delayed scaling scales by is the largest over the ranks.
"""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from distributed_steps import OPTIMIZERS, WHATS, alone, batches, block, in_parts, in_slices, loaded, network
from ranks import on_ranks
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.checkpoint import CheckpointException

from fplab.nn import bits, emulate
from fplab.training import AmaxScaling

STRATEGIES = ("ddp", "fsdp2", "tensor", "pipeline")
CHECKPOINTS = ("whole", "reentrant", "not reentrant")
# What one process computes no bits of: stochastic rounding draws by the number of a product in its own process.
APART = {"tensor": ("watch", "formats", "nvfp4"), "pipeline": ("nvfp4",)}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], dict[str, Any]]:
    """What rank 0 has, by strategy and number of processes."""
    folder = tmp_path_factory.mktemp("distributed")
    jobs = [(ranks, str(folder), strategy) for strategy in (*STRATEGIES, "checkpoint", "states") for ranks in (2, 4)]
    jobs += [(2, str(folder), "names"), (2, str(folder), "diagnoses")]
    results = on_ranks("distributed_steps:main", folder, *jobs)
    return {"folder": folder} | {
        (strategy, ranks): one for (ranks, _, strategy), one in zip(jobs, results, strict=True)
    }


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("what", WHATS)
def test_every_strategy_has_the_bits_of_one_process(found: Any, strategy: str, ranks: int, what: str) -> None:
    run = found[strategy, ranks]
    got = run[what]
    assert all(got["resizable"]), "numpy left its mark on the parameters"
    assert torch.isfinite(got["losses"]).all()
    if what == "watch":
        assert "weights" in got["said"]
        assert all(map(torch.equal, got["weights"], run["plain"]["weights"])), "watching changes nothing"
    if what not in APART.get(strategy, ()):
        one = {"tensor": lambda: in_slices(what, ranks), "pipeline": lambda: in_parts(what)}
        want = one.get(strategy, lambda: alone(strategy, what, ranks))()
        assert torch.equal(got["losses"], want["losses"])
        assert all(torch.equal(a, b) for a, b in zip(got["weights"], want["weights"], strict=True))
    if what not in ("plain", "watch"):
        assert not torch.equal(got["weights"][0], run["plain"]["weights"][0])


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_tensor_parallel_names_a_layer_s_backward_products_and_has_its_format(found: Any, kind: str) -> None:
    """Each node of the graph is a DTensor's, whose operations run below it; also after the block."""
    recomputed = {"whole": (0, 0), "reentrant": (1, 1), "not reentrant": (1, 0)}[kind]
    narrow, high = "B200 tcgen05.k32 e4m3/e8m0x32->fp32", "B200 tcgen05.k16 bf16->fp32"
    (inside, gradients), (after, others) = (found["names", 2][f"{kind}, {when}"] for when in ("inside", "after"))
    for rows in (inside, after):
        count: Counter[tuple[str, ...]] = Counter()
        for *which, n in rows:
            count[tuple(which)] += n
        assert count == {
            ("0", "forward", narrow): 1, ("0", "backward", narrow): 2 + recomputed[0],
            ("2", "forward", high): 1, ("2", "backward", high): 2 + recomputed[1],
        }  # fmt: skip
    whole = found["names", 2]["whole, inside"][1]
    assert len(gradients) == len(others) == len(whole) == 5
    assert all(map(torch.equal, gradients, others))
    assert all(map(torch.equal, gradients, whole))


@pytest.mark.parametrize("strategy", ["tensor", "fsdp2"])
def test_diagnoses_name_every_layer_of_a_network_on_several_ranks_or_say_why_not(found: Any, strategy: str) -> None:
    said, one = found["diagnoses", 2][strategy], ("weights", "weight gradients", "updates")
    for kind in CHECKPOINTS:
        got = said[f"watch, {kind}"]
        assert {layer for layer, _ in got["rows"]} - {"(model)"} == {"0", "1", "2"}
        assert {(layer, what) for layer, what in got["rows"] if what in one} == {(n, w) for n in "02" for w in one}
        assert got["products"] == [(n, "forward", "data_gradient", "weight_gradient") for n in "02"]
    refused = "takes no tensors that are spread over processes, as the DTensors of"
    for what in ("survey", "explain"):
        assert f"{what} {refused} '0.weight' are: no rank has all" in said[what]
    if strategy == "tensor":
        assert said["shadow"].startswith(f"shadow {refused} 't' are: no rank")
    else:
        products = [("0", "forward"), ("2", "forward"), ("2", "backward"), ("0", "backward")]
        assert said["shadow"]["products"] == products
        assert abs(said["shadow"]["rest"]) < 0.01 * abs(said["shadow"]["whole"])


@pytest.mark.parametrize("ranks", [2, 4])
def test_scales_go_through_a_distributed_checkpoint(found: Any, ranks: int) -> None:
    """A run that is resumed has the bits of one that never stopped, and other bits without its scales."""
    run = found["checkpoint", ranks]
    assert run.pop("refused").startswith(
        "amaxes cannot be reduced: other ranks multiply other operands (1 operands here, 'layer 0' the first)"
    )
    for whole, after, without in run.values():
        assert all(map(torch.equal, after[0], whole[0]))
        assert after[1] == whole[1]
        assert not all(map(torch.equal, without[0], whole[0]))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # which is meant
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_of_optimizers_go_through_a_distributed_checkpoint(found: Any, name: str) -> None:
    """Saved by two processes, loaded by two, by four and by one: the same bits, and the next step's too."""

    def same(one: Any, other: Any) -> bool:
        return one.keys() == other.keys() and all(torch.equal(x, other[key]) for key, x in one.items())

    two, four = found["states", 2], found["states", 4]
    assert same(two[f"{name}, loaded"], two[name])
    assert same(two[f"{name}, loaded, on"], two[f"{name}, on"])
    assert not same(two[f"{name}, on"], two[name])
    net, where = network(), str(found["folder"] / "states" / name)
    if name == "ragged":  # blocks that begin where a part does are those of this way of cutting alone
        with pytest.raises(CheckpointException, match="ize mismatch between saved"):
            loaded(net, OPTIMIZERS[name](net.parameters()), where)
        assert "ize mismatch between saved" in four[name]
        return
    assert same(loaded(net, OPTIMIZERS[name](net.parameters()), where), two[name])
    assert same(four[name], two[name])


@pytest.mark.parametrize("what", ["emulate", "scaled", "formats"])
def test_parameters_stay_resizable(what: str) -> None:
    """FSDP2 frees a parameter by making its memory empty, and a view of numpy's forbids that for good."""
    net, x = network(), batches()[0]
    with block(what, net, AmaxScaling()):
        net(x).square().mean().backward()
    tensors = [x, *net.parameters()]
    assert all(t.untyped_storage().resizable() for t in tensors)
    for t in tensors:
        array = bits.array(t)
        assert array.shape == t.shape
        array.reshape(-1)[0] = 7.0
        assert t.reshape(-1)[0] == 7.0
    assert all(t.untyped_storage().resizable() for t in tensors)


def test_an_array_keeps_its_tensor_alive_and_has_its_strides() -> None:
    for t in (torch.arange(24.0).reshape(4, 6).T[1:, ::2], torch.tensor(3, dtype=torch.int32), torch.zeros(0, 3)):
        want = t.clone().numpy()
        got = bits.array(t)
        del t
        assert got.dtype == want.dtype
        assert np.array_equal(got, want)


def test_shapes_without_values_pass_as_dtensor_asks_for_them() -> None:
    with FakeTensorMode() as fake:
        x = fake.from_tensor(torch.ones(3, 4))
    with emulate("H100", "fp16") as run:
        assert (x @ x.mT).shape == (3, 3)
    assert not run.report().rows


def test_without_processes_there_is_nothing_to_synchronize() -> None:
    scaling = AmaxScaling()
    scaling.scale("a", torch.ones(3))
    before = scaling.state_dict()
    scaling.synchronize()
    assert scaling.state_dict() == before

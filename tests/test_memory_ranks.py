"""Shards, stages, off-loading and traffic against plain enumeration."""

import json
import math
from fractions import Fraction
from typing import Any

import pytest
import torch

from fplab.memory import Model, Tensor, Transformer, estimate, preset, sharding, smallest, stages
from fplab.memory.activations import Term
from fplab.memory.communication import sent
from fplab.memory.models import tensors_of
from fplab.memory.options import Options
from fplab.memory.units import GB

SMALL = Transformer("small", 6, 64, 4, 100, 32)
SHAPES = tuple((t.shape, 1) for t in tensors_of(SMALL).tensors)


# --- who holds what ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 64])
def test_rows_are_cut_as_torch_cuts_chunks(ranks: int) -> None:
    for rank in range(ranks):
        wanted = []
        for shape, _ in SHAPES:
            parts = torch.empty(shape, device="meta").chunk(ranks)
            wanted.append((parts[rank].numel() if rank < len(parts) else 0, 1))
        assert sharding.rows(SHAPES, ranks, rank) == wanted


@pytest.mark.parametrize("partition", sharding.PARTITIONS)
@pytest.mark.parametrize("ranks", [1, 2, 5, 16])
def test_the_ranks_hold_everything_and_only_the_flat_buffer_is_padded(partition: str, ranks: int) -> None:
    n = SMALL.parameters
    held = [sharding.elements(sharding.PARTITIONS[partition](SHAPES, ranks, rank)) for rank in range(ranks)]
    assert sum(held) == (-(-n // ranks) * ranks if partition == "flat" else n)
    assert partition != "flat" or len(set(held)) == 1


def test_whole_tensors_go_to_the_rank_that_has_the_least() -> None:
    shapes = [((8,), 1), ((5,), 1), ((4,), 2), ((3,), 1)]
    assert [sharding.tensors(shapes, 2, r) for r in (0, 1)] == [[(8, 1), (4, 1)], [(5, 1), (4, 1), (3, 1)]]


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 64, 1000])
def test_whole_tensors_are_handed_out_as_by_the_plain_rule(ranks: int) -> None:
    sizes = sorted((math.prod(shape) for shape, _ in SHAPES), reverse=True)
    held: list[list[int]] = [[] for _ in range(ranks)]
    for n in sizes:
        min(held, key=sum).append(n)
    assert [sharding.tensors(SHAPES, ranks, r) for r in range(ranks)] == [[(n, 1) for n in one] for one in held]
    e = estimate(SMALL, gpus=ranks, zero=1, partition="tensors", optimizer="adamw8bit")
    assert e.total == max(e.rank(r).total for r in range(ranks))


def test_ranks_differ_only_where_the_partition_does() -> None:
    flat = estimate(SMALL, gpus=3, zero=3)
    assert flat.rank(0) == flat.rank(2) == flat.fullest
    by_rows = estimate(SMALL, gpus=3, zero=3, partition="rows")
    parts = [by_rows.rank(r).device["states"] for r in range(3)]
    assert sum(parts) == 8 * SMALL.parameters
    assert parts[0] == max(parts) > parts[2]
    whole = estimate(SMALL, gpus=3, zero=1, partition="tensors")
    states = [whole.rank(r).device["states"] for r in range(3)]
    assert sum(states) == 8 * SMALL.parameters
    assert whole.fullest.device["states"] == max(states)
    grid = estimate(SMALL, gpus=6, tensor=2, zero=3, partition="rows")  # tensor-parallel ranks are neighbours
    parts = [grid.rank(r).device["states"] for r in range(6)]
    assert parts[0] == parts[1] > parts[4] == parts[5]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_every_kind_is_divided_from_its_stage_of_zero_on(zero: int) -> None:
    n, device = SMALL.parameters, estimate(SMALL, gpus=4, zero=zero).fullest.device
    shard = -(-n // 4)
    assert device["states"] == 8 * (shard if zero >= 1 else n)
    assert device["master"] == 4 * (shard if zero >= 1 else n)
    assert device["gradients"] == 2 * (shard if zero >= 2 else n)
    assert device["parameters"] == 2 * (shard if zero >= 3 else n)


@pytest.mark.parametrize("tensor", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
def test_stages_and_tensor_ranks_hold_every_parameter(tensor: int, count: int) -> None:
    """Enumerated tensor by tensor: what is divided is divided once, what is copied is known."""
    c = Transformer("untied", 6, 64, 4, 100, 32, tied=False)
    e = estimate(c, gpus=tensor * count, tensor=tensor, pipeline=count)
    whole = sum(t.elements if t.split is not None else t.elements * tensor for t in tensors_of(c).tensors)
    assert sum(rank.elements for rank in e.stages) * tensor == whole
    tied = estimate(SMALL, gpus=tensor * count, tensor=tensor, pipeline=count)
    copy = 100 * 64 * (count > 1)
    one = sum(t.elements if t.split is not None else t.elements * tensor for t in tensors_of(SMALL).tensors)
    assert sum(rank.elements for rank in tied.stages) * tensor == one + copy
    assert sum(rank.layers for rank in tied.stages) == 6


def test_the_layers_of_an_interleaved_stage_go_round_the_stages() -> None:
    """Where layers differ it matters which: 8 layers of 1, 2, ... 8 parameters on two stages of two chunks."""
    model = Model("steps", (), tuple((Tensor("w", (n,)),) for n in range(1, 9)), ())
    options = {"gpus": 2, "pipeline": 2, "micro_batches": 2}
    assert [r.elements for r in estimate(model, **options).stages] == [1 + 2 + 3 + 4, 5 + 6 + 7 + 8]
    woven = estimate(model, **options, schedule="interleaved", chunks=2).stages
    assert [r.elements for r in woven] == [1 + 2 + 5 + 6, 3 + 4 + 7 + 8]
    assert [r.elements for r in estimate(model, gpus=3, pipeline=3).stages] == [1 + 2 + 3, 4 + 5 + 6, 7 + 8]


def test_a_vocabulary_that_does_not_divide_is_padded() -> None:
    e = estimate("gpt2", gpus=2, tensor=2)
    assert -(-50257 // 2) == 25129
    halves = sum(t.elements // 2 if t.split is not None else t.elements for t in tensors_of(preset("gpt2")).tensors[1:])
    assert e.fullest.elements == 25129 * 768 + halves


def test_step_counts_are_four_bytes_a_tensor() -> None:
    with_counts = estimate(SMALL, step_counts=True).fullest.device["states"]
    assert with_counts - estimate(SMALL).fullest.device["states"] == 4 * len(tensors_of(SMALL).tensors)


# --- off-loading ------------------------------------------------------------------------------------------------
def test_offloading_parameters_leaves_the_gathered_layers() -> None:
    rank = estimate(SMALL, gpus=4, zero=3, offload="parameters").fullest
    assert rank.states == 0
    assert sum(rank.host.values()) == 16 * -(-SMALL.parameters // 4)
    layer = sum(t.elements for t in tensors_of(SMALL).layers[0])
    assert rank.temporary["gathered layer, next layer"] == 2 * 2 * layer


def laid_out(sizes: list[int], chunk: int) -> int:
    """Chunks, one after the other, tensors in order, none across a boundary; larger ones in chunks of their own."""
    chunks = [0]
    for n in sizes:
        if n > chunk:
            chunks += [chunk] * (n // chunk) + ([n % chunk] if n % chunk else [])
        elif chunks[-1] + n <= chunk:
            chunks[-1] += n
        else:
            chunks.append(n)
    return len([used for used in chunks if used])


@pytest.mark.parametrize("chunk", [70, 4096, 16384, 10**6])
def test_chunks_are_laid_out_in_order(chunk: int) -> None:
    sizes = [math.prod(shape) for shape, _ in SHAPES]
    assert stages.chunks_of(SHAPES, chunk) == laid_out(sizes, chunk)


def test_chunks_need_14_bytes_a_parameter_and_fill_what_the_gpu_offers() -> None:
    """Fang et al., PatrickStar: gradients take the place of the weights' chunks, so 14 bytes instead of 16."""
    options = {"offload": "chunks", "chunk_elements": 10**6}
    n = 64 * 10**6
    nothing = estimate(n, gpus=4, **options, chunk_budget=0).fullest
    assert nothing.states + sum(nothing.host.values()) == 14 * n // 4
    assert nothing.states == 2 * 10**6
    half = estimate(n, gpus=4, **options, chunk_budget=100 * 10**6).fullest
    assert half.states + sum(half.host.values()) == 14 * n // 4
    assert half.states == 96 * 10**6  # 16 chunks of weights, 16 of master weights: the next takes 8 MB
    everything = estimate(n, gpus=4, **options, chunk_budget=10**9).fullest
    assert sum(everything.host.values()) == 0
    assert not [t for t in everything.traffic if t.collective == "host"]
    assert [t.sent for t in nothing.traffic if t.collective == "host"] == [2 * 16 * 10**6, 2 * 16 * 10**6,
                                                                          2 * 2 * 15 * 10**6]  # fmt: skip


# --- traffic ----------------------------------------------------------------------------------------------------
def ring(collective: str, elements: int, ranks: int) -> list[int]:
    """How many elements each rank of a ring sends, step by step over a padded buffer."""
    piece = -(-elements // ranks)
    steps = {"all-reduce": 2 * (ranks - 1), "reduce-scatter": ranks - 1, "all-gather": ranks - 1}[collective]
    totals = [0] * ranks
    for _ in range(steps):
        for rank in range(ranks):
            totals[rank] += piece
    return totals


@pytest.mark.parametrize("collective", ["all-reduce", "reduce-scatter", "all-gather"])
def test_rings_send_what_they_send(collective: str) -> None:
    for elements in (1, 7, 1000):
        for ranks in (1, 2, 3, 8):
            assert set(ring(collective, elements, ranks)) == {sent(collective, elements, ranks)}


def test_tensor_parallel_traffic_is_four_all_reduces_a_layer() -> None:
    c = preset("gpt3")
    e = estimate(c, gpus=8, tensor=8, micro_batches=3)
    (one,) = e.fullest.traffic
    assert one.times == 3 * (4 * 96 + 2)
    assert one.message == 2 * 2048 * 12288
    spread = estimate(c, gpus=8, tensor=8, micro_batches=3, sequence_parallel=True).fullest
    assert spread.sent == one.sent
    again = estimate(c, gpus=8, tensor=8, micro_batches=3, recompute="full").fullest
    assert again.traffic[0].times == 3 * (6 * 96 + 2)


def test_stages_send_to_their_neighbours() -> None:
    e = estimate(SMALL, gpus=3, pipeline=3, micro_batches=6, schedule="interleaved", chunks=2)
    sends = [{t.what.split()[0]: t.times for t in rank.traffic} for rank in e.stages]
    assert sends == [{"activations": 12, "gradients": 6}, {"activations": 12, "gradients": 12},
                     {"activations": 6, "gradients": 12}]  # fmt: skip


def test_ddp_buckets_that_are_copies_double_the_gradients() -> None:
    copies = estimate(SMALL, gpus=2, bucket_views=False).fullest
    views = estimate(SMALL, gpus=2).fullest
    assert copies.total - views.total == copies.device["gradients"] == 2 * SMALL.parameters


# --- inference --------------------------------------------------------------------------------------------------
def test_inference_counts_weights_scales_and_the_cache() -> None:
    c = Transformer("tiny", 2, 64, 4, 100, 32, tied=False)
    linear = 2 * 12 * 64 * 64
    rows = 2 * (4 * 64 + 256 + 64)
    rest = c.parameters - linear
    device = {fmt: estimate(c, inference=fmt).fullest.device for fmt in ("fp32", "fp16", "int8", "int4")}
    assert device["fp32"]["parameters"] == 4 * c.parameters
    assert device["fp16"]["parameters"] == 2 * c.parameters
    assert device["int8"]["parameters"] == linear + 4 * rows + 2 * rest
    assert device["int4"]["parameters"] == linear // 2 + 4 * linear // 64 + 2 * rest
    assert device["fp16"]["kv cache"] == 2 * 2 * 32 * 64 * 2
    assert device["fp32"]["kv cache"] == 2 * device["fp16"]["kv cache"]


def test_grouped_keys_make_the_cache_smaller() -> None:
    c = preset("llama3-70b")
    assert estimate(c, inference="fp16").fullest.device["kv cache"] == 2 * 80 * 8192 * 8 * 128 * 2


# --- the smallest number of GPUs --------------------------------------------------------------------------------
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_the_smallest_number_fits_and_one_less_does_not(zero: int) -> None:
    found = smallest("llama3-8b", 80 * GB, zero=zero, recompute="full")
    assert found is not None
    n = found.options.gpus
    assert found.total <= 80 * GB < estimate("llama3-8b", gpus=n - 1, zero=zero, recompute="full").total


def test_without_zero_one_gpu_or_none() -> None:
    assert smallest("gpt2", 80 * GB).options.gpus == 1  # type: ignore[union-attr]
    assert smallest("llama3-8b", 80 * GB) is None
    options: dict[str, Any] = {"zero": 3, "recompute": "full"}
    for optimizer, least in (("adamw", 23), ("adamw8bit", 15)):  # as chapter 11 says
        found = smallest("llama3-70b", 80 * GB, optimizer=optimizer, **options)
        assert found is not None
        assert found.options.gpus == least
    assert smallest("llama3-8b", 40 * GB, zero=3) is None  # the activations alone are more
    replica = smallest("llama3-405b", 80 * GB, zero=1, tensor=8, pipeline=9, recompute="full")
    assert replica is not None
    assert replica.options.gpus % 72 == 0


# --- the rest ---------------------------------------------------------------------------------------------------
def test_a_model_of_tensors_can_be_divided() -> None:
    layer = (Tensor("w", (10, 8), 0), Tensor("b", (10,), 0), Tensor("n", (8,)))
    model = Model("two", (), (layer, layer), ())
    e = estimate(model, gpus=4, tensor=2, pipeline=2)
    assert [rank.elements for rank in e.stages] == [40 + 5 + 8] * 2
    assert Options(gpus=4, tensor=2).data == 2


# --- JSON and table ---------------------------------------------------------------------------------------------
def test_json_holds_the_integers() -> None:
    e = estimate("llama3-8b", gpus=8, zero=3, optimizer="adamw8bit")
    said = json.loads(e.to_json())
    assert said["parameters"] == 8_030_261_248
    assert said["stages"][0]["device"] == dict(e.fullest.device)
    assert said["total"] == sum(said["stages"][0]["device"].values())
    assert said["options"]["optimizer"] == "adamw8bit"
    assert said["fewest"] == {"24 GB": None, "40 GB": None, "80 GB": 5, "141 GB": 1}
    assert [t["sent"] for t in said["stages"][0]["sent"]] == [7 * 2007565312, 2 * 7 * 2007565312]


def test_the_table_says_what_fits() -> None:
    e = estimate("llama3-8b", gpus=8, zero=3, optimizer="adamw8bit", recompute="full")
    lines = e.table(200).splitlines()
    assert lines[0].startswith("llama3-8b, 8,030,261,248 parameters, mixed, adamw8bit, ZeRO-3, recomputation full, ")
    assert lines[0].endswith(", 1 x 8,192 tokens, 8 GPUs (data 8)")
    assert lines[3].split()[:4] == ["parameters", "2,007,565,312", "2.01", "1.87"]
    bars = [line for line in lines[3:9] if "█" in line or "▏" in line]
    assert len(bars) == 6
    assert sum(line.count("█") for line in bars) == 40
    ends = [len(line) for line in bars]
    assert ends == sorted(ends)  # each begins where the one before it ends
    total = next(line for line in lines if line.startswith("total"))
    assert total.split()[1] == f"{e.total:,}"
    assert lines[-4].startswith("24 GB   does not fit: 1.2 times")
    assert lines[-2].startswith("80 GB   fits ")
    assert max(map(len, lines)) <= 140
    assert Fraction(e.total, GB) > 24


def test_what_each_tensor_parallel_rank_holds_counted_by_hand() -> None:
    """Column-parallel biases are divided; the biases behind a row-parallel product, and the norms, are everyone's."""
    c = Transformer("hand", 1, 8, 2, 10, 4)
    half = 10 // 2 * 8 + 4 * 8  # words, positions
    half += 2 * 2 * 8  # two norms
    half += 3 * (4 * 8 + 4) + 8 * 4 + 8  # queries, keys, values; projection
    half += 16 * 8 + 16 + 8 * 16 + 8  # up; down
    half += 2 * 8  # last norm
    assert estimate(c, gpus=2, tensor=2).fullest.elements == half


def test_logits_of_a_padded_vocabulary_are_divided_upwards() -> None:
    c = Transformer("odd", 2, 64, 4, 101, 32)
    rank = estimate(c, gpus=2, tensor=2).fullest
    assert rank.temporary["gradients of the logits"] == 2 * 4 * (32 * 101 // 2)
    assert Term("odd", 7, 2, tensor=True).bytes(2) == 8


def test_two_buckets_are_in_use_and_no_larger_than_the_gradients() -> None:
    small = estimate(SMALL, gpus=2, zero=1).fullest
    assert small.temporary["buckets"] == 2 * 2 * SMALL.parameters
    assert estimate("gpt2", gpus=2, zero=2, bucket=10**6).fullest.temporary["buckets"] == 2 * 10**6

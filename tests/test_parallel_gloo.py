"""gloo's order, as real processes reveal it, and its bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from refusals import refuses

from fplab import quantize, reveal_order
from fplab.errors import LabError
from fplab.parallel import gloo

RANKS = (2, 3, 4)


def rows(ranks: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(ranks).standard_normal((ranks, 300007)).astype(np.float32)


def probe() -> dict[str, Any]:
    """What a rank gets that adds random rows with gloo, in every format and at several sizes."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    own, out = torch.from_numpy(rows(ranks)[rank]), {}
    for name, dtype in (("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)):
        for size in (1, 5, 23, 1000, 300007):
            x = own[:size].clone().to(dtype)
            dist.all_reduce(x)
            out[f"{name} {size} all_reduce"] = x.float()
        x = own[: 8 * ranks].clone().to(dtype)
        part = torch.empty(8, dtype=dtype)
        getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(part, x)
        parts = [torch.empty_like(part) for _ in range(ranks)]
        dist.all_gather(parts, part)
        out[f"{name} {8 * ranks} reduce_scatter"] = torch.cat(parts).float()
        x = own[:1000].clone().to(dtype)
        dist.reduce(x, 0)
        out[f"{name} 1000 reduce"] = x.float()
    try:
        dist.all_reduce(torch.zeros(2).to(torch.float8_e4m3fn))
        refused = "added"
    except (RuntimeError, TypeError, ValueError) as error:
        refused = str(error)
    return {"sums": out, "fp8": refused}


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    jobs = [(ranks,) for ranks in RANKS]
    return dict(zip(RANKS, on_ranks("test_parallel_gloo:probe", tmp_path_factory.mktemp("gloo"), *jobs), strict=True))


@pytest.mark.parametrize("ranks", RANKS)
def test_gloo_adds_around_a_ring_against_the_order_of_the_ranks(probed: dict[int, Any], ranks: int) -> None:
    assert "Invalid scalar type" in probed[ranks]["fp8"]
    own = rows(ranks)
    for key, sums in probed[ranks]["sums"].items():
        fmt, size, _ = key.split()
        given = quantize(own[:, : int(size)], fmt)
        assert np.array_equal(gloo.all_reduce(given, fmt).view(np.uint32), sums.numpy().view(np.uint32)), key
    if ranks > 2:  # and the test would see another order
        assert not np.array_equal(gloo.all_reduce(own), gloo.all_reduce(own[::-1]))


@pytest.mark.parametrize("chunk", range(4))
def test_the_order_is_what_masked_ones_reveal(chunk: int) -> None:
    tree = reveal_order(lambda x: gloo.all_reduce(np.repeat(x[:, None], 8, axis=1))[2 * chunk], 4)
    a, b, c, d = gloo.order(chunk, 4)
    assert tree == type(tree).of((((a, b), c), d))


def test_large_buffers_are_cut_into_more_segments() -> None:
    """Above 1 MiB a segment the chunks are rounded to segments: 3 ranks, 2 MiB each of 6 segments and a bit."""
    n = 6 * 2**18 + 1  # 6 MiB and 4 bytes of FP32: 7 segments at least, so 9, three a chunk
    at = gloo.chunks(n, 3)
    assert np.bincount(at).tolist() == [524289, 524289, 524287]
    assert np.bincount(gloo.chunks(5, 4)).tolist() == [2, 2, 1]


def test_refusals() -> None:
    with pytest.raises(LabError, match=r"unknown format of gloo 'e4m3'. Allowed: fp32, fp16, bf16."):
        gloo.all_reduce(np.zeros((2, 2)), "e4m3")
    refuses(lambda: gloo.chunks(4, 0), r"ranks=0 is not possible; allowed: 1 to")
    refuses(lambda: gloo.order(5, 4), r"chunk=5 is not possible; allowed: 0 to 3.")
    refuses(lambda: gloo.all_reduce(np.zeros(2)), r"buffers have shape \(2,\); allowed: a row for each rank.")

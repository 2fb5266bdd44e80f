"""gloo's order, as real processes reveal it, and its bits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fplab import quantize, reveal_order
from fplab.errors import LabError
from fplab.parallel import gloo
from fplab.parallel.launching import environment

# A process adds random rows with gloo, in every format and at several sizes; rank 0 writes the sums.
PROBE = """
import sys
import numpy as np
import torch
import torch.distributed as dist
rows = np.load(sys.argv[1])
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
out = {}
for name, dtype in (("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)):
    for size in (1, 5, 23, 1000, 300007):
        x = torch.from_numpy(rows[rank, :size].copy()).to(dtype)
        dist.all_reduce(x)
        out[f"{name} {size} all_reduce"] = x.float().numpy()
    x = torch.from_numpy(rows[rank, : 8 * ranks].copy()).to(dtype)
    part = torch.empty(8, dtype=dtype)
    getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(part, x)
    parts = [torch.empty_like(part) for _ in range(ranks)]
    dist.all_gather(parts, part)
    out[f"{name} {8 * ranks} reduce_scatter"] = torch.cat(parts).float().numpy()
    x = torch.from_numpy(rows[rank, :1000].copy()).to(dtype)
    dist.reduce(x, 0)
    out[f"{name} 1000 reduce"] = x.float().numpy()
try:
    dist.all_reduce(torch.zeros(2).to(torch.float8_e4m3fn))
    out["fp8"] = np.array("added")
except (RuntimeError, TypeError, ValueError) as error:
    out["fp8"] = np.array(str(error)[:200])
if rank == 0:
    np.savez(sys.argv[2], **out)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_gloo_adds_around_a_ring_against_the_order_of_the_ranks(tmp_path: Path, ranks: int) -> None:
    rows = np.random.default_rng(ranks).standard_normal((ranks, 300007)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    (tmp_path / "probe.py").write_text(PROBE)
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1",
             f"--nproc-per-node={ranks}", str(tmp_path / "probe.py")]  # fmt: skip
    subprocess.run(
        [*start, str(tmp_path / "rows.npy"), str(tmp_path / "sums.npz")], env=environment(), check=True,
        capture_output=True,
    )  # fmt: skip
    with np.load(tmp_path / "sums.npz") as found:
        assert "Invalid scalar type" in str(found["fp8"])
        for key in found.files:
            if key == "fp8":
                continue
            fmt, size, _ = key.split()
            given = quantize(rows[:, : int(size)], fmt)
            assert np.array_equal(gloo.all_reduce(given, fmt).view(np.uint32), found[key].view(np.uint32)), key
    if ranks > 2:  # and the test would see another order
        assert not np.array_equal(gloo.all_reduce(rows), gloo.all_reduce(rows[::-1]))


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
    with pytest.raises(LabError, match=r"ranks=0 is not possible; allowed: 1 to"):
        gloo.chunks(4, 0)
    with pytest.raises(LabError, match=r"chunk=5 is not possible; allowed: 0 to 3."):
        gloo.order(5, 4)
    with pytest.raises(LabError, match=r"buffers have shape \(2,\); allowed: a row for each rank."):
        gloo.all_reduce(np.zeros(2))

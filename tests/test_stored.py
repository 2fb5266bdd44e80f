"""Stored formats: byte for byte what the library writes that each is held to, and back."""

import ctypes
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packages import C_NAMES, llama_cpp, package, written

from fplab import vectors
from fplab.checkpoint import tensors
from fplab.kernels import ggml
from fplab.stored import STORED, oracle

f32 = np.float32
GGML = [*C_NAMES]


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The library gguf, which llama.cpp's converters write files with."""
    folder = tmp_path_factory.mktemp("gguf")
    with zipfile.ZipFile(package("gguf", folder)) as wheel:
        wheel.extractall(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield pytest.importorskip("gguf", exc_type=ImportError)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """llama.cpp's reference functions, compiled as a release is, without fused operations."""
    return llama_cpp(tmp_path_factory.mktemp("llama"), "-O2")


def samples() -> dict[str, np.ndarray]:
    """Weights of many kinds, whole blocks of 256."""
    rng = np.random.default_rng(7)
    normal = rng.standard_normal((512, 256)).astype(f32)
    outliers = normal.copy()
    outliers[rng.random(normal.shape) < 0.01] *= 50
    sparse = np.where(rng.random(normal.shape) < 0.9, f32(0), normal)
    powers = np.nextafter(np.exp2(rng.integers(-20, 20, (512, 1))).astype(f32), f32(0)) * np.ones((1, 256), f32)
    steps = rng.integers(-8, 8, normal.shape).astype(f32)
    sizes = normal * np.exp2(rng.integers(-24, 12, (512, 8))).repeat(32, axis=1).astype(f32)
    uneven = normal * np.exp2(rng.integers(-12, 3, (512, 16))).repeat(16, axis=1).astype(f32)
    return {
        "normal": normal * f32(0.02), "heavy": rng.standard_t(2, normal.shape).astype(f32), "outliers": outliers,
        "sparse": sparse, "integers": steps, "sizes": sizes, "below powers": powers, "uneven": uneven,
        "positive": np.abs(normal), "negative zero": np.full((1, 256), f32(-0.0)),
        "negative": -np.abs(normal), "zero": np.zeros((4, 256), f32), "one": np.eye(4, 256, dtype=f32),
        "tiny": normal[:64] * f32(1e-12), "subnormal": normal[:64] * f32(1e-38),
        "least": normal[:64] * f32(1e-42), "same": np.full((4, 256), f32(0.7)),
    }  # fmt: skip


def both(search: str) -> Any:
    """A kernel and its oracle, whose every scale, minimum, code and value are the same bits."""
    fast, slow = getattr(ggml, search), getattr(oracle, search)

    def run(*given: Any) -> None:
        others = [x.copy() if isinstance(x, np.ndarray) else x for x in given]
        slow(*others)
        fast(*given)
        for ours, theirs in zip(given, others, strict=True):
            if isinstance(ours, np.ndarray):
                assert ours.tobytes() == theirs.tobytes(), (search, ours, theirs)

    return run


@pytest.mark.parametrize("name", GGML)
def test_codes_scales_and_values_are_the_oracles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel in ("steps", "linear", "divided", "with_minimum", "signed", "refined", "table_scales", "table_codes"):
        monkeypatch.setattr(ggml, kernel, both(kernel))
    for x in samples().values():
        STORED[name].decode(STORED[name].encode(x[:1]))


@pytest.mark.parametrize("name", GGML)
def test_bytes_are_llama_cpps(llama: Any, name: str) -> None:
    one = STORED[name]
    given = vectors.packings(name, rows=96)  # whole blocks of 256
    for kind, x in {**samples(), "vectors": given.columns["x"].view(f32)}.items():
        ours, theirs = one.encode(x).reshape(-1, one.size), written(llama, name, x).reshape(-1, one.size)
        other = np.flatnonzero((ours != theirs).any(axis=1))
        assert not other.size, (
            f"{kind}: {other.size} of {len(ours)} blocks, {ours[other[0]]} and not {theirs[other[0]]}"
        )
        values = np.zeros(x.size, f32)
        pointers = (theirs.ctypes.data_as(ctypes.c_void_p), values.ctypes.data_as(ctypes.c_void_p))
        getattr(llama, f"dequantize_row_{C_NAMES[name]}")(*pointers, ctypes.c_int64(x.size))
        assert np.array_equal(one.decode(theirs.reshape(-1)).view(np.uint32), values.view(np.uint32)), kind


@pytest.mark.parametrize("name", STORED)
def test_values_come_back_and_what_cannot_be_stored_is_refused(name: str) -> None:
    one, x = STORED[name], samples()["normal"]
    again = one.decode(one.encode(x)).reshape(x.shape)
    lost = np.sqrt(((again - x) ** 2).sum() / (x**2).sum())
    for kind, given in samples().items() if one.rounder else ():
        assert np.array_equal(one.round(given), one.decode(one.encode(given))), kind
    assert lost < 2 ** ((1.5 if name == "fp4_bnb" else 1.4) - one.bits)  # FP4's values are no normal distribution's
    with pytest.raises(ValueError, match=f"x has 33 elements; {name} has blocks of {one.block}"):
        one.encode(np.zeros(33, f32))
    with pytest.raises(ValueError, match=f"x has NaN or infinity, and {name} has neither"):
        one.encode(np.full(one.block, np.nan, f32))
    with pytest.raises(ValueError, match=f"{name} has blocks of {one.size} bytes, uint8"):
        one.decode(np.zeros(one.size + 1, np.uint8))


def test_files_of_gguf_are_read_as_their_library_wrote_them(gguf: Any, tmp_path: Path) -> None:
    writer, x = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "llama"), samples()["normal"]
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc", ""])
    writer.add_uint32("llama.block_count", 1)
    kinds = {name: getattr(gguf.GGMLQuantizationType, C_NAMES[name].upper()) for name in GGML}
    encoded = {name: STORED[name].encode(x).reshape(len(x), -1) for name in GGML}
    for name, kind in kinds.items():
        writer.add_tensor(name, encoded[name], raw_dtype=kind)
    writer.add_tensor("half", x.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = {one.name: one for one in tensors(tmp_path / "m.gguf")}
    assert found.keys() == {*GGML, "half"}
    assert np.array_equal(found["half"].values(), x.astype(np.float16).astype(f32).ravel())
    for name, kind in kinds.items():
        assert (found[name].stored, found[name].shape) == (name, x.shape)
        theirs = gguf.dequantize(encoded[name], kind)
        assert np.array_equal(found[name].values(), theirs.ravel()), name
        assert np.array_equal(found[name].values(512, 1024), theirs.ravel()[512:1024]), name


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "mxfp4_ggml"])
def test_bytes_are_those_of_the_library_gguf(gguf: Any, name: str) -> None:
    """Which has no other kinds; where it divides, its own rounding differs from C's for weights of odd sizes."""
    kind, x = getattr(gguf.GGMLQuantizationType, C_NAMES[name].upper()), samples()["normal"]
    assert np.array_equal(STORED[name].encode(x), gguf.quantize(x, kind).ravel())


BITSANDBYTES = """
import sys; sys.path.insert(0, sys.argv[1])
import numpy as np, torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit
given, made = np.load(sys.argv[2]), {}
for kind, x in given.items():
    packed, state = quantize_4bit(torch.from_numpy(x), blocksize=64, quant_type=sys.argv[4])
    made |= {f"{kind}/codes": packed.numpy(), f"{kind}/absmax": state.absmax.numpy()}
    made[f"{kind}/values"] = dequantize_4bit(packed, state).numpy()
np.savez(sys.argv[3], **made)
"""


@pytest.mark.parametrize("name", ["nf4", "fp4_bnb"])
def test_bytes_are_those_of_bitsandbytes(name: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(package("bitsandbytes", tmp_path)) as wheel:
        wheel.extractall(tmp_path / "library")
    given = {kind: x for kind, x in samples().items() if kind not in ("subnormal", "least")}
    given["vectors"] = vectors.packings(name, rows=64).columns["x"].view(f32)
    np.savez(tmp_path / "x.npz", **given)
    files = [str(tmp_path / file) for file in ("library", "x.npz", "y.npz")]
    subprocess.run([sys.executable, "-c", BITSANDBYTES, *files, name[:3]], check=True, capture_output=True)
    made, one = np.load(tmp_path / "y.npz"), STORED[name]
    for kind, x in given.items():
        ours = one.encode(x).reshape(-1, one.size)
        assert np.array_equal(ours[:, :32].ravel(), made[f"{kind}/codes"].ravel()), kind
        assert np.array_equal(ours[:, 32:].ravel().view("<f4"), made[f"{kind}/absmax"]), kind
        assert np.array_equal(one.decode(ours.reshape(-1)), made[f"{kind}/values"].ravel()), kind

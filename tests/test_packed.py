"""Layouts of several tensors a weight: byte for byte what the library writes that each is held to, and back."""

import ast
import contextlib
import copy
import json
import math
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import refusals
from family_steps import library
from packages import package

from fplab import checkpoint
from fplab.errors import LabError
from fplab.stored import PACKED, awq, gptq
from fplab.stored.packed import of_words, words

torch = pytest.importorskip("torch")
f32 = np.float32


def weights() -> np.ndarray:
    """A matrix of many kinds of rows, some of zeros and some of one sign."""
    rng = np.random.default_rng(1)
    w = rng.standard_normal((64, 256)).astype(f32)
    w[8:16] *= np.exp2(rng.integers(-18, 8, (8, 4))).repeat(64, axis=1).astype(f32)
    w[3], w[5, :64], w[6], w[7], w[17, ::7] = 0, 0, np.abs(w[6]), -np.abs(w[7]), 40
    return w


def same(ours: Any, theirs: Any, what: str) -> None:
    theirs = theirs.float().numpy() if theirs.dtype.is_floating_point else theirs.numpy()
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), what
    assert np.ascontiguousarray(ours).tobytes() == np.ascontiguousarray(theirs).tobytes(), what


def functions(file: Path, *names: str, **known: Any) -> SimpleNamespace:
    """Functions of a source file, also of its classes, which needs modules that are not here."""
    found = [node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if getattr(node, "name", "") in names]
    for node in found:
        node.decorator_list = []
    exec(compile(ast.Module(found, []), str(file), "exec"), known)
    return SimpleNamespace(**known)


def sources(name: str, folder: Path, *wanted: str) -> list[Path]:
    with tarfile.open(package(name, folder, source=True)) as archive:
        archive.extractall(folder, [one for one in archive if one.name.endswith(wanted)], filter="data")
    return [next(folder.rglob(f"*{one}")) for one in wanted]


@pytest.mark.parametrize("bits", range(1, 9))
def test_words_are_dense_and_come_back(bits: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 2**bits, (3, 77)).astype(np.uint8)
    packed = words(codes, bits)
    assert packed.shape == (3, math.ceil(77 * bits / 32))
    whole = int.from_bytes(packed[1].tobytes(), "little")
    assert [whole >> bits * i & (2**bits - 1) for i in range(77)] == codes[1].tolist()
    np.testing.assert_array_equal(of_words(packed, bits, 77), codes)


@pytest.fixture(scope="module")
def compressed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """compressed-tensors, without the package that it logs by."""
    folder = tmp_path_factory.mktemp("compressed")
    with zipfile.ZipFile(package("compressed-tensors", folder)) as wheel:
        wheel.extractall(folder)
    library("transformers")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        if "loguru" not in sys.modules:
            patch.setitem(sys.modules, "loguru", MagicMock())
        yield pytest.importorskip("compressed_tensors", exc_type=ImportError)


def scheme(compressed: Any, **how: Any) -> Any:
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**how))


def their_scales(w: Any, group: int, how: Any) -> Any:
    from compressed_tensors.quantization.utils.helpers import calculate_qparams

    parts = w.reshape(len(w), -1, group)
    return calculate_qparams(parts.amin(-1), parts.amax(-1), how.weights)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", range(2, 9))
def test_bytes_of_pack_quantized_are_those_of_compressed_tensors(compressed: Any, bits: int, symmetric: bool) -> None:
    from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor as Compressor

    how = scheme(compressed, num_bits=bits, type="int", strategy="group", group_size=64, symmetric=symmetric)
    w = torch.from_numpy(weights())
    scale, zero = their_scales(w, 64, how)
    theirs = Compressor.compress({"weight": w.clone(), "weight_scale": scale, "weight_zero_point": zero}, how)
    layout = PACKED["pack_quantized"]
    ours = layout.encode(weights(), bits=bits, group=64, zero_point=not symmetric)
    assert ours.keys() == theirs.keys()
    for name, x in ours.items():
        same(x, theirs[name], name)
    for dtype, kind in ((torch.float32, "fp32"), (torch.float16, "fp16"), (torch.bfloat16, "bf16")):
        scales = scale.to(dtype)
        values = Compressor.decompress(theirs | {"weight_scale": scales}, how)["weight"]
        same(layout.decode(ours | {"weight_scale": scales.float().numpy()}, kind), values, kind)


@pytest.mark.parametrize(("kind", "name"), [("int", "int8_row"), ("float", "e4m3_row")])
def test_bytes_of_rows_are_those_of_compressed_tensors(compressed: Any, kind: str, name: str) -> None:
    from compressed_tensors.compressors.naive_quantized.base import NaiveQuantizationCompressor as Compressor

    how = scheme(compressed, num_bits=8, type=kind, strategy="channel", symmetric=True)
    w = torch.from_numpy(weights())
    scale, zero = their_scales(w, 256, how)
    theirs = Compressor.compress({"weight": w.clone(), "weight_scale": scale, "weight_zero_point": zero}, how)
    ours = PACKED[name].encode(weights())
    same(ours["weight_scale"], scale, "scale")
    same(ours["weight"], theirs["weight"], "codes")
    values = Compressor.decompress(theirs, how)["weight"]
    same(PACKED[name].decode(ours, "fp32"), values, "values")


def test_bytes_of_nvfp4_are_read_as_compressed_tensors_reads_them(compressed: Any) -> None:
    from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor as Compressor

    how = scheme(compressed, num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True)
    rng = np.random.default_rng(3)
    packed = torch.from_numpy(rng.integers(0, 256, (32, 64), np.uint8))
    scale = torch.from_numpy(rng.random((32, 8)).astype(f32) * 400).to(torch.float8_e4m3fn)
    parts = {"weight_packed": packed, "weight_scale": scale, "weight_global_scale": torch.tensor([1234.5])}
    values = Compressor.decompress(parts, how)["weight"]
    ours = {name: x.float().numpy() if name != "weight_packed" else x.numpy() for name, x in parts.items()}
    same(PACKED["nvfp4_pack"].decode(ours, "bf16"), values, "values")


def test_bytes_of_awq_are_those_of_autoawq(tmp_path: Path) -> None:
    names = ("awq/utils/packing_utils.py", "awq/quantize/quantizer.py", "awq/modules/linear/gemm.py")
    packing, quantizer, gemm = sources("autoawq", tmp_path, *names)
    pack = functions(packing, "unpack_awq", "reverse_awq_order", "dequantize_gemm", "pack_exllama", torch=torch,
                     AWQ_REVERSE_ORDER=[0, 4, 1, 5, 2, 6, 3, 7])  # fmt: skip
    theirs = functions(quantizer, "pseudo_quantize_tensor", torch=torch, nn=torch.nn, Optional=Any)
    made = functions(gemm, "from_linear", torch=torch, get_best_device=lambda: "cpu")
    w, group = weights(), 64
    how = SimpleNamespace(group_size=group, zero_point=True, w_bit=4)
    rounded, scales, zeros = theirs.pseudo_quantize_tensor(how, torch.from_numpy(w))
    linear = torch.nn.Linear(*w.shape[::-1], bias=False)
    linear.weight.data = rounded
    empty = lambda *sizes: SimpleNamespace(w_bit=sizes[0], group_size=group, in_features=sizes[2])  # noqa: E731
    module = made.from_linear(empty, linear, 4, group, False, scales.t().contiguous(), zeros.t().contiguous())
    ours = PACKED["awq"].encode(w, group=group, zero_point=True)
    for name, x in ours.items():
        same(x, getattr(module, name), name)
    values = pack.dequantize_gemm(module.qweight, module.qzeros, module.scales, 4, group).T
    same(PACKED["awq"].decode(ours), values.contiguous(), "values")
    # As GPTQ's first version, which exllama reads: the same numbers in its order, zero points one less.
    codes, zeros = pack.reverse_awq_order(*pack.unpack_awq(module.qweight, module.qzeros, 4), 4)
    qweight, qzeros = pack.pack_exllama(codes & 15, (zeros & 15) - 1 & 15, 4)
    parts = {"qweight": qweight.numpy(), "qzeros": qzeros.numpy(), "scales": ours["scales"]}
    np.testing.assert_array_equal(PACKED["gptq"].decode(parts), PACKED["awq"].decode(ours))


@pytest.mark.parametrize("zero_point", [True, False])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_bytes_of_gptq_are_those_of_gptqmodel(bits: int, zero_point: bool, tmp_path: Path) -> None:
    quantizer, linear = sources("gptqmodel", tmp_path, "/quantization/quantizer.py", "/qlinear/__init__.py")
    find = functions(quantizer, "find_params", "quantize", "_replace_zero_scale", torch=torch)
    limits = SimpleNamespace(threadpool_limits=lambda _: contextlib.nullcontext())
    pack = functions(linear, "pack_original", t=torch, np=np, math=math, nn=torch.nn, THREADPOOLCTL=limits, _ConvNd=(),
                     transformers=SimpleNamespace(pytorch_utils=SimpleNamespace(Conv1D=())))  # fmt: skip
    w, group, most = weights(), 64, 2**bits - 1
    how = SimpleNamespace(maxq=torch.tensor(most), perchannel=True, _maxq_value=most, mse=0.0,
                          qcfg=SimpleNamespace(sym=not zero_point, mse=0.0), shape=1,
                          requires_groupwise_processing=lambda: False)  # fmt: skip
    parts = torch.from_numpy(w).reshape(-1, group)
    find.find_params(how, parts, weight=True)
    scale, zero = (x.reshape(len(w), -1) for x in (how.scale, how.zero))
    codes = torch.clamp(torch.round(parts / how.scale.reshape(-1, 1)) + how.zero.reshape(-1, 1), 0, most)
    rounded = (how.scale.reshape(-1, 1) * (codes - how.zero.reshape(-1, 1))).reshape(w.shape)
    module = SimpleNamespace(bits=bits, pack_dtype_bits=32, pack_factor=32 // bits, maxq=most, planar=False, bias=None,
                             pack_np_math_dtype=np.uint32, pack_np_dtype=np.int32, g_idx=None)  # fmt: skip
    module.register_buffer = lambda name, x: setattr(module, name, x)
    index = torch.arange(w.shape[1], dtype=torch.int32) // group
    pack.pack_original(module, SimpleNamespace(weight=SimpleNamespace(data=rounded)), scale, zero, index)
    ours = PACKED["gptq_v2"].encode(w, bits=bits, group=group, zero_point=zero_point)
    for name, x in ours.items():
        same(x, getattr(module, name), name)
    kept = torch.from_numpy(ours["scales"]).half()
    whole = (codes.reshape(w.shape) - zero.repeat_interleave(group, 1)).half()
    same(PACKED["gptq_v2"].decode(ours), kept.T.repeat_interleave(group, 1) * whole, "values")
    first = PACKED["gptq"].encode(w, bits=bits, group=group, zero_point=zero_point)
    np.testing.assert_array_equal(PACKED["gptq"].decode(first), PACKED["gptq_v2"].decode(ours))
    assert (first["qzeros"] != ours["qzeros"]).any()


def test_gptq_in_the_order_of_activations() -> None:
    w = weights()
    ours = PACKED["gptq"].encode(w, group=64)
    order = np.random.default_rng(4).permutation(256)
    mixed = ours | {"g_idx": ours["g_idx"][order]}
    codes = of_words(ours["qweight"].T, 4, 256)[:, order]
    mixed["qweight"] = np.ascontiguousarray(words(codes, 4).T)
    np.testing.assert_array_equal(PACKED["gptq"].decode(mixed), PACKED["gptq"].decode(ours)[:, order])


def calibration() -> np.ndarray:
    """Inputs of channels that go together, some loud."""
    rng = np.random.default_rng(2)
    loud = np.exp2(rng.integers(0, 5, 64) * (rng.random(64) < 0.2)).repeat(4)
    return (rng.standard_normal((1024, 64)) @ rng.standard_normal((64, 256)) + rng.standard_normal((1024, 256))) * loud


def damped(x: np.ndarray) -> np.ndarray:
    products = x.T @ x
    return products + 0.01 * np.diag(products).mean() * np.eye(len(products))


@pytest.mark.parametrize("zero_point", [False, True])
def test_gptq_is_its_definition(zero_point: bool) -> None:
    """Optimal Brain Quantization in a fixed order: the weights left are each time the best for those that are fixed."""
    w, x = weights()[:9, :64], calibration()[:, :64]
    ours = gptq(w, x, bits=3, group=16, zero_point=zero_point)
    plain = PACKED["pack_quantized"].encode(w, bits=3, group=16, zero_point=zero_point)
    np.testing.assert_array_equal(ours["weight_scale"], plain["weight_scale"])
    scale, zero = ours["weight_scale"].astype(np.float64).repeat(16, 1), np.zeros((9, 64))
    if zero_point:
        zero = (of_words(ours["weight_zero_point"].T, 3, 9).T.astype(float) - 4).repeat(16, 1)
    products, left, codes = damped(x), w.astype(np.float64), np.empty((9, 64))
    for j in range(64):
        codes[:, j] = np.rint(np.clip(left[:, j] / scale[:, j] + zero[:, j], -4, 3))
        change = (codes[:, j] - zero[:, j]) * scale[:, j] - left[:, j]
        # min tr(d H d^T) over the columns after j, where column j changes so: d = -H_rest^-1 H_rest,j change
        rest = products[j + 1 :, j + 1 :]
        left[:, j + 1 :] -= np.outer(change, np.linalg.solve(rest, products[j + 1 :, j]) if len(rest) else [])
    np.testing.assert_array_equal(of_words(ours["weight_packed"], 3, 64), codes + 4)
    loss = [np.square(x @ (PACKED["pack_quantized"].decode(one, "fp32") - w).T).sum() for one in (ours, plain)]
    assert loss[0] < 0.9 * loss[1]


def test_bytes_of_gptq_are_those_of_llm_compressor_but_at_ties(compressed: Any, tmp_path: Path) -> None:
    from compressed_tensors.quantization import ActivationOrdering, QuantizationStrategy, fake_quantize

    with zipfile.ZipFile(package("llmcompressor", tmp_path)) as wheel:
        wheel.extractall(tmp_path, [name for name in wheel.namelist() if "/modifiers/gptq/" in name])
    [helpers], [main] = ([*tmp_path.rglob(name)] for name in ("helpers.py", "gptq_quantize.py"))
    given = {"torch": torch, "QuantizationStrategy": QuantizationStrategy, "ActivationOrdering": ActivationOrdering,
             "GPTQ_PRECISION": torch.float32, "MIN_BATCHED_CHOLESKY_SIZE": 8, "QuantizationArgs": Any,
             "fake_quantize": fake_quantize, "copy": copy.copy}  # fmt: skip
    parts = functions(helpers, "factorize_hessian", "column_scale_window", "apply_activation_ordering", **given)
    theirs = functions(main, "quantize_weight", "gptq_block_update", **given | vars(parts))
    how = scheme(compressed, num_bits=4, type="int", strategy="group", group_size=64, symmetric=True)
    w, x = weights(), calibration()
    scale, zero = their_scales(torch.from_numpy(w), 64, how)
    products = torch.from_numpy((x.T @ x / len(x)).astype(f32))
    made, _, fell_back = theirs.quantize_weight(
        torch.from_numpy(w.copy())[None], products[None], scale[None], zero[None], None, how.weights
    )
    assert not fell_back.any()
    ours = PACKED["pack_quantized"].decode(gptq(w, x, group=64), "fp32")
    assert (ours == made[0].numpy()).mean() > 0.999
    lost = [np.square(x @ (one - w).T).sum() for one in (ours, made[0].numpy())]
    assert lost[0] == pytest.approx(lost[1], rel=0.01)


def test_bytes_of_awq_are_scaled_as_autoawq_scales_them(tmp_path: Path) -> None:
    [quantizer] = sources("autoawq", tmp_path, "awq/quantize/quantizer.py")
    names = ("_compute_best_scale", "_compute_loss", "pseudo_quantize_tensor")
    theirs = functions(quantizer, *names, torch=torch, nn=torch.nn, Optional=Any, List=list, Dict=dict, logging=None)
    w, x, group = weights(), calibration().astype(f32), 64
    layer = torch.nn.Linear(256, 64, bias=False)
    layer.weight.data, given = torch.from_numpy(w.copy()), torch.from_numpy(x)
    how = SimpleNamespace(group_size=group, zero_point=True, w_bit=4, duo_scaling=True, max_chunk_memory=1 << 30)
    how.pseudo_quantize_tensor = lambda weight: theirs.pseudo_quantize_tensor(how, weight)
    how._compute_loss = lambda *of: theirs._compute_loss(how, *of)
    how._module_forward = lambda inputs, module, _: module(inputs)
    ratios = np.abs(w).reshape(64, -1, group)
    own = torch.from_numpy((ratios / (ratios.max(-1, keepdims=True) + f32(1e-6))).reshape(w.shape)).mean(0)
    with torch.no_grad():
        scales = theirs._compute_best_scale(how, given, own, given.abs().mean(0), layer, [layer], layer(given))
    parts, ours = awq(w, x, group=group)
    np.testing.assert_allclose(ours, scales.numpy(), rtol=1e-5)
    changes = [np.square(x @ (PACKED["awq"].decode(p, "fp32") / s - w).T).mean() for p, s in (
        (parts, ours), (PACKED["awq"].encode(w, group=group, zero_point=True), f32(1)))]  # fmt: skip
    assert changes[0] < 0.7 * changes[1]


BITSANDBYTES = """
import sys; sys.path.insert(0, sys.argv[1])
import numpy as np, torch
from bitsandbytes.functional import dequantize_4bit, int8_vectorwise_dequant, int8_vectorwise_quant, quantize_4bit
w, made = torch.from_numpy(np.load(sys.argv[2])), {}
for kind in ("nf4", "fp4"):
    packed, state = quantize_4bit(w, blocksize=64, quant_type=kind, compress_statistics=True)
    made |= {f"{kind}/weight.{name}": x.numpy() for name, x in state.as_dict(packed=True).items()}
    made |= {f"{kind}/weight": packed.numpy(), f"{kind}/values": dequantize_4bit(packed, state).numpy()}
codes, scales, _ = int8_vectorwise_quant(w.clone())
made |= {"int8/weight": codes.numpy(), "int8/SCB": scales.numpy()}
made["int8/values"] = int8_vectorwise_dequant(codes, scales).numpy()
np.savez(sys.argv[3], **made)
"""


def test_bytes_of_nested_scales_and_llm_int8_are_those_of_bitsandbytes(tmp_path: Path) -> None:
    with zipfile.ZipFile(package("bitsandbytes", tmp_path)) as wheel:
        wheel.extractall(tmp_path / "library")
    w = weights()
    w[3] = 1e-3  # LLM.int8() divides by a row's maximum, and bitsandbytes makes NaN of a row of zeros
    np.save(tmp_path / "w.npy", w)
    files = [str(tmp_path / file) for file in ("library", "w.npy", "made.npz")]
    subprocess.run([sys.executable, "-c", BITSANDBYTES, *files], check=True, capture_output=True)
    with np.load(tmp_path / "made.npz") as archive:
        made = dict(archive)
    for kind, name in (("nf4", "bnb_nf4"), ("fp4", "bnb_fp4")):
        theirs = {key.split("/")[1]: x for key, x in made.items() if key.startswith(f"{kind}/")}
        values, layout = theirs.pop("values"), PACKED[name]
        np.testing.assert_array_equal(layout.decode(theirs), values)
        state = next(key for key in theirs if "quant_state" in key)
        offset = json.loads(theirs[state].tobytes())["nested_offset"]
        ours = layout.encoder(w, 4, 64, False, offset=offset)
        assert ours.keys() == theirs.keys()
        for key, x in ours.items():
            assert x.tobytes() == theirs[key].tobytes(), (kind, key)
        exact = json.loads(layout.encode(w, group=64)[state].tobytes())["nested_offset"]
        assert abs(exact - offset) <= 4 * np.spacing(f32(offset))
    ours = PACKED["llm_int8"].encode(w)
    np.testing.assert_array_equal(ours["weight"], made["int8/weight"])
    np.testing.assert_array_equal(ours["SCB"], made["int8/SCB"])
    np.testing.assert_array_equal(PACKED["llm_int8"].decode(ours, "fp32"), made["int8/values"])


@pytest.fixture(scope="module")
def torchao() -> Any:
    library("transformers")
    return pytest.importorskip("torchao.quantization", exc_type=ImportError)


def flattened(layer: Any) -> dict[str, Any]:
    """The tensors of a layer's weight as torchao writes them to safetensors."""
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    parts, _ = flatten_tensor_state_dict({"m.weight": layer.weight})
    return {name.removeprefix("m."): x for name, x in parts.items()}


def as_numpy(parts: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: x.float().numpy() if x.dtype.is_floating_point else x.numpy() for name, x in parts.items()}


@pytest.mark.parametrize(
    ("config", "how"),
    [("Int8WeightOnlyConfig", {"version": 2}), ("Float8WeightOnlyConfig", {}), *(
        ("IntxWeightOnlyConfig", {"bits": bits, "group": group, "zero": zero})
        for bits, group, zero in [(4, 32, False), (4, 96, False), (4, 32, True), (8, 192, False), (2, 64, True)])],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bytes_of_torchao_are_read_as_torchao_reads_them(torchao: Any, config: str, how: Any, dtype: str) -> None:
    """And to nearest written as torchao writes them, of FP32 weights."""
    from torchao.quantization.granularity import PerGroup
    from torchao.quantization.quant_primitives import MappingType

    layer, given = torch.nn.Linear(192, 64, bias=False), how
    w = np.ascontiguousarray(weights()[:, :192])
    w[3] = 1e-3 if config[0] == "F" else 0  # of which torchao's FP8 makes NaN
    layer.weight.data = torch.from_numpy(w).to(getattr(torch, dtype))
    if "bits" in how:
        kind = MappingType.ASYMMETRIC if how["zero"] else MappingType.SYMMETRIC
        weight_dtype = getattr(torch, f"int{how['bits']}")
        given = {"weight_dtype": weight_dtype, "granularity": PerGroup(how["group"]), "mapping_type": kind}
    torchao.quantize_(layer, getattr(torchao, config)(**given))
    parts = flattened(layer)
    fmt = {"float32": "fp32", "bfloat16": "bf16"}[dtype]
    same(PACKED["torchao"].decode(as_numpy(parts), fmt), layer.weight.dequantize(), "values")
    if "bits" in how and dtype == "float32":
        ours = PACKED["torchao"].encode(w, bits=how["bits"], group=how["group"], zero_point=how["zero"])
        assert ours.keys() == parts.keys()
        for name, x in ours.items():
            same(x, parts[name], name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_of_int4_are_read_as_torchao_reads_them(torchao: Any, dtype: Any, tmp_path: Path) -> None:
    """Int4Tensor is made by a GPU's package; its parts are those of torchao's own steps, two codes a byte."""
    from safetensors.torch import save_file

    names = "_int4_row_dequantize_zp", "_int4_row_quantize_zp_precomputed_qparams"
    steps = functions(Path(torchao.__file__).parent.parent / "prototype/gptq/api.py", *names, torch=torch)
    w, group = torch.from_numpy(weights()).to(dtype), 64
    low, high = w.reshape(64, -1, group).float().aminmax(dim=-1)
    scale = ((high - low).clamp(min=1e-6) / 15).T.contiguous()
    zero = (low.T + scale * 8).contiguous()
    codes = steps._int4_row_quantize_zp_precomputed_qparams(w, scale, zero, group)
    packed = codes[:, ::2] & 15 | codes[:, 1::2] << 4
    layer = SimpleNamespace(weight=torchao.Int4Tensor(packed, scale.to(dtype), zero.to(dtype), [1, group], w.shape))
    parts, values = flattened(layer), steps._int4_row_dequantize_zp(codes, scale.to(dtype), zero.to(dtype), group)
    fmt = "fp32" if dtype == torch.float32 else "bf16"
    same(PACKED["torchao_int4"].decode(as_numpy(parts), fmt), values, "values")
    save_file({f"q.{name}": x for name, x in parts.items()}, tmp_path / "w.safetensors")
    [one] = checkpoint.tensors(tmp_path / "w.safetensors")
    assert (one.name, one.stored, one.shape) == ("q.weight", "torchao_int4", (64, 256))
    np.testing.assert_array_equal(one.values(), values.numpy().ravel())


def test_what_only_a_gpu_reads_is_listed_alone(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    tiles = {"_weight_qdata": np.zeros((2, 8, 32, 4), np.int32), "_weight_scale_and_zero": np.zeros((16, 16, 2), f32)}
    words = {"_weight_qdata": np.zeros((16, 32), np.int32), "_weight_scale": np.zeros((4, 16), f32),
             "_weight_zero_point": np.zeros((4, 16), np.int8)}  # fmt: skip
    both = {"a": tiles, "b": words}
    save_file({f"{m}.{name}": x for m, of in both.items() for name, x in of.items()}, tmp_path / "w.safetensors")
    found = checkpoint.survey(tmp_path / "w.safetensors", ["bf16"], progress=str)
    about = {one.tensor: (one.stored, one.shape) for one in found.tensors}
    assert about == {"a.weight": ("torchao_int4_tiles", (16, 1024)), "b.weight": ("torchao_int4_words", (16, 256))}
    assert "2 tensors of integers or of formats that are not read here are listed alone" in str(found.text)


@pytest.mark.parametrize(
    ("shape", "blocks", "edges"),
    [((64, 192), (64, 2), (1, 96)), ((200, 192), (2, 2), (128, 128)), ((256, 512), (2, 4), (128, 128)),
     ((96, 64), (1, 1), (96, 64)), ((100, 192), (1, 2), (100, 128)), ((64, 96), (2, 3), (32, 32))],
)  # fmt: skip
def test_groups_divide_a_row_and_the_last_block_of_128_may_be_cut(shape: Any, blocks: Any, edges: Any) -> None:
    codes, scales = np.ones(shape, np.int8), np.arange(1, 1 + np.prod(blocks), dtype=f32).reshape(blocks)
    found = PACKED["int8_row"].decode({"weight": codes, "weight_scale": scales}, "fp32")
    wanted = [[scales[i // edges[0], j // edges[1]] for j in range(shape[1])] for i in range(shape[0])]
    np.testing.assert_array_equal(found, wanted)


test_what_is_refused = refusals.matching(
    (
        lambda: PACKED["gptq"].decode({"qweight": np.zeros((1, 1), np.int32)}),
        r"gptq needs qweight, qzeros, scales; mis",
    ),
    (lambda: PACKED["gptq"].encode(np.zeros((8, 100), f32)), r"w has rows of 100, and group=128 does not divide them"),
    (
        lambda: PACKED["awq"].encode(np.zeros((8, 128), f32)),
        r"awq stores 4 bits with zero points, outputs a multiple of",
    ),
    (lambda: PACKED["nvfp4_pack"].encode(np.zeros((8, 128), f32)), r"nvfp4_pack is written by scaled\.quantize"),
    (
        lambda: PACKED["torchao_int4"].encode(np.zeros((8, 128), f32)),
        r"torchao_int4 is written by torchao on a GPU alone",
    ),
    (
        lambda: PACKED["torchao_int4_tiles"].decode(dict.fromkeys(("_weight_qdata", "_weight_scale_and_zero"), 0)),
        r"torchao_int4_tiles has codes in the order of a GPU's kernel, and is read by torchao, Int4T",
    ),
    (
        lambda: PACKED["llm_int8"].encode([np.nan]),
        r"w has shape \(1,\); allowed: a matrix \(outputs, inputs\) of finite",
    ),
)


# --- in files of weights --------------------------------------------------------------------------------------------
def release(file: Path, name: str, w: np.ndarray, **how: Any) -> dict[str, np.ndarray]:
    """A file of one layer in a layout, as a release has it: scales of FP16 where its library stores them so."""
    import ml_dtypes
    from safetensors.numpy import save_file

    parts = PACKED[name].encode(w, **how)
    kinds = {"scales": np.float16} | ({"weight": ml_dtypes.float8_e4m3fn} if name == "e4m3_row" else {})
    kept = {f"model.q.{part}": np.ascontiguousarray(x.astype(kinds.get(part, x.dtype))) for part, x in parts.items()}
    save_file(kept | {"model.norm.weight": np.ones(8, f32)}, file)
    if name == "gptq_v2":
        (file.parent / "config.json").write_text('{"quantization_config": {"checkpoint_format": "gptq_v2"}}')
    return parts


ENCODED = [name for name, layout in PACKED.items() if layout.encoder]


@pytest.mark.parametrize("name", ENCODED)
def test_a_release_is_read_as_one_weight_and_its_rule_is_recognised(name: str, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    w = weights()
    w[3] = 1e-3
    save_file({"model.q.weight": w, "model.norm.weight": np.ones(8, f32)}, tmp_path / "original.safetensors")
    parts = release(tmp_path / "release.safetensors", name, w, group=64, zero_point=name == "awq")
    found = {one.name: one for one in checkpoint.tensors(tmp_path / "release.safetensors")}
    assert found.keys() == {"model.q.weight", "model.norm.weight"}
    one = found["model.q.weight"]
    assert (one.stored, one.shape) == (name, w.shape)
    dtype = "fp16" if "scales" in parts else "fp32"
    values = PACKED[name].decode(parts, dtype).ravel()
    np.testing.assert_array_equal(one.values(), values)
    np.testing.assert_array_equal(one.values(512, 1024), values[512:1024])
    done = checkpoint.compare(tmp_path / "original.safetensors", tmp_path / "release.safetensors", progress=str)
    [row] = [row for row in done.rows if row.error]
    assert row.share == 1
    assert row.rule == "fp8_row (divide, deepgemm)" if name == "e4m3_row" else row.rule.startswith(f"{name} (to near")
    survey = checkpoint.survey(tmp_path / "release.safetensors", formats=["bf16"], progress=str)
    [about] = [about for about in survey.tensors if about.tensor == "model.q.weight"]
    assert about.stored == name


def test_parts_may_lie_in_several_shards_and_experts_stay_as_they_are(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    parts = PACKED["gptq"].encode(weights(), group=64)
    for i, (part, x) in enumerate(parts.items()):
        save_file({f"q.{part}": x, f"experts.{part}": x[None]}, tmp_path / f"{i}.safetensors")
    found = {one.name: one for one in checkpoint.tensors(tmp_path)}
    assert found.keys() == {"q.weight", *(f"experts.{part}" for part in parts)}
    np.testing.assert_array_equal(found["q.weight"].values(), PACKED["gptq"].decode(parts, "fp32").ravel())


@pytest.mark.parametrize(
    ("name", "part", "value", "text"),
    [
        ("gptq", "g_idx", np.full(256, 9, np.int32), "g_idx names groups from 9 to 9; there are 4"),
        (
            "gptq",
            "qzeros",
            np.zeros((4, 7), np.int32),
            "zero points of shape (4, 7) do not fit scales of shape (4, 64)",
        ),
        ("pack_quantized", "weight_shape", np.array([1 << 40, 1 << 20]), "would have the shape"),
        ("pack_quantized", "weight_shape", np.array([64, -1]), "has the shape"),
        ("pack_quantized", "weight_shape", np.array([128, 256]), "'release.safetensors' cannot be read"),
        ("pack_quantized", "weight_shape", np.zeros(1 << 16, np.int64), "has 524,288 bytes; allowed: 65,536"),
        ("bnb_nf4", "weight.quant_state.bitsandbytes__nf4", np.frombuffer(b"[" * 999, np.uint8), "cannot be read"),
        ("bnb_nf4", "weight.quant_state.bitsandbytes__nf4", np.frombuffer(b"{}", np.uint8), "has the shape None"),
        ("bnb_nf4", "weight.nested_absmax", np.zeros(0, f32), "cannot be read"),
        ("pack_quantized", "weight_shape", np.array([64, 7]), "7 codes in 32 words have no one number of bits, 1 to 8"),
        ("pack_quantized", "weight_scale", np.ones((64, 3), f32), "3 groups do not divide 256 inputs"),
        ("gptq", "g_idx", np.zeros(8, np.int32), "8 codes in 32 words have no one number of bits"),
        ("torchao", "_weight_scale", np.ones((64, 3), f32), "3 groups do not divide 256 inputs"),
        ("torchao", "_weight_zero_point", np.zeros((64, 3), np.int8), "zero points of shape (64, 3) do not fit scales"),
        ("int8_row", "weight_scale", np.ones((3, 7), f32), "3 groups do not divide 64 inputs"),
        ("int8_row", "weight_scale", np.ones((0, 2), f32), "0 groups do not divide 64 inputs"),
        ("int8_row", "weight_scale", np.ones((64, 1, 4), f32), "scales of shape (64, 1, 4) do not fit codes of shape"),
    ],
)
def test_parts_that_do_not_fit_are_refused(name: str, part: str, value: Any, text: str, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    file = tmp_path / "release.safetensors"
    release(file, name, weights(), group=64)
    save_file(load_file(file) | {f"model.q.{part}": value}, file)
    with pytest.raises(LabError) as caught:
        [one.values() for one in checkpoint.tensors(file)]
    assert text in str(caught.value).replace(f"{tmp_path}/", "")

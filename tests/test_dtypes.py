"""Dtypes of torch, numpy and ml_dtypes are accepted wherever a format is, and give what the format's name gives."""

import ml_dtypes
import numpy as np
import pytest
import torch
from refusals import refuses

import fplab
from fplab import LabError, formats, integers, tensorcore
from fplab.memory import Options
from fplab.parallel import Wire
from fplab.training import Policy

LACKING = {"float4_e2m1fn_x2": None, "float8_e4m3b11fnuz": None}  # two codes a byte; a bias that no format here has


TORCH = [x for x in vars(torch).values() if isinstance(x, torch.dtype)]
NUMPY = [np.float16, np.float32, np.float64, np.int8, np.uint16, np.bool_, np.complex64]
SCALARS = [
    x for name, x in vars(ml_dtypes).items() if isinstance(x, type) and issubclass(x, np.generic) and name != "finfo"
]
EVERY = [*dict.fromkeys(TORCH), *NUMPY, *SCALARS, *(np.dtype(x) for x in (*NUMPY, *SCALARS))]


def name_of(dtype) -> str:
    return str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else np.dtype(dtype).name


@pytest.mark.parametrize("dtype", EVERY, ids=repr)
def test_a_dtype_is_the_format_of_its_width_and_range_or_an_error(dtype):
    name = name_of(dtype)
    if "float" not in name or name in LACKING:
        refuses(lambda: formats.get(dtype), r"unknown format .*\. Allowed: fp64, fp32, ")
        return
    found = formats.get(dtype)
    assert found is formats.get(name)
    theirs = ml_dtypes.finfo(getattr(ml_dtypes, name, name))  # torch.finfo halves the eps of float8_e5m2fnuz
    assert (theirs.bits, theirs.max, theirs.eps, theirs.tiny) == (found.bits, found.max, found.eps, found.tiny)
    assert formats.spelt(dtype) == found.name


def test_every_format_but_tf32_has_a_dtype():
    reached = {formats.get(d).name for d in EVERY if "float" in name_of(d) and name_of(d) not in LACKING}
    assert reached == set(formats.NAMES) - {"tf32"}


def test_pythons_float_is_a_double():
    assert formats.get(float).name == "fp64"


@pytest.mark.parametrize(("given", "text"),
                         [(torch.float4_e2m1fn_x2, " Did you mean 'float4_e2m1fn'?"),
                          (ml_dtypes.float8_e4m3b11fnuz, " Did you mean 'float8_e4m3fnuz'?"),
                          (torch.tensor(1.0), ""), (dict, "")],
                         ids=str)  # fmt: skip
def test_an_unknown_dtype_is_quoted_and_the_nearest_named(given, text):
    with pytest.raises(LabError) as caught:
        formats.get(given)
    assert str(caught.value) == f"unknown format {given!r}. Allowed: {', '.join(formats.NAMES)}.{text}"


BF16 = [torch.bfloat16, ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)]


@pytest.mark.parametrize("bf16", BF16, ids=repr)
def test_arithmetic_sums_and_inspection_take_it(bf16):
    x = np.linspace(-3, 3, 64)
    assert fplab.quantize(0.1, bf16) == fplab.quantize(0.1, "bf16")
    assert fplab.add(256, 1, bf16, flags=True) == fplab.add(256, 1, "bf16", flags=True)
    assert fplab.sum(x, bf16, accumulate=torch.float16) == fplab.sum(x, "bf16", accumulate="fp16")
    assert str(fplab.inspect("0.1", bf16)) == str(fplab.inspect("0.1", "bf16"))
    assert str(fplab.inspect("0.1", [bf16, "fp16"])) == str(fplab.inspect("0.1", ["bf16", "fp16"]))
    assert fplab.exact.decode(1, bf16) == fplab.exact.decode(1, "bf16")


@pytest.mark.parametrize("bf16", BF16, ids=repr)
def test_tensor_cores_and_torch_take_it(bf16):
    e4m3, e5m2 = torch.float8_e4m3fn, ml_dtypes.float8_e5m2
    assert tensorcore.get("A100", bf16, np.float32) is tensorcore.get("A100", "bf16")
    assert tensorcore.get("H100", (e4m3, e5m2)) is tensorcore.get("H100", "e4m3*e5m2")
    assert tensorcore.get("A100", torch.int8) is tensorcore.get("A100", "int8")
    refuses(lambda: tensorcore.get("V100", bf16), r"has no bf16\. Allowed on V100: fp16, fp32, fp64\.")
    assert tensorcore.dot([1.0], [0.1], 0, "A100", bf16, store=bf16) == tensorcore.dot([1.0], [0.1], 0, "A100", "bf16")
    layer, x = torch.nn.Linear(8, 4), torch.ones(2, 8)
    results = []
    for inputs in (bf16, "bf16"):
        with fplab.nn.emulate("A100", inputs, store=inputs), torch.no_grad():
            results.append(layer(x))
    assert torch.equal(*results)
    assert torch.equal(fplab.nn.quantize(layer.weight, bf16), fplab.nn.quantize(layer.weight, "bf16"))
    with fplab.nn.autocast(bf16):
        assert layer(x).dtype == torch.bfloat16
    with fplab.nn.formats(layer, weights=bf16), torch.no_grad():
        assert torch.equal(layer.weight, layer.weight.bfloat16().float())
    optimizer = fplab.training.SGD(layer.parameters(), lr=0.1, states=bf16, weights=bf16)
    assert optimizer.state_dict()["param_groups"][0]["weights"] == "bf16"


def test_records_hold_the_lab_s_names():
    assert Policy("mine", "", cast=torch.float16, weights=torch.bfloat16).weights == "bf16"
    assert Policy("mine", "", cast=torch.float16).cast == "fp16"
    assert Wire(torch.bfloat16) == Wire("bf16")
    assert Options(inference=torch.int8).inference == "int8"
    assert integers.grids.get(np.int8) is integers.grids.get("int8")
    with pytest.raises(LabError, match=r"unknown integer grid torch\.int16\. |unknown integer grid 'int16'\. "):
        integers.grids.get(torch.int16)

"""What is not an array of numbers, a format or a rounding is refused with words; what is unusual but sound works."""

import re
import warnings
from fractions import Fraction

import numpy as np
import pytest
import torch
from fresh import python
from refusals import refuses

import fplab
from fplab import Format, LabError, Specials

X = np.array([0.1, -2.5, 3e-8, 1e6], np.float32)
with np.errstate(over="ignore"):
    WANT = X.astype(np.float16).astype(np.float32)  # no kernel is compiled to collect tests


def same(got: np.ndarray, want: np.ndarray = WANT) -> None:
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize(
    ("call", "text"),
    [(lambda: fplab.quantize(X, "bf61"), "fplab.quantize(float32[4], 'bf61'): unknown format 'bf61'. Allowed: fp64,"),
     (lambda: fplab.quantize(X, "bf61"), "Did you mean 'bf16'?"),
     (lambda: fplab.quantize(X, "fp8"), "Did you mean 'fp8_e5m2' or 'fp8_e4m3'?"),
     (lambda: fplab.tensorcore.matmul([[1]], [[1]], inputs="fp8"), "Did you mean 'fp8_e5m2' or 'fp8_e4m3'?"),
     (lambda: fplab.quantize(X, 16), "unknown format 16"),
     (lambda: fplab.quantize(X, "fp16", "rnd"), "unknown rounding 'rnd'. Allowed: rne, rna, rtz, rtp, rtn, odd, stoch"),
     (lambda: fplab.quantize(X, "fp16", 0), "unknown rounding 0"),
     (lambda: fplab.quantize(X, "fp16", overflow="wrap"),
      "unknown overflow policy 'wrap'. Allowed: inf, saturate, nan"),
     (lambda: fplab.quantize(X, "e4m3", overflow="inf"), "e4m3 has no infinity. Allowed: saturate, nan."),
     (lambda: fplab.quantize(X, "e2m1", overflow="nan"), "e2m1 has no NaN. Allowed: saturate."),
     (lambda: fplab.quantize(X, "fp16", subnormals="maybe"),
      "subnormals='maybe' is not a choice. Allowed: True, False"),
     (lambda: fplab.quantize(X, "fp16", subnormals=[1]), "subnormals=[1] is not a choice"),
     (lambda: fplab.quantize(X, "e2m1", nan="min"), "unknown nan rule 'min'. Allowed: zero, max."),
     (lambda: fplab.quantize([1.0, np.nan], "e2m1"), 'element 1 gives NaN, and e2m1 has none; pass nan="zero"'),
     (lambda: fplab.quantize(X, "fp16", "stochastic"), 'rounding="stochastic" needs seed='),
     (lambda: fplab.quantize(X, "fp16", "stochastic", seed=-1), "seed=-1 is not possible; allowed: 0 to"),
     (lambda: fplab.quantize(X, "fp16", "stochastic", seed=0.5), "seed=0.5 is not an integer"),
     (lambda: fplab.quantize("0.1", "fp16"), "x is of type str; allowed: float32, float64, float16, integers."),
     (lambda: fplab.quantize([[1, 2], [3]], "fp16"), "x is not an array of numbers"),
     (lambda: fplab.quantize([1, None], "fp16"), "x holds an element of type NoneType; allowed: float32, float64"),
     (lambda: fplab.quantize([0.5, Fraction(1, 3)], "fp16"), "an element of type Fraction; allowed: float32, float64, "
                                                             "float16, integers; float() rounds it to float64."),
     (lambda: fplab.quantize(10**400, "fp16"), "00..., an integer that float64 does not hold exactly; pass floats."),
     (lambda: fplab.quantize([2**64 + 1, 1], "fp16"), "x holds 18446744073709551617, an integer that float64 does not"),
     (lambda: fplab.quantize(np.array([], object), "fp16"), "x has dtype object; allowed: float32"),
     (lambda: fplab.tensorcore.matmul([[1]], [[1]], "H100"), "c is the text 'H100'; a GPU is named by gpu='H100'."),
     (lambda: fplab.tensorcore.dot([1], [1], "H100"), "c is the text 'H100'; a GPU is named by gpu='H100'."),
     (lambda: fplab.tensorcore.trace([1], [1], "H100"), "c is the text 'H100'; a GPU is named by gpu='H100'."),
     (lambda: fplab.quantize(np.array([True]), "fp16"), "x has dtype bool"),
     (lambda: fplab.quantize(1j, "fp16"), "x has dtype complex128"),
     (lambda: fplab.quantize(np.longdouble(1), "fp16"), "a float64 holds 53 of its bits: convert it yourself"),
     (lambda: fplab.quantize(2**53 + 1, "fp16"),
      "x holds 9007199254740993, an integer that float64 does not hold exactly"),
     (lambda: fplab.quantize(np.ma.array([1.0], mask=[True]), "fp16"), "pass x.filled(value) or x.data"),
     (lambda: fplab.quantize(X, "fp16", out=[0.0] * 4), "out is a list; it must be a writable float32 array"),
     (lambda: fplab.quantize(X, "fp16", out=np.empty(4)),
      "out is float64 of shape (4,); it must be a writable float32"),
     (lambda: fplab.quantize(X, "fp16", out=np.empty(3, np.float32)), "out is float32 of shape (3,)"),
     (lambda: fplab.decode([1.5], "fp16"), "codes has dtype float64; codes are integers."),
     (lambda: fplab.decode([256], "e4m3"), "codes holds 256; a 8-bit code is 0 to 255."),
     (lambda: fplab.decode([-1], "e4m3"), "codes holds -1; a 8-bit code is 0 to 255."),
     (lambda: fplab.decode([1], "fp64", np.float32),
      "float32 does not hold every value of fp64; pass dtype=np.float64"),
     (lambda: fplab.decode([1], "fp16", np.float16), "dtype=float16 cannot carry values; allowed: float32, float64."),
     (lambda: fplab.add(1, 2, "fp64"), "fp64 has 64 bits; arithmetic covers formats of at most 32"),
     (lambda: fplab.add([1, 2], [1, 2, 3], "fp16"), "operands of shapes (2,) and (3,) do not broadcast together."),
     (lambda: fplab.add(0.1, 1, "fp16", strict=True), "operand 0: it is 0.1, which fp16 cannot represent"),
     (lambda: fplab.mul([1, 2], [1, 2049], "fp16", strict=True), "operand 1: element 1 is 2049.0"),
     (lambda: fplab.set_num_threads(0), "n=0 is not possible; allowed: 1 to 1024."),
     (lambda: fplab.claims.get("rangs"), "unknown claim 'rangs'. Allowed: "),
     (lambda: fplab.exercises.exercise("rnee"), "Did you mean 'rne'?"),
     (lambda: fplab.experiments.load("underflw"), "Did you mean 'underflow'?")],
)  # fmt: skip
def test_the_text_of_an_error(call, text):
    refuses(lambda: call(), re.escape(text))


@pytest.mark.parametrize(
    ("fields", "text"),
    [({"exponent_bits": 60, "fraction_bits": 3}, "exponent_bits=60 is not possible; allowed: 1 to 11"),
     ({"exponent_bits": 0, "fraction_bits": 3}, "exponent_bits=0 is not possible"),
     ({"exponent_bits": 5, "fraction_bits": -1}, "fraction_bits=-1 is not possible; allowed: 0 to 52"),
     ({"exponent_bits": 5, "fraction_bits": 0}, "fraction_bits=0 leaves no code for NaN beside infinity"),
     ({"exponent_bits": 5, "fraction_bits": 2.0}, "fraction_bits=2.0 is not an integer"),
     ({"exponent_bits": 5, "fraction_bits": True}, "fraction_bits=True is not an integer"),
     ({"exponent_bits": 1, "fraction_bits": 3}, "leaves no normal number"),
     ({"exponent_bits": 11, "fraction_bits": 52, "bias": 1100}, "do not fit float64, which carries them"),
     ({"exponent_bits": 5, "fraction_bits": 2, "specials": "ieee"}, "unknown specials 'ieee'. Allowed: Specials.IEEE"),
     ({"exponent_bits": 4, "fraction_bits": 3, "signed": False, "specials": Specials.NEGATIVE_ZERO}, "needs a sign"),
     ({"exponent_bits": 4, "fraction_bits": 3, "zero": False, "specials": Specials.SINGLE}, "SINGLE needs a zero")],
)  # fmt: skip
def test_an_impossible_format_is_refused(fields, text):
    refuses(lambda: Format("mine", **fields), re.escape(text))


@pytest.mark.parametrize(
    "x",
    [X[::-1].copy()[::-1], np.stack([X, X], axis=1)[:, 0], X.astype(">f4"),
     np.frombuffer(X.tobytes(), np.float32),
     np.frombuffer(b"\0" + X.tobytes(), np.uint8)[1:].view(np.float32),
     np.ascontiguousarray(X.reshape(2, 2)).T.T.reshape(4)],
    ids=["reversed view", "strided", "big-endian", "read-only", "misaligned", "reshaped"],
)  # fmt: skip
def test_unusual_arrays_work(x):
    same(fplab.quantize(x, "fp16"))


def test_lists_float16_integers_and_scalars():
    same(fplab.quantize(X.astype(np.float64), "fp16").astype(np.float32))
    assert fplab.quantize([1, 2], "fp16").dtype == np.float32
    assert fplab.quantize(np.arange(3, dtype=np.uint8), "e4m3").dtype == np.float32
    assert fplab.quantize(np.float16([0.1]), "bf16").dtype == np.float32
    assert fplab.quantize(2049, "fp16") == np.float32(2048)
    assert isinstance(fplab.quantize(0.1, "fp16"), np.float64)
    assert isinstance(fplab.quantize(np.float32(0.1), "fp16"), np.float32)
    assert fplab.quantize(np.array(0.1), "fp16").shape == ()


def test_a_python_number_does_not_decide_the_dtype():
    for number in (1, 1.0, 0.1, 1e300, float("nan")):
        got = fplab.add(X, number, "fp16")
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, fplab.add(X, np.float64(number), "fp16").astype(np.float32))
    assert fplab.add(X, np.float64(1), "fp16").dtype == np.float64
    assert fplab.add(0.1, 0.2, "fp16").dtype == np.float64
    assert fplab.add(1, 2, "fp16").dtype == np.float32
    signalling = fplab.decode([0x7C01], "fp16")
    assert fplab.add(signalling, 1.0, "fp16", flags=True)[1] == 16


def test_empty_arrays_work_everywhere():
    for shape in ((0,), (3, 0, 2)):
        x = np.empty(shape, np.float32)
        assert fplab.quantize(x, "fp16").shape == shape
        assert fplab.quantize(x, "bf16", "stochastic", seed=1).shape == shape
        assert fplab.encode(x, "e4m3").shape == shape
        assert fplab.decode(np.empty(shape, np.uint8), "e4m3").shape == shape
        assert fplab.add(x, x, "fp16").shape == shape
        assert fplab.fma(x, x, x, "fp32", flags=True)[1].shape == shape
        assert fplab.lt(x, x, "fp16").shape == shape
        assert fplab.neighbours(x, "fp16")[0].shape == shape


def test_torch_tensors_on_the_cpu():
    torch = pytest.importorskip("torch")
    same(fplab.quantize(torch.from_numpy(X.copy()), "fp16"))
    assert fplab.quantize(torch.tensor([0.1], dtype=torch.bfloat16), "fp16").dtype == np.float32
    assert fplab.quantize(torch.tensor([1.0]).to(torch.float8_e4m3fn), "fp16")[0] == 1
    with pytest.raises(
        LabError, match=re.escape("x requires gradients, which rounding does not carry; pass x.detach().")
    ):
        fplab.quantize(torch.tensor([0.1], requires_grad=True), "fp16")
    there = "x is on device 'meta'; the lab computes on the CPU: pass x.cpu(). fplab.nn.device rounds and multiplies"
    refuses(lambda: fplab.quantize(torch.empty(3, device="meta"), "fp16"), re.escape(there))
    refuses(lambda: fplab.quantize(torch.eye(2).to_sparse(), "fp16"), "pass a dense one")


def test_ml_dtypes_arrays():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    same(fplab.quantize(X.astype(ml_dtypes.bfloat16), "fp16"), fplab.quantize(fplab.quantize(X, "bf16"), "fp16"))


def test_a_read_only_out():
    frozen = np.empty(4, np.float32)
    frozen.flags.writeable = False
    refuses(lambda: fplab.quantize(X, "fp16", out=frozen), "out is read-only")


def test_a_scalar_out():
    out = np.empty((), np.float64)
    fplab.quantize(0.1, "bf16", out=out)
    assert out == 0.10009765625


def test_an_error_leaves_no_warning_and_no_chain():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(LabError) as caught:
            fplab.add(1, 2, "fp17")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert str(caught.value).startswith("fplab.add(1, 2, 'fp17'): ")
    assert isinstance(caught.value, ValueError)


def test_the_public_name_is_quoted() -> None:
    """Not the file in which a function lies; and a name that a package has of another kind is not taken for it."""
    with pytest.raises(LabError, match=r"^fplab\.nn\.formats\(<"):
        fplab.nn.formats(torch.nn.Sequential(torch.nn.Linear(2, 2)), weights="fp99")
    with pytest.raises(LabError, match=r"^fplab\.integers\.quantize\("):
        fplab.integers.quantize([float("nan")], fplab.integers.symmetric(1.0))


@pytest.mark.parametrize(
    ("chosen", "said"),
    [("fr", "x has dtype bool"), ("en-GB", "x has dtype bool"), ("zh", "x 的 dtype 是 bool"),
     ("zh_CN.UTF-8", "x 的 dtype 是 bool")],
)  # fmt: skip
def test_a_fresh_process_refuses_in_the_language_of_its_environment(chosen: str, said: str):
    code = "import fplab\ntry: fplab.quantize(True, 'fp16')\nexcept fplab.LabError as error: print(error, fplab.lang())"
    printed = python(code, FPLAB_LANG=chosen)
    assert said in printed
    assert printed.split()[-1] == ("zh" if "的" in said else "en")


def test_integers_that_no_dtype_holds_are_taken_where_float64_holds_them():
    assert fplab.quantize([2**70, -(2**64), 3], "fp32").tolist() == [2.0**70, -(2.0**64), 3.0]
    assert fplab.sum([2**70, 1], "fp32") == 2.0**70


@pytest.mark.filterwarnings("ignore::UserWarning")  # later torch says that it is deprecated
def test_a_quantized_tensor_is_asked_to_be_dequantized():
    with pytest.raises(LabError, match=r"x is a quantized tensor; pass x\.dequantize\(\)\.$"):
        fplab.quantize(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "fp16")

"""The table of models: complete, found by any spelling, and clear about what does not exist."""

import dataclasses
import re

import pytest

from fplab.errors import LabError
from fplab.language import speaking
from fplab.tensorcore import QUESTIONS, TABLE, get
from fplab.tensorcore.models import OPTIONS, Status, input_name

SPECIFIED = [  # gpu, inputs, output, instruction; L, F, kept bits, rounding, floor
    ("V100", "fp16", "fp32", None, 4, 23, 23, "rtz", None),
    ("V100", "fp16", "fp16", None, 4, 23, 10, "rne", -19),
    ("T4", "fp16", "fp16", None, 8, 24, 10, "rne", -20),
    ("A100", "bf16", "fp32", None, 8, 24, 23, "rtz", -132),
    ("A30", "tf32", "fp32", None, 4, 24, 23, "rtz", -132),
    ("Ada", "e4m3", "fp32", None, 16, 13, 13, "rtz", -132),
    ("L40S", "e5m2", "fp16", None, 16, 13, 10, "rne", None),
    ("H100", "fp16", "fp16", None, 16, 25, 10, "rne", -21),
    ("H200", "tf32", "fp32", None, 8, 25, 23, "rtz", -133),
    ("H200", "tf32", "fp32", "mma.k4", 4, 25, 23, "rtz", -133),
    ("H100", "e4m3", "fp32", None, 32, 13, 13, "rtz", -133),
    ("H100", "e4m3", "fp32", "mma", 16, 25, 23, "rtz", -133),
    ("B200", "e4m3*e5m2", "fp32", None, 32, 25, 23, "rtz", -133),
    ("RTXPRO6000", "e2m1", "fp16", None, 32, 25, 10, "rne", -133),
    ("B200", "mxfp6_e3m2", "fp32", None, 32, 25, 23, "rtz", -133),
    ("B200", "nvfp4", "fp32", None, 64, 35, 23, "rtz", -139),
    ("B200", "nvfp4_e8m0", "fp32", None, 64, 35, 23, "rtz", -139),
    ("B200", "e4m3", "fp16", "tcgen05", 32, 25, 10, "rne", -133),
]


@pytest.mark.parametrize("row", SPECIFIED, ids=lambda r: f"{r[0]}-{r[1]}-{r[2]}-{r[3]}")
def test_parameters(row) -> None:
    m = get(*row[:4])
    assert (m.length, m.alignment_bits, m.kept_bits, m.rounding, m.floor) == row[4:]


USED = {
    **dict.fromkeys(("V100", "T4", "A100", "A2", "A30", "Ada", "L40S"), "mma"), "H100": "wgmma", "H200": "wgmma",
    "B200": "tcgen05", "RTXPRO6000": "mma", **dict.fromkeys(("MI100", "MI210", "MI250X", "MI300X"), "mfma"),
}  # fmt: skip


def test_what_does_not_exist_is_not_listed() -> None:
    """No FP64 units before sm_80, no INT8 of k = 32 on sm_75, block scales on B200 by tcgen05 alone; others are."""
    cells = {(m.gpu, m.instruction, m.a, m.output, m.k, m.scale) for m in TABLE}
    assert not {c for c in cells if c[0] in ("V100", "T4") and c[2] == "fp64" and c[1] != "fma"}
    assert {c[1] for c in cells if c[2] == "fp32"} == {"fma", "mfma"}
    assert {c[0] for c in cells if c[2] == "fp32"} >= USED.keys()
    assert {c[4] for c in cells if c[0] == "T4" and c[2] == "int8"} == {16}
    assert not {c for c in cells if c[0] == "V100" and c[2] == "int8"}
    assert {(c[0], c[1]) for c in cells if c[5]} == {("B200", "tcgen05"), ("RTXPRO6000", "mma")}
    assert ("B200", "tcgen05", "e4m3", "fp16", 32, None) in cells
    assert ("B200", "tcgen05", "e2m1", "fp32", 64, ("e8m0", 16)) in cells
    assert get("B200", "nvfp4_e8m0").scale == ("e8m0", 16)


def test_every_model_is_found_by_its_own_name() -> None:
    for model in TABLE:
        assert get(model.gpu, input_name(model), model.output, f"{model.instruction}.k{model.k}") == model
    assert len({m.name for m in TABLE}) == len(TABLE)


def test_what_torch_uses_is_the_default() -> None:
    assert {gpu: get(gpu).instruction for gpu in USED} == USED
    assert get("MI250X", "bf16").instruction == "mfma_1k"


def test_spelling() -> None:
    assert get("rtx pro 6000") == get("RTXPRO6000")
    assert get("h100", "half", "float32") == get("H100")
    assert get("H100", ("e4m3", "e5m2")) == get("H100", "E4M3*E5M2")
    model = get("H100")
    assert get(model) is model


def test_status() -> None:
    assert get("A100").status is Status.DATA
    assert get("A30").status is Status.LITERATURE
    assert get("T4").status is Status.LITERATURE
    assert get("H100", "e4m3", "fp16").status is Status.OPEN
    assert get("H100", "e4m3", "fp32", "mma").status is Status.OPEN
    assert get("H100", "tf32").status is Status.LITERATURE
    assert get("H100", "tf32", instruction="mma.k4").status is Status.DATA
    assert get("H100", "e4m3*e5m2").status is Status.LITERATURE
    assert get("H100", "fp32").status is Status.OPEN
    assert get("V100", "fp64").status is Status.OPEN
    assert get("A100").floor_status is Status.LITERATURE
    assert get("H100", "e4m3", "fp16").floor_status is Status.OPEN


def test_questions_are_asked_in_both_languages() -> None:
    chinese = re.compile(r"[\u4e00-\u9fff]")
    for question in QUESTIONS:
        assert question.text.en.isascii()
        assert chinese.search(question.text.zh)
        assert set(re.findall(r"\d+", question.text.en)) == set(re.findall(r"\d+", question.text.zh)), question.name
    with speaking("zh"):
        assert f"{QUESTIONS[0].text}" == QUESTIONS[0].text.zh


def test_questions_name_the_options() -> None:
    named = {option for q in QUESTIONS for option in q.options}
    assert named == set(OPTIONS) - {"saturate"}
    assert named <= {f.name for f in dataclasses.fields(get("H100"))}
    default = get("H100")
    assert all(getattr(default, name) == allowed[0] for name, allowed in OPTIONS.items())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("H1000",), "unknown GPU 'H1000'. Did you mean 'H100'? Allowed: V100 (Volta, sm_70), T4 (Turing, sm_75), "),
        (("H1000",), "). By the units that they share also: TITAN V, Volta, T4G, RTX 20xx, "),
        ((100,), "unknown GPU 100. Allowed: V100 (Volta"),
        (("A100", "e4m3"), "A100 (Ampere, sm_80) has no e4m3. Allowed on A100: fp16, bf16, tf32, fp64, int8, fp32. "
                           "GPUs that have it: Ada, L40S, H100, H200, B200, RTXPRO6000."),
        (("T4", "bf16"), "T4 (Turing, sm_75) has no bf16. Allowed on T4: fp16, int8, fp32, fp64. GPUs that have it: "),
        (("H100", "fp17"), "unknown inputs 'fp17'. Allowed: fp16, bf16, tf32,"),
        (("H100", "e2m1"), "H100 (Hopper, sm_90) has no e2m1. Allowed on H100: fp16,"),
        (("H100", "fp32", "fp16"), "H100 (Hopper, sm_90) has no fp32 with output='fp16'. Allowed: fp32."),
        (("H100", "fp16", "fp32", "fma"), "has no fma that takes fp16 to fp32. Allowed: wgmma, mma."),
        (("H100", "fp32", "fp32", "wgmma"), "has no wgmma that takes fp32 to fp32. Allowed: fma."),
        (("H100", ("fp16", "bf16")), "H100 (Hopper, sm_90) has no fp16 * bf16."),
        (("B200", ("mxfp8_e4m3", "e4m3")), "mix block scales of different kinds"),
        (("H100", "bf16", "fp16"), "H100 (Hopper, sm_90) has no bf16 with output='fp16'. Allowed: fp32."),
        (("H100", "fp16", "bf16"), "output='bf16' is no accumulator; allowed: fp32, fp16 (store='bf16' casts at"),
        (("A100", "fp16", "fp32", "wgmma"), "A100 (Ampere, sm_80) has no wgmma. Allowed on A100: mma, fma."),
        (("H100", "fp16", "fp32", "gmma"), "Allowed: mma, fma, wgmma, tcgen05, mfma, mfma_1k, hifi4, hifi3, hifi2, "
                                           "lofi. Did you mean"),
        (("B200", "e2m1", "fp32", "mma"), "(Blackwell, sm_100) has no mma that takes e2m1 to fp32. Allowed: tcgen05."),
        (("B200", "nvfp4", "fp32", "mma"), "(Blackwell, sm_100) has no mma that takes nvfp4 to fp32."),
        (("V100", "fp64", None, "mma"), "V100 (Volta, sm_70) has no mma that takes fp64 to fp64. Allowed: fma."),
        (("T4", "int8", None, "mma.k32"), "instruction='mma.k32' does not exist here. Allowed: mma.k16."),
        (("H100", "fp16", "fp32", "mma.k4"), "instruction='mma.k4' does not exist here. Allowed: mma.k16, mma.k8."),
    ],
)  # fmt: skip
def test_errors(call, message) -> None:
    with pytest.raises(LabError) as caught:
        get(*call)
    assert message in str(caught.value)


def test_option_errors() -> None:
    with pytest.raises(LabError, match=r"unknown option 'flor_rule'.*Did you mean 'floor_rule'"):
        get("H100").with_options(flor_rule="emax")
    with pytest.raises(LabError, match="floor_rule='max' is not possible for kind='block'; allowed: 'emax', 'ze"):
        get("H100").with_options(floor_rule="max")

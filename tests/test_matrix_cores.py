"""AMD's Matrix Cores: the fast kernels, the oracle and MMA-Sim rebuilt agree; what is peculiar to them; their names."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from prove import matrix
from prove.shares import Difference
from refusals import refuses

from fplab import nn
from fplab.errors import LabError
from fplab.language import speaking
from fplab.tensorcore import TABLE, Model, Plan, classes, dot, get, infer, matmul, models, oracle, trace
from fplab.tensorcore.models import input_name
from fplab.widgets import gpus, stepper

AMD = [m for m in TABLE if models.row_of(m.gpu).vendor == "AMD"]
CLASSES = [group[0] for group in classes() if group[0] in AMD]


@pytest.mark.parametrize("cell", matrix.cells())
def test_rows_are_those_of_mma_sim(cell: str) -> None:
    """A share of the million rows of ``make prove``."""
    assert matrix.compare(cell, 100, 4000) >= 4000


@pytest.mark.parametrize("model", CLASSES, ids=lambda m: m.name)
def test_the_oracle_is_mma_sim(model: Model) -> None:
    rng = np.random.default_rng(3)
    for k, n in ((1, 64), (7, 24), (17, 24)):
        a, b, c = (x[::-1] for x in matrix.rows(model, k, 448, rng))
        a, b, c = (x[:: 448 // n] for x in (a, b, c))  # of every kind of rows
        want = matrix.simulated(model, a, b, c)
        for i in range(n):
            found = oracle.dot(a[i].tolist(), b[i].tolist(), float(c[i]), model)
            assert oracle.result_bits(found, model) == want[i], (k, i)


def not_counted(found):
    return lambda x, fmt: (found(x, fmt)[0], np.where(x == 0, -999, found(x, fmt)[1]))


@pytest.mark.parametrize(
    ("cell", "name", "fault"),
    [
        ("MI300X mfma fp16*fp16 8", "apart", not_counted),
        ("MI300X mfma bf16*bf16 8", "summed", lambda summed: lambda s, e: summed(s[:, ::-1] * (1 + 2.0**-24), e)),
        ("MI300X mfma e4m3fnuz*e4m3fnuz 16", "summed", lambda summed: lambda s, e: summed(s, e + 1)),
        ("MI100 mfma bf16*bf16 2", "pairwise",
         lambda pairwise: lambda m, *x: pairwise(get("MI210", "bf16", instruction="mfma.k2"), *x)),
        ("MI100 mfma fp32*fp32 1", "multiply_adds", lambda chain: lambda a, b, c: chain(a[:, ::-1], b[:, ::-1], c)),
    ],
)  # fmt: skip
def test_the_comparison_sees_a_fault(cell, name, fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, name, fault(getattr(matrix, name)))
    with pytest.raises(Difference, match="rows differ"):
        matrix.compare(cell, 100, 4000)


# --- what is peculiar to them -----------------------------------------------------------------------------------------
def test_signs_of_zero() -> None:
    for gpu, inputs, minus in (("MI300X", "fp16", False), ("MI100", "fp16", False), ("MI300X", "fp32", True)):
        k = get(gpu, inputs).k
        assert np.signbit(dot([-0.0] * k, [1.0] * k, -0.0, gpu=gpu, inputs=inputs)) == minus


def test_plans() -> None:
    rng = np.random.default_rng(2)
    a, b, c = (
        rng.standard_normal(shape).astype(np.float16).astype(np.float32) for shape in ((9, 100), (100, 70), (70,))
    )
    for gpu in ("MI100", "MI210", "MI300X"):
        how = {"gpu": gpu}
        halves = [matmul(a[:, :64], b[:64], c, **how), matmul(a[:, 64:], b[64:], **how)]
        assert np.array_equal(matmul(a, b, c, plan=Plan(promote=64), **how),
                              (c + matmul(a[:, :64], b[:64], **how)) + halves[1])  # fmt: skip
        plan = Plan(split_k=2)
        assert np.array_equal(matmul(a[:, :96], b[:96], c, plan=plan, **how),
                              matmul(a[:, :48], b[:48], c, **how) + matmul(a[:, 48:96], b[48:96], **how))  # fmt: skip
        assert np.array_equal(matmul(a, b, **how), matmul(np.vstack([a] * 20), np.hstack([b] * 3), **how)[:9, :70])
    with pytest.raises(LabError, match="promote=64 is for FP16, BF16, TF32 and FP8; fp32 has none"):
        matmul(a, b, gpu="MI100", inputs="fp32", plan=Plan(promote=64))


@pytest.mark.parametrize("model", CLASSES, ids=lambda m: m.name)
def test_traces_account_for_the_error(model: Model) -> None:
    rng = np.random.default_rng(4)
    a, b, c = (x[::16] for x in matrix.rows(model, 11, 512, rng))
    for i in range(32):
        found = trace(a[i], b[i], c[i], gpu=model)
        assert found.bits == np.asarray(dot(a[i], b[i], c[i], gpu=model)).view(matrix.simulated(model, a, b, c).dtype)
        if not np.isfinite(found.result):
            continue
        for step in found.steps:
            assert sum((t.value for t in step.terms), Fraction(0)) == step.total + step.lost_to_truncation
            assert Fraction(step.result) + step.lost_to_rounding == step.total
        lost = sum((s.lost_to_truncation + s.lost_to_rounding for s in found.steps), Fraction(0))
        if model.kind != "pairwise":  # whose products may be flushed before they are terms
            assert found.error == -lost


def test_steps_by_hand() -> None:
    found = trace([1.0, 2.0**-13], [1.0, -(2.0**-13)], -(2.0**-30), gpu="MI300X")
    products, onto = found.steps[:2]
    assert [s.what for s in found.steps] == ["block", "add"] * 2
    assert (products.emax, products.units, products.lost_to_truncation) == (0, 2**24, -Fraction(1, 2**26))
    assert [t.units for t in onto.terms] == [2**31, -(2**7)]  # c is rounded down to -2**-24
    assert "   sum  1 shift" in str(found)
    assert found.result == 1 - 2.0**-24
    assert [s.what for s in trace([1.0] * 32, [1.0] * 32, gpu="MI300X", inputs="e4m3fnuz").steps] == [
        "block", "block", "join", "add"] * 2  # fmt: skip
    assert [s.what for s in trace([1.0] * 4, [1.0] * 4, gpu="MI100").steps] == ["tree", "sum"] * 4
    assert [s.what for s in trace([0.1] * 3, [0.3] * 3, gpu="MI300X", inputs="fp64").steps] == ["fma"] * 4


# --- from outputs alone -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("model", CLASSES, ids=lambda m: m.name)
def test_infer_tells_every_two_cells_apart(model: Model) -> None:
    """Whatever it says is of the model's class: of every other cell with these inputs the outputs differ."""
    found = infer(lambda a, b, c: dot(a, b, c, gpu=model), input_name(model), "fp32")
    own = next(group for group in classes() if model in group)
    assert model.name in found.equals
    assert set(found.equals) <= {m.name for m in own}
    assert found.unit.kind == model.kind
    assert found.unit.subnormals == model.subnormals


# --- networks, widgets and names --------------------------------------------------------------------------------------
@pytest.mark.parametrize("inputs", ["fp16", "e4m3fnuz"])
def test_mi300x_trains_a_network(inputs: str) -> None:
    """Its loss falls as H100's does, in other bits; an operand of the wrong GPU is refused."""
    losses = {}
    for gpu, fmt in (("MI300X", inputs), ("H100", inputs.removesuffix("fnuz"))):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
        x = torch.randn(64, 32)
        y = (x[:, :4] + x[:, 4:8]).argmax(dim=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        for _ in range(25):
            optimizer.zero_grad()
            with nn.emulate(gpu, inputs=fmt):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                loss.backward()
            optimizer.step()
            losses.setdefault(gpu, []).append(loss.item())
    assert losses["MI300X"][-1] < 0.4 * losses["MI300X"][0]
    assert losses["MI300X"] != losses["H100"]
    with pytest.raises(LabError, match=r"inputs='e4m3fnuz': H100 has no unit for it.*GPUs that have it: MI300X"):
        nn.emulate("H100", inputs="e4m3fnuz")


def test_emulated_products_are_the_units() -> None:
    x, y = torch.randn(9, 24), torch.randn(24, 5)
    with nn.emulate("CDNA3", inputs="fp32"):
        product = x @ y
    assert np.array_equal(product.numpy(), matmul(x.numpy(), y.numpy(), gpu="MI300X", inputs="fp32"))
    with nn.emulate("MI210", inputs="bf16"):
        product = x @ y
    assert np.array_equal(product.numpy(), matmul(x.numpy(), y.numpy(), gpu="MI210", inputs="bf16"))


@pytest.mark.parametrize("model", CLASSES, ids=lambda m: m.name)
def test_every_cell_in_the_stepper(model: Model) -> None:
    if model.a != model.b:
        return
    state = stepper.State(gpu=model.gpu, inputs=model.a, instruction=stepper.named(model), a="1 2^-13 3", b="1 1 -0.5")
    trace = stepper.traced(state)
    assert trace.model == model
    for step in range(len(trace.steps)):
        page = stepper.render(stepper.moved(state, step))
        assert model.name.replace("->", "-&gt;") in page or model.name in page
    if model.a != "fp64":
        shown = gpus.render(gpus.State(a="1", b="1", c="0.5", inputs=model.a))
        assert "CDNA" in shown


NAMES = {
    "TITAN V": "V100", "RTX 2080 Ti": "T4", "Quadro RTX 8000": "T4", "A10": "A2", "A40": "A2", "rtx 3060": "A2",
    "RTX A6000": "A2", "RTX 4090": "Ada", "NVIDIA GeForce RTX 4070 Ti SUPER": "Ada", "RTX4080 Laptop GPU": "Ada",
    "L4": "Ada", "L40": "Ada", "RTX 6000 Ada": "Ada", "H800": "H100", "GH200": "H100", "GB200": "B200",
    "RTX 5090": "RTXPRO6000", "RTX PRO 6000": "RTXPRO6000", "CDNA1": "MI100", "cdna2": "MI210", "CDNA3": "MI300X",
    "AMD Instinct MI300X": "MI300X", "L40S": "L40S", "A30": "A30", "A800": "A100", "H20": "H100", "MI325X": "MI300X",
    "Hopper": "H100", "volta": "V100", "Ampere": "A100", "Turing": "T4",
}  # fmt: skip
DEVICES = {  # as torch.cuda.get_device_name() has them
    "Tesla V100-SXM2-16GB": "V100", "Tesla T4": "T4", "NVIDIA A100-SXM4-80GB": "A100", "NVIDIA A100-PCIE-40GB": "A100",
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb": "A100", "NVIDIA A10G": "A2", "NVIDIA RTX 6000 Ada Generation": "Ada",
    "NVIDIA H100 80GB HBM3": "H100", "NVIDIA H100 PCIe": "H100", "NVIDIA H100 NVL": "H100", "NVIDIA H200": "H200",
    "NVIDIA GH200 480GB": "H100", "NVIDIA B200": "B200", "NVIDIA GeForce RTX 2080 Ti": "T4", "NVIDIA L40S": "L40S",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTXPRO6000", "AMD Instinct MI300X OAM": "MI300X",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": "RTXPRO6000", "AMD Instinct MI250X": "MI250X",
}  # fmt: skip


def test_names_that_people_own() -> None:
    assert {name: get(name).gpu for name in NAMES | DEVICES} == NAMES | DEVICES
    for name in ("Tesla P100-PCIE-16GB", "NVIDIA GeForce GTX 1080 Ti"):
        with pytest.raises(LabError, match=rf"^{name} \(Pascal\) has no matrix units\.$"):
            get(name)
    for name, architecture in (("MI350", "AMD CDNA4"), ("mi355x", "AMD CDNA4"), ("B300", "Blackwell, sm_103")):
        with pytest.raises(LabError, match=rf"(?i){name} \({architecture}\) has matrix units of which no model"):
            get(name)
    refuses(lambda: get("RTX 3090", "e4m3"), r"RTX 3090 \(Ampere, sm_86, as A2\) has no e4m3\. Allowed on A2: fp16,")
    with pytest.raises(LabError, match=r"MI300X \(AMD CDNA3\) has no e4m3\. Allowed on MI300X: fp32, fp64, tf32, fp16"):
        get("MI300X", "e4m3")
    with pytest.raises(LabError, match=r"H100 \(Hopper, sm_90\) has no mfma\. Allowed on H100: wgmma, mma, fma\."):
        get("H100", instruction="mfma")
    refuses(lambda: get("GTX"), r"MI100 \(AMD CDNA1\), .*RTX 40xx")
    refuses(lambda: get("H1000"), r"^[^.]*'H1000'\. Did you mean 'H100'\? Allowed: ")
    with speaking("zh"), pytest.raises(LabError, match=r"是否想用 'H100'？可用：.*按共有的单元还有：.*CDNA3。$"):
        get("H1000")


def test_instructions_and_inputs() -> None:
    assert get("MI210", "bf16").name == "MI210 mfma_1k.k16 bf16->fp32"
    assert get("MI210", "bf16", instruction="mfma").length == 2
    assert get("MI300X", "xf32") == get("MI300X", "tf32")
    assert get("MI300X", "e5m2fnuz*e4m3fnuz").kind == "two_step_fp8"
    assert {m.a for m in AMD if m.gpu == "MI100"} == {"fp32", "fp16", "bf16"}
    a = np.float32([1 + 2.0**-11, 3.0])
    assert dot(a, a, gpu="MI300X", inputs="xf32") == 10  # 13 bits are dropped


def test_a_negative_zero_is_no_subnormal_to_flush() -> None:
    """Onto -0 comes a sum of products that are flushed to -0."""
    model = get("MI210", "bf16")
    a = np.full((64, model.k), 2.0**-100, np.float32)
    found = dot(a, -a, np.full(64, -0.0, np.float32), gpu=model)
    assert np.signbit(found).all()
    assert oracle.dot(a[0], -a[0], -0.0, model).negative
    assert not np.signbit(dot(a, -a, np.full(64, -(2.0**-130), np.float32), gpu=model)).any()


def test_whether_cdna2_makes_plus_zero_of_minus_zero_is_open() -> None:
    """MMA-Sim does, of C and so of what an instruction leaves to the next: each of two ends in -0 here."""
    model = get("MI210", "bf16")
    mma_sim = model.with_options(flushed_zero="plus")
    a = np.full((3, 2 * model.k), 2.0**-100, np.float32)
    c = np.float32([-0.0, -(1.5 * 2.0**-126), -0.0])  # of the second the first instruction leaves -2**-127, flushed
    b = -a
    a[1, 0], b[1, 0] = 2.0**-63, 2.0**-63
    want = matrix.simulated(mma_sim, a, b, c)
    for record, bits in ((mma_sim, want.tolist()), (model, [1 << 31] * 3)):
        assert dot(a, b, c, gpu=record).view(np.uint32).tolist() == bits
        whole = matmul(a, b.T, c, gpu=record)
        assert np.diagonal(whole).copy().view(np.uint32).tolist() == bits
        found = [oracle.dot(x.tolist(), y.tolist(), float(z), record) for x, y, z in zip(a, b, c, strict=True)]
        assert [oracle.result_bits(x, record) for x in found] == bits
    assert want.tolist() == [0, 0, 0]
    with pytest.raises(LabError, match="flushed_zero='plus' is not possible for kind='pairwise'; allowed: 'kept'"):
        get("MI100").with_options(flushed_zero="plus")
    found = infer(lambda a, b, c: dot(a, b, c, gpu=mma_sim), "bf16").unit
    assert (found.subnormals, found.flushed_zero) == ("flushed", "plus")

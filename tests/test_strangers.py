"""A stranger's tasks, each done in a copy of the package as a contributor would, in the files that it should take.

A format, a GPU of a known algorithm, and a new algorithm are one file each, a rounding is one and its kernel; then
everything that lists such things is walked through, and nothing in it may need to know. What is missing is said with
the place where it belongs.
"""

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import refuses

import fplab
from fplab import plans, roundings
from fplab.errors import LabError
from fplab.kernels import rounding as kernel
from fplab.tensorcore import get, models, units
from fplab.tensorcore.gpus import ROWS, Cell, same

WALK = """
import importlib
import fplab
from fplab import formats, nn, tensorcore, widgets
from fplab.hardware import software
from fplab.widgets import shell

for name in widgets.NAMES:
    widget = importlib.import_module(f"fplab.widgets.{name}")
    changed = getattr(widget, "changed", shell.change)
    for control in getattr(widget, "CONTROLS", ()):
        for option in control.options:
            try:
                assert widget.render(changed(widget.State(), control.field, option))
            except fplab.LabError:
                pass  # refused with words, as for a format that a GPU does not take
fplab.inspect("0.1", formats.NAMES)
classes = tensorcore.classes()
for model in tensorcore.TABLE:
    assert tensorcore.get(model.gpu, tensorcore.models.input_name(model), model.output, model.instruction)
    assert any(model in group for group in classes)
"""


class House:
    """A copy of the package that a stranger changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(Path(fplab.__file__).parent, folder / "fplab")  # its bytecode too, which an edit outdates

    def edit(self, name: str, *pairs: tuple[str, str]) -> None:
        """Replace texts of a file of the package, each of which is there once."""
        path = self.folder / "fplab" / name
        text = path.read_text(encoding="utf-8")
        for old, new in pairs:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Python with this copy for the package."""
        env = {**os.environ, "PYTHONPATH": str(self.folder), **environment}
        return subprocess.run(
            [sys.executable, *arguments], cwd=self.folder, env=env, capture_output=True, text=True, check=False
        )

    def says(self, script: str, **environment: str) -> str:
        """What a script prints, having walked through everything that lists formats, GPUs or roundings."""
        ended = self.run("-c", f"{WALK}\n{script}", **environment)
        assert not ended.returncode, ended.stderr
        return ended.stdout


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


# --- a format ---------------------------------------------------------------------------------------------------------
def test_a_format_is_one_file(house: House) -> None:
    house.edit(
        "formats.py", ('    Format("e8m0"', '    Format("e4m2", 4, 2, specials=Specials.NONE),\n    Format("e8m0"')
    )
    house.says("""
from fplab import exact
for mode in fplab.Rounding:
    for code in range(64):
        want = exact.decode(code, "e4m2")
        assert fplab.decode(code, "e4m2") == float(want.value)
        x = float(want.value) * 1.03125
        got = fplab.encode(x, "e4m2", mode, seed=1)
        assert mode.random or got == exact.round_to(exact.from_float(x), "e4m2", mode)[0]
assert "e4m2" in fplab.widgets.rounding.CONTROLS[0].options
""")
    ended = house.run("-m", "fplab", "run", "formats")
    assert not ended.returncode, ended.stdout
    assert (house.folder / "runs/quick/formats.csv").read_text(encoding="utf-8").count("e4m2") == 1


def test_an_impossible_format_names_itself() -> None:
    with pytest.raises(LabError, match=r"Format\('e4m0', exponent_bits=4, fraction_bits=0, .*: fraction_bits=0 leaves"):
        fplab.Format("e4m0", 4, 0)


# --- a GPU ------------------------------------------------------------------------------------------------------------
NEW_GPU = '    GPU("RTX9090", "Ada", (8, 9), ("mma",), _ADA[:3]),\n)  # fmt: skip'


def test_a_gpu_is_one_row_and_inherits_no_cell(house: House) -> None:
    house.edit("tensorcore/gpus.py", ("\n)  # fmt: skip", f"\n{NEW_GPU}"))
    said = house.says("""
import numpy as np
print(fplab.course.hardware(["RTX9090", "Ada"]).rows[0][0])
print(software.gpu_of({"kind": "cuda", "device": "NVIDIA GeForce RTX 9090", "capability": "8.9"}))
print(sorted({m.a for m in tensorcore.TABLE if m.gpu == "RTX9090"}))
a, b = np.linspace(-1, 1, 96).reshape(2, 48)
assert tensorcore.dot(a, b, gpu="rtx 9090") == tensorcore.dot(a, b, gpu="Ada")
assert any("RTX9090" in name for name in tensorcore.infer(lambda *x: tensorcore.dot(*x, gpu="A100")).equals)
try:
    tensorcore.get("RTX9090", "int8")
except fplab.LabError as error:
    print(error)
""")
    name, found, inputs, error = said.splitlines()
    assert name == found == "RTX9090"
    assert inputs == "['bf16', 'fp16', 'tf32']"
    assert "RTX9090 (Ada, sm_89) has no int8. Allowed on RTX9090: fp16, bf16, tf32. GPUs that have it: T4," in error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cells": ()}, "it names no cells, and none are assumed"),
        ({"cells": (Cell(same("fp16"), "fp32", 8, 24, -132, (16,), kind="treewise"),), "recorded": ()},
         r"kind='treewise' is no algorithm; allowed: block, fma, grouped, integer, pairwise, tensix, two_step, "
         r"two_step_fp8, widened\. A new one is a file, fplab/tensorcore/units/treewise\.py"),
        ({"recorded": ("mma e2m1->fp32",)}, "recorded='mma e2m1->fp32' is no instruction of its cells"),
        ({"cells": (Cell(same("fp17"), "fp32", 8, 24, -132, (16,)),)}, "unknown inputs 'fp17'. Allowed: fp16, bf16,"),
        ({"cells": (Cell(same("fp16"), "fp32", 8, 24, -132, (16,), instructions=("wgmma",)),)},
         "unknown instruction 'wgmma'. Allowed: mma"),
        ({"cells": ROWS[2].cells * 2}, r"two cells are X100 mma\.k16 fp16->fp32"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_is_refused_by_its_name(change, message) -> None:
    row = dataclasses.replace(ROWS[2], name="X100", **change)
    refuses(lambda: models._of_row(row), rf"^fplab/tensorcore/gpus\.py, row X100: {message}")


# --- an algorithm -----------------------------------------------------------------------------------------------------
TREEWISE = '''
"""Trees of FP32 additions: products of a group pairwise, then their sum onto c, every addition to nearest."""

import numpy as np

from ... import exact
from ..blocks import decided, in_format
from . import Unit


class Treewise(Unit):
    def step(self, a, b, c, model, scales):
        sums = [in_format(exact.mul(x, y)[0], model) for x, y in zip(a, b, strict=True)]
        while len(sums) > 1:
            sums = [in_format(exact.add(x, y)[0], model) for x, y in zip(sums[::2], sums[1::2], strict=True)]
        return [decided(in_format(exact.add(c, sums[0])[0], model), "tree")]

    def factors(self, model, a, b, scales):
        return (([], True) for _ in range(0, -(-len(a) // model.k) * model.k, model.length))

    def rows(self, model, a, b, c, scales):
        total, wide = c.view(np.float32), -(-a.shape[1] // model.length) * model.length
        x, y = (np.pad(v, ((0, 0), (0, wide - v.shape[1]))) for v in (a, b))
        for start in range(0, wide, model.length):
            sums = x[:, start : start + model.length] * y[:, start : start + model.length]
            while sums.shape[1] > 1:
                sums = sums[:, ::2] + sums[:, 1::2]
            total += sums[:, 0]

    def draw(self, model, k, count, rng):
        a, b = rng.standard_normal((2, count, k)).astype(np.float16).astype(np.float32)
        return {"a": a, "b": b, "c": rng.standard_normal(count).astype(np.float32)}


UNIT = Treewise()
'''
NPU = """    GPU("NPU1", "Trees", None, ("mma",),
        (Cell(_FP16, "fp32", 8, 0, None, (16,), kind="treewise", rounding="rne"),), vendor="Somebody"),
)  # fmt: skip"""


def test_an_algorithm_is_one_file_and_its_gpu_one_row(house: House) -> None:
    """Pairwise sums of eight products: no fused block at all, and no unit of the table."""
    (house.folder / "fplab/tensorcore/units/treewise.py").write_text(TREEWISE, encoding="utf-8")
    house.edit("tensorcore/gpus.py", ("\n)  # fmt: skip", f"\n{NPU}"))
    house.says("""
import numpy as np
import torch
from fplab.tensorcore import oracle
rng = np.random.default_rng(0)
a, b = (rng.standard_normal(shape).astype(np.float16).astype(np.float32) for shape in ((9, 40), (40, 7)))
model = tensorcore.get("NPU1")
got = tensorcore.matmul(a, b, np.float32(0.5), gpu=model, plan=tensorcore.Plan(split_k=2))
assert (got.view(np.uint32) != tensorcore.matmul(a, b, np.float32(0.5), gpu="H100").view(np.uint32)).any()
got = tensorcore.matmul(a, b, np.float32(0.5), gpu=model)
for i, j in np.ndindex(got.shape):
    want = oracle.dot(a[i].tolist(), b[:, j].tolist(), 0.5, model)
    assert oracle.result_bits(want, model) == got[i, j].view(np.uint32), (i, j)
assert tensorcore.trace(a[0], b[:, 0], 0.5, gpu=model).result == got[0, 0]
assert tensorcore.infer(lambda *x: tensorcore.dot(*x, gpu=model)).equals == (model.name,)
with nn.emulate("NPU1", inputs="fp16"):
    product = torch.from_numpy(a) @ torch.from_numpy(b)
assert np.array_equal(product.numpy(), tensorcore.matmul(a, b, gpu=model))
""")


def test_a_file_without_an_algorithm_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(units.named("fma").__class__.__module__ + ".UNIT")
    units.named.cache_clear()
    refuses(lambda: units.of(get("A100", "fp64")), r"^fplab/tensorcore/units/fma\.py has no UNIT")


# --- a recipe ---------------------------------------------------------------------------------------------------------
MXFP6 = '''@quotes_call
def mxfp6(*, attention: bool = False, **fields: Any) -> Recipe:
    """MXFP6 weights and MXFP8 activations in the forward product; gradients stay high."""
    forward = Product(Operand("mxfp8_e4m3"), Operand("mxfp6_e2m3"))
    return _finished(Recipe("mxfp6", forward), attention, fields)


RECIPES: dict'''


def test_a_recipe_is_a_function_and_its_name(house: House) -> None:
    house.edit("nn/recipes.py", ("RECIPES: dict", MXFP6), ("make in (mxfp8,", "make in (mxfp6, mxfp8,"))
    said = house.says("""
import torch
from fplab import memory, training
x, layer = torch.randn(32, 64), torch.nn.Linear(64, 32)
with nn.emulate("B200", recipe="mxfp6"):
    y = layer(x)
print((y != layer(x)).any().item())
print(memory.estimate("llama3-8b", recipe="mxfp6").total != memory.estimate("llama3-8b", recipe="mxfp8").total)
print(training.fit("digits_mlp", "mxfp6", steps=2, gpu="B200").losses.size)
try:
    nn.emulate("B200", recipe="mxfp7")
except fplab.LabError as error:
    print(error)
""")
    emulated, sized, steps, refused = said.splitlines()
    assert (emulated, sized, steps) == ("True", "True", "2")
    assert "mxfp6" in refused


# --- a widget ---------------------------------------------------------------------------------------------------------
BOUNDS = '''"""Bounds of a product's error by its length, on a GPU's unit."""

from dataclasses import dataclass

from .. import tensorcore
from ..bounds import gamma
from ..draw.page import panel, table, title
from ..words import say
from .shell import Control, shown


@dataclass(frozen=True)
class State:
    """``gpu``: whose unit; ``terms``: 2 to this power is the longest product."""

    gpu: str = "H100"
    terms: int = 14


def render(state: State) -> str:
    """A row for each length."""
    bounds = {2**i: gamma(2**i, state.gpu, "fp16") for i in range(2, state.terms + 1)}
    rows = [(f"{k:,}", f"{bound.worst:.2e}", f"{bound.probable:.2e}") for k, bound in bounds.items()]
    heads = [say("terms"), say("worst"), say("99%")]
    return panel(title(say("{gpu}: bounds of errors", gpu=state.gpu)), table(heads, rows))


CONTROLS = (
    Control("gpu", say("GPU"), options=tuple(tensorcore.GPUS)),
    Control("terms", say("terms: 2 to the power of"), low=2, high=20),
)


@shown(State, render, CONTROLS)
def widget(state: State) -> None:
    """Bounds of products on a GPU."""
'''


def test_a_widget_is_one_file_and_its_name(house: House) -> None:
    (house.folder / "fplab/widgets/error_bounds.py").write_text(BOUNDS, encoding="utf-8")
    house.edit("widgets/__init__.py", ("        gpus,\n", "        error_bounds,\n        gpus,\n"),
               ('"designer", "gpus"', '"designer", "error_bounds", "gpus"'))  # fmt: skip
    said = house.says("""
print("16,384" in widgets.error_bounds.render(widgets.error_bounds.State("V100")))
widgets.error_bounds.widget("V100")
try:
    widgets.error_bounds.widget("V101")
except fplab.LabError as error:
    print(error)
""")
    shown, refused = said.splitlines()
    assert shown == "True"
    assert "V101" in refused


# --- a rounding -------------------------------------------------------------------------------------------------------
OLD = '    ODD = "odd"'
NEW = '    RNZ = "rnz", "to nearest, ties toward zero", lambda share, odd, negative, word: share > HALF'
NUMBER = ('"stochastic": 6}\nRNE, RNA, RTZ, RTP, RTN, ODD, STOCHASTIC', '"stochastic": 6, "rnz": 7}\n'
          "RNE, RNA, RTZ, RTP, RTN, ODD, STOCHASTIC, RNZ")  # fmt: skip
ARM = ("    if mode == RNA:\n", "    if mode == RNZ:\n        return above > half or (above == half and sticky)\n"
       "    if mode == RNA:\n")  # fmt: skip


def test_a_rounding_is_one_row_and_its_kernel(house: House) -> None:
    house.edit("roundings.py", (OLD, f"{NEW}\n{OLD}"))
    said = house.says("""
try:
    fplab.quantize(1.0, "fp16", "rnz")
except fplab.LabError as error:
    print(error)
""")
    assert (
        "rounding='rnz' has a row in fplab/roundings.py and no kernel; give it a number in MODES and an arm in" in said
    )
    assert "fplab/kernels/rounding.py" in said
    house.edit("kernels/rounding.py", NUMBER, ARM)
    ended = house.run("-c", """
import fplab
from fplab import exact, widgets
values = fplab.decode(range(0x7C00), "fp16")
for fmt in ("e4m3", "e5m2", "e2m1", "e8m0"):
    codes = fplab.encode(values, fmt, "rnz", nan="zero").tolist()
    for x, got in zip(values.tolist()[::7], codes[::7], strict=True):
        assert got == exact.round_to(exact.from_float(x), fmt, "rnz", nan="zero")[0], (fmt, x)
assert "rnz" in str(widgets.rounding.render(widgets.rounding.State()))
assert "ties toward zero" in str(fplab.inspect("0.1", "fp16", rounding="rnz"))
""", FPLAB_LANG="zh")  # fmt: skip
    assert not ended.returncode, ended.stderr
    assert "rnz" in house.run("-m", "fplab", "inspect", "--help").stdout


def test_an_unknown_rounding_is_refused_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LabError, match=r"unknown rounding 'rnz'\. Allowed: rne, rna, rtz, rtp, rtn, odd, stochastic"):
        roundings.rounding("rnz")
    with pytest.raises(ValueError, match=r"has a number in MODES but no arm in _rounds_up, in fplab/kernels/rounding"):
        kernel._rounds_up.py_func(99, False, False, 1, 2, False, 0, 0)
    monkeypatch.delitem(kernel.MODES, "odd")
    with pytest.raises(LabError, match=r"rounding='odd' has a row in fplab/roundings\.py and no kernel"):
        plans.options(fplab.Format("x", 5, 10), "odd")


def test_every_rounding_has_its_kernel() -> None:
    assert set(kernel.MODES) == {mode.value for mode in fplab.Rounding}
    assert len(set(kernel.MODES.values())) == len(kernel.MODES)


# --- an experiment ----------------------------------------------------------------------------------------------------
HALVES = '''"""How often 1 can be halved."""

from .. import numeric
from ..words import say
from .frame import Experiment
from .outcomes import verdict
from .panels import line
from .quantities import of, within

E = Experiment(
    "Halving", "How often can 1 be halved?", budget=1, full={"start": 1.0}, quick={},
    gpu="Halving is a division by a power of two, which no device does otherwise.",
)


@E.measure("value", axes={"fmt": ("fp16", "bf16"), "halvings": ...}, digested=True)
def value(p, fmt):
    """What is left of 1 after so many halvings."""
    values = [p.start]
    while values[-1]:
        values.append(float(numeric.div(values[-1], 2.0, fmt)))
    return dict(enumerate(values))


def counted(fmt):
    return of("value", fmt=fmt).then(f"halvings in {fmt}", lambda x: x.count() - 1)


E.claim(within("halvings", "1 is halved 25 times in FP16", counted("fp16"), 25, 25))


@E.proved("in BF16 it is halved 109 times more")
def longer(r):
    more = int(counted("bf16").values(r)[0] - counted("fp16").values(r)[0])
    return verdict(more == 109, say("{n} halvings more", n=more))


E.figure("values", line("value", x="halvings", hue="fmt", log="y", title="Halving 1 until nothing is left"))
'''


def test_an_experiment_is_one_file_and_needs_no_chinese(house: House) -> None:
    (house.folder / "fplab/experiments/halving.py").write_text(HALVES, encoding="utf-8")
    ended = house.run("-m", "fplab", "run", "halving", "--claims", FPLAB_LANG="zh")
    assert not ended.returncode, ended.stdout + ended.stderr
    assert "109 halvings more" in ended.stdout
    assert len(HALVES.splitlines()) <= 60
    assert "1 is halved 25 times in FP16" in ended.stdout
    assert "halving: Halving" in house.run("-m", "fplab", "list").stdout
    assert (house.folder / "runs/quick/halving.svg").exists()
    assert (house.folder / "runs/quick/halving.csv").read_text(encoding="utf-8").count("\n") == 1 + 26 + 135

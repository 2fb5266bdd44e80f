"""What a use of the package imports, and what it works without: each in a process of its own."""

import pytest
from fresh import python

from fplab import experiments
from fplab.nn import recipes

# A use, and the libraries that it does not import.
LIGHT = [
    ("import fplab", "matplotlib numba torch"),
    ("dir(fplab), dir(fplab.nn), fplab.__doc__, fplab.nn.__doc__, fplab.training.__doc__", "matplotlib numba torch"),
    ("fplab.add(1, 2, 'fp16')", "matplotlib torch"),
    ("fplab.cli.main([])", "matplotlib numba numpy torch tqdm"),
    ("fplab.memory.estimate('llama3-405b', gpus=512, zero=3).table()", "matplotlib numba numpy torch"),
    ("fplab.training.digits()", "numba sklearn torch"),
    ("import fplab.formats", "ml_dtypes torch"),
    ("from fplab.widgets import bits; bits.render(bits.chosen(bits.State(), 0, 'dynamic_tree'))", "numba"),
    ("import fplab.draw.histogram, fplab.draw.numberline, fplab.draw.strip, fplab.draw.style as style\n"
     "with style.themed('dark'): style.new_figure().subplots()", "matplotlib.pyplot"),
]  # fmt: skip

PICTURES = """
for name in fplab.widgets.NAMES:
    widget = getattr(fplab.widgets, name)
    assert "<svg" in widget.render(widget.State())
fplab.course.figure("formats")._repr_html_()
try:
    fplab.widgets.bits.widget()
except fplab.LabError as error:
    print("ipywidgets is not installed, which this needs: pip install" in str(error))
"""
# The libraries that are missing, and what a use prints all the same.
WITHOUT = [
    ("numba", "import fplab.tensorcore.models, fplab.hardware.corpus", []),
    ("matplotlib ml_dtypes numba torch",
     "print(*(table.sha256[:8] for table in (fplab.codebooks.dynamic(), fplab.codebooks.linear())))\n"
     "print(len(fplab.codebooks.dynamic_tree()))", ["e732639a", "80bf4c55", "243"]),
    ("torch", "from fplab.nn.recipes import RECIPES\n"
     "print(*(name for name in RECIPES if fplab.memory.estimate('gpt2', recipe=name).total))", [*recipes.RECIPES]),
    ("matplotlib ml_dtypes numba torch", "import fplab.experiments.formats as formats\n"
     "print(formats.E.asks(formats.E.quick)[3].inputs()['codes'].size)", ["256"]),
    ("", "print(fplab.training.scalers.__name__, fplab.training.policies.get('fp32').name)",
     ["fplab.training.scalers", "fp32"]),
    ("ipywidgets matplotlib torch", PICTURES, ["True"]),
    ("gfloat gmpy2 llvmlite matplotlib ml_dtypes numba scipy sklearn torch tqdm", "from fplab.experiments import *\n"
     "print(*(name for name in NAMES if load(name).asks(load(name).quick) or True))", [*experiments.NAMES]),
]  # fmt: skip


def printed(code: str) -> list[str]:
    return python(f"import sys; import fplab.cli\n{code}", warnings="error").split()


@pytest.mark.parametrize(("use", "heavy"), LIGHT)
def test_nothing_heavy_is_imported_before_it_is_needed(use: str, heavy: str) -> None:
    assert printed(f"{use}\nprint('imported:', *{{*{heavy.split()}}} & {{*sys.modules}})")[-1] == "imported:"


@pytest.mark.parametrize(("missing", "use", "wanted"), WITHOUT)
def test_what_needs_little_works_where_little_is_installed(missing: str, use: str, wanted: list[str]) -> None:
    assert printed(f"sys.modules.update(dict.fromkeys({missing.split()}))\n{use}") == wanted

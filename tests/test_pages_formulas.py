"""Formulas as MathML and papers as links: structure held against the text that was typed."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from fplab.pages import formulas

markdown_it = pytest.importorskip("markdown_it")
ROOT = Path(__file__).parent.parent
TYPED = ("θ ← θ − lr · m̂ / (√v̂ + ε)", "m ← β₁m + (1 − β₁)g", "v ← β₂v + (1 − β₂)g²", "v̂ = v / (1 − β₂ᵗ)")


@pytest.mark.parametrize("formula", TYPED)
def test_a_formula_keeps_every_sign(formula):
    """Read off the tree, with a fraction's slash and a root's sign put back, it is what was typed."""

    def typed(node: ET.Element) -> str:
        inside = [typed(child) for child in node]
        below = {"₀": "0"} | dict(zip("₁₂²ᵗ", "122t", strict=True))
        if node.tag == "mfrac":
            return f"{inside[0]}/{inside[1]}"
        if node.tag == "msqrt":
            return "√" + "".join(inside)
        if node.tag == "mover":
            return inside[0] + "\u0302"
        if node.tag in ("msub", "msup", "msubsup"):
            marks = [next(k for k, v in below.items() if v == text and (k in "₁₂") == (place == "sub"))
                     for place, text in zip(re.findall("sub|sup", node.tag), inside[1:], strict=True)]  # fmt: skip
            return inside[0] + "".join(marks)
        return (node.text or "") + "".join(inside)

    made = typed(ET.fromstring(formulas.mathml(formula)))
    plain = re.sub(r"\s", "", formula)
    assert made in (plain, re.sub(r"/\((.*)\)$", r"/\1", plain))


def test_adams_formulas_are_mathml_on_its_page_and_papers_are_links():
    cells = json.loads((ROOT / "notebooks" / "08_master_weights_and_optimizers.ipynb").read_text("utf-8"))["cells"]
    source = next(
        "".join(c["source"]) for c in cells if "θ ← θ − lr" in "".join(c["source"]) and "|---" in "".join(c["source"])
    )
    page = formulas.typeset(markdown_it.MarkdownIt().enable("table").render(source))
    assert page.count("<math>") == 10  # five in each language
    assert "<msqrt><mover" in page
    assert formulas.typeset("<p>arXiv 1710.03740, <a href='x'>arXiv 1412.6980</a></p>").count("<a ") == 2

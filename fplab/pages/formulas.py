"""Formulas that are typed as text as MathML, and papers that are named by number as links."""

import html
import re

PART = re.compile(
    r"\s*(?:(?P<number>\d+)|(?P<name>lr|[^\W\d_](?P<hat>\u0302)?)|(?P<mark>\S))(?P<low>[₀-₉]*)(?P<high>[²³ᵗ]*)"
)
PLAIN = str.maketrans("₀₁₂₃₄₅₆₇₈₉²³ᵗ", "012345678923t")
CELL = re.compile(r"(<td>(?:<p>)?)([^<]* ← [^<]*|\w\u0302 = [^<]*)(?=(?:</p>)?</td>)")
PAPER = re.compile(r"<a\b.*?</a>|<pre\b.*?</pre>|<[^>]*>|(arXiv (\d{4}\.\d{4,5}))", re.S)


def mathml(formula: str) -> str:
    """A formula as MathML.

    >>> mathml("v̂ = v / (1 − β₂ᵗ)").partition("<mo>=</mo>")[2]  # a fraction needs no parentheses
    '<mfrac><mi>v</mi><mrow><mn>1</mn><mo>−</mo><msubsup><mi>β</mi><mn>2</mn><mi>t</mi></msubsup></mrow></mfrac></math>'
    """
    open_ones: list[list[str]] = [[]]
    for found in PART.finditer(formula.strip()):
        mark = found["mark"]
        if mark == "(":
            open_ones.append([])
        elif mark == ")":
            inside = open_ones.pop()
            open_ones[-1].append(f"<mrow><mo>(</mo>{''.join(_joined(inside))}<mo>)</mo></mrow>")
        else:
            open_ones[-1].append(_scripted(found))
    return f"<math>{''.join(_joined(open_ones[0]))}</math>"


def _scripted(found: re.Match[str]) -> str:
    """A number, a name or a sign with what is written below and above it."""
    if found["mark"]:
        return f"<mo>{html.escape(found['mark'])}</mo>"
    base = f"<mn>{found['number']}</mn>" if found["number"] else f"<mi>{found['name'].rstrip(chr(0x302))}</mi>"
    if found["hat"]:
        base = f'<mover accent="true">{base}<mo>^</mo></mover>'
    low, high = found["low"].translate(PLAIN), found["high"].translate(PLAIN)
    scripts = [f"<mn>{text}</mn>" if text.isdigit() else f"<mi>{text}</mi>" for text in (low, high) if text]
    tag = f"m{'sub' * bool(low)}{'sup' * bool(high)}"
    return f"<{tag}>{base}{''.join(scripts)}</{tag}>" if scripts else base


def _joined(parts: list[str]) -> list[str]:
    """Roots over what follows them, and fractions of what is on both sides of a slash."""
    done: list[str] = []
    waiting = ""
    for part in parts:
        if waiting == "<mo>√</mo>":
            done.append(f"<msqrt>{part}</msqrt>")
        elif waiting:
            below = part.replace("<mrow><mo>(</mo>", "<mrow>", 1).removesuffix("<mo>)</mo></mrow>")
            done.append(f"<mfrac>{done.pop()}{below}{'' if below == part else '</mrow>'}</mfrac>")
        elif part not in ("<mo>√</mo>", "<mo>/</mo>"):
            done.append(part)
        waiting = part if not waiting and part in ("<mo>√</mo>", "<mo>/</mo>") else ""
    return done


def typeset(page: str) -> str:
    """Prose in HTML with the formulas of its tables as MathML, and every arXiv number a link.

    >>> typeset("<td>see arXiv 1710.03740</td>")
    '<td>see <a href="https://arxiv.org/abs/1710.03740">arXiv 1710.03740</a></td>'
    """
    page = CELL.sub(lambda cell: cell[1] + mathml(html.unescape(cell[2])), page)
    return PAPER.sub(lambda one: f'<a href="https://arxiv.org/abs/{one[2]}">{one[1]}</a>' if one[1] else one[0], page)

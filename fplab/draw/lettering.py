"""The words of a figure in the chosen language: looked up as it is drawn, in a font of the system that has its letters.

A figure is written in English where it is made, ``ax.set_xlabel("step")``. Its Chinese stands in the catalogue under
the context "figure"; what an f-string fills in has a name there, ``"segments of {n}"``, and may be looked up itself.
What has no Chinese stays as it is; without a font for it the whole figure does, and a line says so.
"""

import functools
import re
import sys
from collections.abc import Mapping

from matplotlib import font_manager
from matplotlib.artist import Artist
from matplotlib.axis import Axis
from matplotlib.category import UnitData
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter

from ..language import lang
from ..words import FIGURE, SOURCE, patterns, say

LATIN = "DejaVu Sans"  # matplotlib brings it, and it has no Chinese
CHINESE = (  # families, the first that is there: of Linux, macOS and Windows; Japanese forms before none
    "Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN", "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei", "PingFang SC", "Heiti SC", "Hiragino Sans GB", "STHeiti", "Microsoft YaHei", "SimHei",
    "Noto Sans CJK JP", "Droid Sans Fallback", "Arial Unicode MS",
)  # fmt: skip
STAYS = say("figures stay in English: no font here has Chinese; install one, such as Debian's fonts-noto-cjk.")
MATH = re.compile(r"\$[^$]*\$")
WORD = re.compile(r"(?<![\w.-])[a-z]{4,}(?![\w.-])")  # of English, and no part of a name


@functools.cache
def chinese() -> str | None:
    """A family of this system that has Chinese, or None, which is said once."""
    there = {font.name for font in font_manager.fontManager.ttflist}
    if there.isdisjoint(CHINESE):  # matplotlib's list may be older than the font
        for path in font_manager.findSystemFonts():
            if re.search(r"CJK|SC-|wqy|hei|yahei", path, re.I):
                font_manager.fontManager.addfont(path)
        there = {font.name for font in font_manager.fontManager.ttflist}
    installed = next((name for name in CHINESE if name in there), None)
    if installed is None:
        print(STAYS, file=sys.stderr)
    return installed


def language() -> str:
    """The language that a figure can be lettered in: the chosen one, or English where no font has it."""
    return lang() if lang() == SOURCE or chinese() else SOURCE


def families() -> list[str]:
    """The fonts of a figure's text: a letter is taken from the first that has it."""
    return [LATIN] if language() == SOURCE else [str(chinese()), LATIN]


def translated(text: str, language: str) -> str:
    """A text of a figure in another language, as :func:`fplab.words.patterns.translated` finds it."""
    return patterns.translated(text, FIGURE, language, _is_whole)


def _is_whole(value: str) -> bool:
    """Whether no English is left in what was filled in: half of another sentence of the same build is no help."""
    return not WORD.search(MATH.sub("", value))


def letter(figure: Artist, language: str) -> None:
    """Put every text of a figure, tick labels included, into a language."""
    for axis in figure.findobj(Axis):
        formatter = axis.get_major_formatter()
        if isinstance(formatter, FuncFormatter) and isinstance(formatter.func, functools.partial):
            labels = formatter.func.args[0]  # of Axis.set_ticks: from places to labels
        elif isinstance(axis.units, UnitData):  # what was drawn against names
            labels = {place: name for name, place in axis.units._mapping.items()}
            axis.set_major_formatter(FuncFormatter(functools.partial(label_at, labels)))
        else:
            continue
        labels.update({place: translated(str(label), language) for place, label in labels.items()})
    fonts = [name for name in (chinese(), LATIN) if name]
    for text in figure.findobj(Text):
        text.set_text(translated(text.get_text(), language))
        if not text.get_text().isascii() and "monospace" not in text.get_fontfamily():  # digits in columns
            text.set_fontfamily(fonts)  # the text may have been made where no theme was chosen


def label_at(labels: Mapping[float, str], place: float, index: int) -> str:
    """The label of a tick; none where there is none."""
    return labels.get(place, "")

"""What is left of English in a figure that is lettered in Chinese, beside names, code and units."""

import html
import re
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axis import Axis
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter

from fplab.draw import lettering

# Formats, their codes and fields; GPUs; layers, tensors, torch's operations; rules, recipes and methods; units.
NAMES = re.compile(
    r"\$[^$]*\$|\b[0-9a-f]{8,16}\b|(?:FP|BF|TF|XF|INT|fp|bf|tf|int|NVFP|MXFP|float)\d+|[eE]\d[mM]\d\w*|NF4|SHA|NaN|UCI|"
    r"RTXPRO6000|Ada\b|Hopper|Hadamard|Blackwell|CDNA|Matrix Core|Tensor Core|mfma|(?:wg)?mma|tcgen05|AVX\w*|AMX|AMD|"
    r"AArch64|FPCR\.EBF|SVE|SME|RISC-V|"
    r"GPU|CPU|blocks\.[\w.]+|conv\d|linear|relu|pool|flatten|\d\.(?:weight|bias|qkv|out|up|down)|logits|alpha|value|rank|top-1|ulp|nat\b|GiB|"
    r"torch\S*|\+cpu|add\w*|sub|mul|div|sqrt|fma|reciprocal|lerp(?: far)?|exp\w*|log\w*|tanh|sigmoid|rsqrt|sin|cos|"
    r"pow|sum|mean|norm|softmax|floor|even|r?ceil|4 over 6|rn[ae]|MSE|absmax|LLM\.int8\(\)|adamw8bit|Adam\w*|SGD|"
    r"FSDP|ZeRO|Sequential|gpipe|GPipe|1F1B|GPT|Llama|Transformer|Korthikanti|DeepSeek|Ozaki|GMRES|Kahan|momentum_buffer"
)


def words_left(figure: Any) -> list[str]:
    """The texts of a figure, tick labels included, in which a word has no Chinese."""
    lettering.letter(figure, "zh")
    said = {text.get_text() for text in figure.findobj(Text)}
    for axis in figure.findobj(Axis):
        formatter = axis.get_major_formatter()
        if isinstance(formatter, FuncFormatter) and isinstance(formatter.func, partial):
            said |= set(formatter.func.args[0].values())
    return sorted(filter(english, said))


def english(text: str) -> bool:
    """Whether a word is left that is no name."""
    return bool(re.search("[A-Za-z]{3}", NAMES.sub("", text)))


def texts_drawn(svg: Path) -> list[str]:
    """The texts of a figure that is kept: matplotlib draws outlines, with what they say in a comment above."""
    found = re.findall(r"<!--\s*(.*?)\s*-->|<text[^>]*>([^<]*)</text>", svg.read_text(encoding="utf-8"), re.DOTALL)
    return [html.unescape(outlined or text) for outlined, text in found]

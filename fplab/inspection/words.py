"""The words of an inspection in both languages. Its data (``to_dict``, names of classes and flags) keeps the English.

>>> str(CLASSES["subnormal"])
'subnormal'
"""

from __future__ import annotations

from ..formats import Rounding
from ..language import Text

NOTHING = Text("", "")

CLASSES = {
    "normal": Text("normal", "正规数"),
    "subnormal": Text("subnormal", "次正规数"),
    "zero": Text("zero", "零"),
    "infinite": Text("infinite", "无穷"),
    "quiet NaN": Text("quiet NaN", "静默 NaN"),
    "signalling NaN": Text("signalling NaN", "信号 NaN"),
}
FLAGS = {
    "invalid": Text("invalid", "无效"),
    "divide by zero": Text("divide by zero", "除以零"),
    "overflow": Text("overflow", "上溢"),
    "underflow": Text("underflow", "下溢"),
    "inexact": Text("inexact", "不精确"),
}
_ROUNDINGS = {
    Rounding.RNE: "向最近舍入，平局取偶",
    Rounding.RNA: "向最近舍入，平局远离零",
    Rounding.RTZ: "向零舍入",
    Rounding.RTP: "向正无穷舍入",
    Rounding.RTN: "向负无穷舍入",
    Rounding.ODD: "向奇数舍入：不精确时取末位为 1 的邻居",
}
ROUNDINGS = {
    mode: Text(told := f"rounded {mode.text}", _ROUNDINGS.get(mode, told)) for mode in Rounding if not mode.random
}

# How a value was taken, after the value itself and a colon.
EXACT = Text("exact", "精确值")
AS_WRITTEN = Text("as written", "按字面取值")
RATIO = Text("the exact ratio", "精确的分数")
HEXADECIMAL = Text("the exact hexadecimal number", "精确的十六进制数")
DECIMAL = Text("the exact decimal as written, not its nearest float", "按字面精确取值的十进制数，不是最接近它的浮点数")
ROUNDED = Text("a {type}, which is already rounded", "类型为 {type}，本身已经过舍入")
OF_A_CODE = Text("the number this code of {format} stands for", "{format} 的这个编码所表示的数")

# Why a format cannot hold a value.
NO_NAN = Text("{format} has no NaN", "{format} 没有 NaN")
NO_ZERO = Text("{format} has no zero and no NaN to say so", "{format} 没有零，也没有 NaN 来表明这一点")
NO_SIGN = Text("{format} has no sign and no NaN to say so", "{format} 没有符号，也没有 NaN 来表明这一点")

# The labelled lines of a format.
VALUE, ERROR, STATUS = Text("value", "值"), Text("error", "误差"), Text("flags", "标志")
BELOW, ABOVE = Text("below", "下邻"), Text("above", "上邻")
NONE, UNDEFINED, INFINITE = Text("none", "无"), Text("undefined", "未定义"), Text("infinite", "无穷")
NO_ERROR = Text("0 (exact)", "0（精确）")
IN_ULPS = Text("{ulps} ulp, absolute {absolute}", "{ulps} ulp，绝对误差 {absolute}")
RELATIVE = Text(", relative {relative}", "，相对误差 {relative}")

ULP_MEANS = Text(
    "ulp: the spacing of the format's values in the binade of the stored value.",
    "ulp：存下的值所在的二进区间内，该格式相邻两数的间距。",
)
COLON, ENUMERATION = Text(": ", "："), Text(", ", "、")

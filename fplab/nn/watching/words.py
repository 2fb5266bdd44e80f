"""The words of a watch's reports in both languages. Its data (kinds, layers, tensors, formats) keeps the English.

>>> str(kind("weight gradients")), kind("state exp_avg").zh
('weight gradients', '状态 exp_avg')
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...columns import padded
from ...language import Text

LABEL = 12  # columns of the word in front of a sentence of advice

_KINDS = {
    "activations": "激活值",
    "activation gradients": "激活梯度",
    "weight gradients": "权重梯度",
    "gradients": "梯度",
    "updates": "更新",
    "weights": "权重",
    "initial weights": "初始权重",
    "buffers": "缓冲区",
    "input": "输入",
    "loss": "损失",
}
_TENSORS = {"the model's input": "模型的输入", "the loss": "损失", "the scaled loss": "缩放后的损失"}


def kind(name: str) -> Text:
    """A kind of tensor; an optimizer's state keeps the optimizer's name for it."""
    if name.startswith("state "):
        return Text(name, "状态" + name.removeprefix("state"))
    return Text(name, _KINDS.get(name, name))


def tensor(name: str) -> Text:
    """A tensor by its name in the model, or what is said in place of one."""
    if (layer := name.removeprefix("the input of ")) != name:
        return Text(name, f"{layer} 的输入")
    return Text(name, _TENSORS.get(name, name))


def joined(texts: Iterable[Text | str], by: Text | None = None) -> Text:
    """Texts one after another, between them a comma unless ``by`` says what."""
    both = [text if isinstance(text, Text) else Text(text, text) for text in texts]
    by = by or Text(", ", "、")
    return Text(by.en.join(t.en for t in both), by.zh.join(t.zh for t in both))


def named(names: Sequence[str], most: int, more: Text) -> Text:
    """The first names; ``more`` says how many others there are."""
    shown = joined(names[:most])
    return joined((shown, more.fill(n=len(names) - most)), NEXT) if len(names) > most else shown


def advice(label: Text, text: Text) -> Text:
    """A sentence behind its label."""
    return Text(padded(label.en, LABEL) + text.en, padded(label.zh, LABEL) + text.zh)


NEXT, AND, SEMICOLON = Text("", ""), Text(" and ", "、"), Text("; ", "；")
NOTHING = Text("", "")

# --- the head ---------------------------------------------------------------------------------------------------

HEADLINE = Text(
    "{model} with {optimizer}: {steps} steps{skipped}{part}", "{model}，{optimizer}：{steps} 步{skipped}{part}"
)
SKIPPED = Text(", {n} skipped by the loss scaler", "，其中损失缩放器跳过 {n} 步")
COUNTED = Text(", {n} of them counted", "，统计了其中 {n} 步")
DIVIDED = Text(
    "gradients are shown divided by the run's loss scale ({between})", "梯度均已除以训练所用的损失缩放（{between}）"
)
BETWEEN = Text("{low} to {high}", "{low} 到 {high}")
GOES_ON = Text(
    "the run broke at step {step}; the counts below go on after it: mend that first, then watch again",
    "训练在第 {step} 步出了问题；下面的统计包括此后各步：先解决它，再重新观察",
)
FEW = Text(
    "few steps: the advice is about the {n} counted alone; watch more, or count every one with every=1",
    "步数很少：下面的建议只针对所统计的 {n} 步；请观察更多步，或统计每一步",
)
UNREAD = Text("not read (no values on this machine): {names}", "未读取（其值不在本机）：{names}")

# --- what broke -------------------------------------------------------------------------------------------------

BROKEN, BLANK = Text("NOT FINITE", "非有限值"), Text("", "")
NONE_BROKEN = Text("nothing: no infinity and no NaN in any step", "没有：任何一步都未出现无穷大或 NaN")
LIKELY = Text("likely: {cause}", "可能的原因：{cause}")
EVENT = Text("step {step}, {what}: {values}{was}{ended}", "第 {step} 步，{what}：{values}{was}{ended}")
WHOSE = Text("{kind} of {tensor}", "{tensor} 的{kind}")
OF_VALUES = Text("{found} of {size:,} values", "{size:,} 个值中有 {found}")
INFINITE, NAN = Text("{n:,} infinite", "{n:,} 个无穷大"), Text("{n:,} NaN", "{n:,} 个 NaN")
WAS = Text("; finite until step {step}, then at most {most:.3g}", "；直到第 {step} 步仍是有限的，当时最大为 {most:.3g}")
STEP_SKIPPED = Text("; the loss scaler skipped this step", "；损失缩放器跳过了这一步")

_BACKWARD = Text(
    "the forward pass was finite and the backward pass is not: the loss, or a derivative here, overflows",
    "前向传播是有限的，反向传播却不是：损失或这里的某个导数上溢",
)
_UPDATE = Text(
    "the gradients were finite and the update is not: the optimizer divides by zero or overflows",
    "梯度是有限的，更新却不是：优化器除以零或上溢",
)
CAUSES = {
    "input": Text(
        "the data holds it already: look at the batch, not at the model", "数据里本来就有：要查的是这批数据，不是模型"
    ),
    "initial weights": Text(
        "there before the first step: a damaged checkpoint or a wrong initialisation",
        "第一步之前就已存在：检查点损坏，或初始化有误",
    ),
    "activations": Text(
        "beyond the largest value of its format: a lower learning rate, or hold it in BF16 or FP32",
        "超过了所在格式的最大值：降低学习率，或用 BF16、FP32 保存",
    ),
    "activation gradients": _BACKWARD,
    "weight gradients": _BACKWARD,
    "updates": _UPDATE,
    "weights": Text(f"{_UPDATE.en}, or something else wrote to it", f"{_UPDATE.zh}，或者别的代码改写了它"),
    "buffers": Text(
        "this layer used a buffer that holds it: look at its running statistics, or at what else writes to it",
        "该层用到的缓冲区里已有它：查看其滑动统计量，或还有什么代码改写它",
    ),
}
OF_A_STATE = Text(
    "the optimizer's state overflows its format: hold it in FP32", "优化器状态超出了所在格式的范围：用 FP32 保存"
)
SCALE_TOO_LARGE = Text(
    "the loss scale {scale} is too large here: a dynamic scaler skips the step and halves it",
    "损失缩放 {scale} 在这里太大：动态缩放器会跳过这一步并把它减半",
)
LOSS_BREAKS = Text(
    "the loss does not survive its scale of {scale}: scale less, or look at the loss",
    "损失承受不住缩放 {scale}：减小缩放，或检查损失本身",
)
CHANGED = Text(
    "not the optimizer's doing, whose last step left it finite: look at what else writes to it or rounds it",
    "不是优化器造成的，它上一步之后仍是有限的：查看还有什么代码改写或舍入了它",
)
NO_MODULE = Text(
    "no module returned it: look at the functions called before this layer, or at the batch",
    "它不是任何模块的输出：查看这一层之前调用的函数，或这批数据",
)
MASK = Text(
    "minus infinity alone, and all else in the step is finite: a mask, or a logarithm of zero that the loss never used",
    "只有负无穷，而这一步的其他值都有限：掩码，或损失没有用到的零的对数",
)
LOG_OF_ZERO = Text(
    "minus infinity alone: the logarithm of zero (log_softmax in place of log(softmax) has none), or a mask that "
    "reached the loss",
    "只有负无穷：对零取了对数（把归一化与取对数合成一步即可避免），或掩码进入了损失",
)
NO_INFINITY = Text(
    "no infinity came before this NaN: 0/0, inf - inf, or a log or root of a negative number in this layer",
    "这个 NaN 之前没有出现过无穷大：该层中有 0/0、inf - inf，或对负数取对数、开方",
)

# --- the loss scale ---------------------------------------------------------------------------------------------

LOSS_SCALE = Text("LOSS SCALE", "损失缩放")
UNSCALED = Text("of the non-zero gradients {share} vanish without a scale", "不缩放时，变成零的占非零梯度的 {share}")
NONE_NEEDED = Text(
    "{format}: none needed ({evidence}, none overflow{up})", "{format}：不需要（{evidence}，没有上溢{up}）"
)
UP_TO = Text("; any up to 2^{high} is safe", "；直到 2^{high} 都安全")
AT = Text(
    "{vanish} vanish and {subnormal} are subnormal at 2^{log2}, {overflow:,} overflow",
    "取 2^{log2} 时变成零的占 {vanish}，次正规数占 {subnormal}，{overflow:,} 个上溢",
)
SCALE = Text(
    "{format}: 2^{log2} = {scale:,} ({evidence}; {at}; every layer stands 2^{low} to 2^{high})",
    "{format}：2^{log2} = {scale:,}（{evidence}；{at}；每一层都承受得住 2^{low} 到 2^{high}）",
)
NO_SCALE = Text(
    "{format}: no single scale serves every layer; at 2^{log2} {layers} would lose too much or overflow "
    "({evidence}; {at})",
    "{format}：没有哪个缩放适合所有的层；取 2^{log2} 时，{layers} 会丢失过多或上溢（{evidence}；{at}）",
)
UNRESOLVED = Text(
    "{share} of the non-zero gradients lie below 2^-24 of their layer's largest, where FP32's own rounding makes such "
    "values of an exact zero (the first query of a causal attention, biases of keys): no format is judged by them",
    "{share} 的非零梯度小于所在层最大值的 2^-24；理论上恰为零的梯度（因果注意力的第一个查询、键的偏置）在 FP32 中舍入后"
    "就是这样：不据此评判任何格式",
)
MORE, MORE_LAYERS = Text(" and {n} more", " 及另外 {n} 层"), Text(" and {n} more layers", " 及另外 {n} 层")

# --- what stays wide, what may be narrower ----------------------------------------------------------------------

WEIGHTS, STAYS = Text("WEIGHTS", "权重"), Text("STAYS FP32", "保留 FP32")
NO_COPY = Text("no FP32 copy needed in {formats}", "{formats} 不需要 FP32 副本")
NO_VERDICT = Text(
    "whether an FP32 copy is needed cannot be told from a run that went infinite or NaN",
    "训练中出现过无穷大或 NaN，无法判断是否需要 FP32 副本",
)
MASTER = Text("the weights' master copy", "权重的主副本")
OF_UPDATES = Text("{verdict}: of {moved:,} updates {shares}", "{verdict}：{moved:,} 次更新中，{shares}")
WOULD_LOSE = Text(
    "{format} would lose {share}, too many in {bad} of {layers} layers",
    "{format} 会丢失 {share}，{layers} 层中有 {bad} 层丢失过多",
)
WORST = Text("{share} ({layer} {most})", "{share}（最多的层 {layer}：{most}）")
STILL = Text(
    "and {n:,} weights with a gradient did not move in the format they are in, too many in {bad} of {layers} layers",
    "此外有 {n:,} 个权重虽有梯度，却在当前的格式中没有移动，{layers} 层中有 {bad} 层过多",
)
STATE = Text("{kind} in {unfit} of {layers} layers ({parts})", "{kind}，{layers} 层中的 {unfit} 层（{parts}）")
VANISH = Text("{format}: {share} vanish{changes}", "{format}：变成零的占 {share}{changes}")
CHANGES = Text(", {share} of its changes lost", "，变化丢失的占 {share}")
OF_LAYERS = Text("{kind} of {layers}", "{layers} 的{kind}")
NOT_JUDGED = Text("NO VERDICT", "无法判断")
ALL_BROKEN = Text("{layers}: some tensors held infinities and NaN alone", "{layers}：有的张量只含无穷大或 NaN")
BITS = Text("{bits} BITS", "{bits} 位")
FITS = Text("{kind}: of {n} tensors {counts}{own}{rest}", "{kind}，{n} 个张量：{counts}{own}{rest}")
IN, IN_NONE = Text("{n} in {format}", "{n} 个可用 {format}"), Text(", {n} in none", "，{n} 个都不可用")
OWN_SCALE, NO_FORMAT = Text(" at a scale of their own", "（各自缩放）"), Text("none", "没有可用的")

# --- the table --------------------------------------------------------------------------------------------------

HEADS = (Text("layer", "层"), Text("kind", "种类"), Text("zero", "零"), Text("binades", "二进区间"))
IN_BITS, ALL = Text("in {bits} bits", "{bits} 位可用"), Text("(all)", "（全部）")
NONE, LOST = Text("none", "无"), Text("lost {share}", "丢失 {share}")
LEGEND = Text(
    "in each format: vanish / underflow / overflow, of the non-zero values, unscaled; updates and states: changes lost",
    "各格式：变成零 / 次正规数 / 上溢，占未缩放的非零值的比例；更新与状态：丢失的变化",
)
SHORTENED = Text(
    "{shown} of {rows} rows: the whole model, and layers unlike it; all: report.table()",
    "{rows} 行中的 {shown} 行：整个模型，以及与之不同的层；全部见 report.table()",
)

# --- two runs ---------------------------------------------------------------------------------------------------

CALL = Text(", call {n}", "，第 {n} 次调用")
PARTING = Text("step {step}{gap}, {name}{values}", "第 {step} 步{gap}，{name}{values}")
GAP = Text(" (the steps after {after} were not kept)", "（第 {after} 步之后的各步没有保留）")
AGAINST = Text(", {one:.9g} against {other:.9g}", "，{one:.9g} 与 {other:.9g}")
COMPARED = Text(
    "{n} steps ({first} to {last}), {tensors} tensors in each{left}",
    "{n} 步（{first} 到 {last}），每步 {tensors} 个张量{left}",
)
LEFT = Text(
    "; {only} are in one run alone, first {name}, and were not compared",
    "；另有 {only} 个只在其中一次运行中，第一个是 {name}，未比较",
)
SAME = Text("every bit is the same in {compared}", "每一位都相同：{compared}")
WAS_COMPARED = Text("compared {compared}", "比较了 {compared}")
FIRST_BIT = Text("first bit: {parting}", "最先不同的位：{parting}")
FAR = Text("{ulps:g} ulp of {format}", "{format} 的 {ulps:g} ulp")
NEVER = Text("for good: never; every tensor comes back to within {far}", "从此分开：没有；每个张量都会回到 {far} 之内")
FOR_GOOD = Text(
    "for good: {parting}; more than {far} apart from then on (there {distance:.3g})",
    "从此分开：{parting}；此后一直相距 {far} 以上（那里为 {distance:.3g}）",
)

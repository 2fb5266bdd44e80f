"""The words of an estimate's table in both languages. Its data (``as_dict``, names of kinds) keeps the English.

>>> KINDS["master"].zh, str(term("all-gather"))
('主权重', 'all-gather')
"""

from __future__ import annotations

from ..language import Text

KINDS = {
    "parameters": Text("parameters", "参数"),
    "gradients": Text("gradients", "梯度"),
    "master": Text("master weights", "主权重"),
    "states": Text("optimizer states", "优化器状态"),
    "activations": Text("activations", "激活值"),
    "temporary": Text("temporary", "临时"),
    "buffers": Text("buffers", "缓冲"),
    "kv cache": Text("keys and values", "键与值"),
}
TERMS = {  # temporaries, what is sent, and how
    "gathered chunks": "收集来的分块",
    "gathered layer, next layer": "收集来的一层与下一层",
    "gradients of a layer": "一层的梯度",
    "16-bit casts of the weights": "权重的 16 位转换副本",
    "8-bit casts of the layers' weights": "各层权重的 8 位转换副本",
    "DDP buckets": "DDP 的桶",
    "buckets": "桶",
    "a layer computed again": "重新计算的一层",
    "gradients of the logits": "logits 的梯度",
    "logits": "logits",
    "activations of a layer": "一层的激活值",
    "attention scores and their softmax": "注意力分数及其 softmax",
    "gradients": "梯度",
    "parameters": "参数",
    "gradients to CPU memory": "送往 CPU 内存的梯度",
    "updated parameters from CPU memory": "从 CPU 内存取回的已更新参数",
    "parameters from CPU memory": "从 CPU 内存取来的参数",
    "activations of layers": "各层的激活值",
    "activations to the next stage": "送往下一阶段的激活值",
    "gradients to the stage before": "送往前一阶段的梯度",
    "all-reduce": "全归约",
    "reduce-scatter": "归约散射",
    "all-gather": "全收集",
    "send": "点对点发送",
    "host": "经主机链路",
}


def term(english: str) -> Text:
    """A name that an estimate gives to a temporary, or to what is sent."""
    return Text(english, TERMS.get(english, english))


def model(english: str) -> Text:
    """The name of a model, which for a bare number of parameters is that number."""
    number, _, unit = english.partition(" ")
    return Text(english, f"{number} 个参数" if unit == "parameters" else english)


NOTHING, COMMA, SEMICOLON = Text("", ""), Text(", ", "，"), Text("; ", "；")

# --- the title --------------------------------------------------------------------------------------------------

PARAMETERS = Text("{n:,} parameters", "{n:,} 个参数")
INFERENCE, OFFLOAD = Text("inference in {format}", "以 {format} 推理"), Text("offloading {what}", "卸载 {what}")
RECOMPUTE = Text("recomputation {how}", "重计算 {how}")
TOKENS, TIMES = Text("{batch:,} x {tokens:,} tokens{more}", "{batch:,} x {tokens:,} 个词元{more}"), " x {n:,}"
DEGREES = {
    "data": Text("data {n}", "数据并行 {n}"),
    "tensor": Text("tensor {n}", "张量并行 {n}"),
    "pipeline": Text("pipeline {n}", "流水线 {n}"),
}
GPUS = Text("{n} GPU{s}{degrees}", "{n} 块 GPU{degrees}")
BRACKETS = Text(" ({inside})", "（{inside}）")

# --- bytes ------------------------------------------------------------------------------------------------------

FULLEST, WHO, TOTAL = (
    Text("on the fullest rank", "最满的 rank"),
    Text("who takes what", "各占多少"),
    Text("total", "合计"),
)
BYTES, ON_CPU = Text("bytes", "字节"), Text("CPU memory, GB", "CPU 内存，GB")
TEMPORARY = Text("temporary: {details}", "临时：{details}")
DETAIL = Text("{name} {size}", "{name} {size}")
UNCOUNTED = Text("not counted: activations; {lacking}", "未计入：激活值；{lacking}")
NEEDS_LAYERS = Text("they follow from the layers, not from a number of parameters", "它取决于各层，不能由参数个数得出")
NEEDS_INPUTS = Text(
    "give inputs=, the arguments of a module's forward pass, and they are traced",
    "给出 inputs=（模块前向传播的参数）即可追踪得到",
)
STAGES = (
    Text("stage", "阶段"), Text("layers", "层数"), Text("model states, GB", "模型状态，GB"),
    Text("activations, GB", "激活值，GB"), Text("total, GB", "合计，GB"),
)  # fmt: skip
SENT = Text("sent by one rank in a step:", "一个 rank 每步发送：")
MESSAGE, REPEATED = Text("{collective} of {size}", "{collective} {size}"), Text(", {n} times", "，{n} 次")

# --- what fits --------------------------------------------------------------------------------------------------

FITS, NEEDS = Text("fits", "放得下"), Text("does not fit: {times} times", "放不下：是其 {times} 倍")
NONE = Text("no number is enough", "多少块都不够")
AT_LEAST, IN_ALL = Text("at least {n} GPU{s}{all}", "至少 {n} 块 GPU{all}"), Text(" = {size:,} GB", " = {size:,} GB")
SEVERAL, ONE = Text("{n} of them", "{n} 块"), Text("one of them", "一块")
FEWEST = Text("fewest ({how})", "最少（{how}）")
BY_TENSOR = Text("tensor parallelism, by degrees that divide the heads", "张量并行，份数整除注意力头数")
BY_ZERO = Text("more data-parallel ranks under ZeRO-{stage}", "ZeRO-{stage} 下更多数据并行的 rank")
BY_CHUNKS = Text("more data-parallel ranks, which share the chunks", "更多数据并行的 rank 分担各分块")
BY_NOTHING = Text(
    "without ZeRO more GPUs hold the same; --zero 1 to 3 divides",
    "没有 ZeRO 时，更多的 GPU 持有的都一样；--zero 1 到 3 才会切分",
)

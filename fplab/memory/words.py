"""The words of an estimate's table in both languages. Its data (``as_dict``, names of kinds) keeps the English.

>>> KINDS["master"].zh, str(term("all-gather"))
('主权重', 'all-gather')
"""

from ..words import CLAUSE, Text, mark, say, verbatim

KINDS = {
    "parameters": say("parameters"),
    "gradients": say("gradients"),
    "master": say("master weights"),
    "states": say("optimizer states"),
    "activations": say("activations"),
    "temporary": say("temporary"),
    "buffers": say("buffers"),
    "kv cache": say("keys and values"),
}
TERMS = (  # temporaries, what is sent, and how
    mark("gathered chunks"), mark("gathered layer, next layer"), mark("gradients of a layer"),
    mark("16-bit casts of the weights"), mark("8-bit casts of the layers' weights"),
    mark("quantised weights of the layers"), mark("DDP buckets"), mark("buckets"), mark("a layer computed again"),
    mark("gradients of the logits"), mark("intermediate results of a step"), mark("logits"),
    mark("activations of a layer"), mark("attention scores and their softmax"), mark("gradients"), mark("parameters"),
    mark("gradients to CPU memory"), mark("updated parameters from CPU memory"), mark("parameters from CPU memory"),
    mark("activations of layers"), mark("activations to the next stage"), mark("gradients to the stage before"),
    mark("all-reduce"), mark("reduce-scatter"), mark("all-gather"), mark("send"), mark("host")
)  # fmt: skip


def term(name: str) -> Text:
    """A name that an estimate gives to a temporary, or to what is sent."""
    return say(name) if name in TERMS else verbatim(name)


def model(name: str) -> Text:
    """The name of a model, which for a bare number of parameters is that number."""
    number, _, unit = name.partition(" ")
    return say("{number} parameters", number=number) if unit == "parameters" else verbatim(name)


SEMICOLON = CLAUSE

# --- the title --------------------------------------------------------------------------------------------------
PARAMETERS = say("{n:,} parameters")
INFERENCE, OFFLOAD = say("inference in {format}"), say("offloading {what}")
RECOMPUTE = say("recomputation {how}")
TOKENS, TIMES = say("{batch:,} x {tokens:,} tokens{more}"), " x {n:,}"
DEGREES = {"data": say("data {n}"), "tensor": say("tensor {n}"), "pipeline": say("pipeline {n}")}
GPUS = say("{n} GPU{s}{degrees}")
BRACKETS = say(" ({inside})")

# --- bytes ------------------------------------------------------------------------------------------------------
FULLEST, WHO, TOTAL = (say("on the fullest rank"), say("who takes what"), say("total"))
BYTES, ON_CPU = say("bytes"), say("CPU memory, GB")
TEMPORARY = say("temporary: {details}")
DETAIL = say("{name} {size}")
NEEDS_LAYERS = say("not counted: activations; they follow from the layers, not from a number of parameters")
NEEDS_INPUTS = say(
    "not counted: activations; give inputs=, the arguments of a module's forward pass, and they are traced"
)
NEEDS_LOSS = say(
    "not counted: the loss and the whole backward pass, such as the gradients of logits; give loss=, a function from "
    "the module's output to the loss"
)
STAGES = (
    say("stage"), say("layers"), say("model states, GB"),
    say("activations, GB"), say("total, GB"),
)  # fmt: skip
SENT = say("sent by one rank in a step:")
MESSAGE, REPEATED = say("{collective} of {size}"), say(", {n} times")

# --- what fits --------------------------------------------------------------------------------------------------
FITS, NEEDS = say("fits"), say("does not fit: {times} times")
NONE = say("no number is enough")
AT_LEAST, IN_ALL = say("at least {n} GPU{s}{all}"), say(" = {size:,} GB")
SEVERAL, ONE = say("{n} of them"), say("one of them")
FEWEST = say("fewest ({how})")
BY_TENSOR = say("tensor parallelism, by degrees that divide the heads")
BY_ZERO = say("more data-parallel ranks under ZeRO-{stage}")
BY_CHUNKS = say("more data-parallel ranks, which share the chunks")
BY_NOTHING = say("without ZeRO more GPUs hold the same; --zero 1 to 3 divides")

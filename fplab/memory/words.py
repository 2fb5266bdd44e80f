"""The words of an estimate's table in both languages. Its data (``as_dict``, names of kinds) keeps the English.

>>> KINDS["master"].zh, str(term("all-gather"))
('主权重', 'all-gather')
"""

from ..words import Text, mark, say, verbatim

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
TERMS = (  # temporaries, what is sent and how, and what a library's module adds
    mark("gathered chunks"), mark("gathered layer, next layer"), mark("gradients of a layer"),
    mark("16-bit casts of the weights"), mark("8-bit casts of the layers' weights"),
    mark("quantised weights of the layers"), mark("DDP buckets"), mark("buckets"), mark("a recomputed layer"),
    mark("gradients of the logits"), mark("intermediate results of a step"), mark("logits"),
    mark("activations of a layer"), mark("attention scores and their softmax"), mark("gradients"), mark("parameters"),
    mark("gradients to CPU memory"), mark("updated parameters from CPU memory"), mark("parameters from CPU memory"),
    mark("activations of layers"), mark("activations to the next stage"), mark("gradients to the stage before"),
    mark("all-reduce"), mark("reduce-scatter"), mark("all-gather"), mark("send"), mark("host"),
    mark("norms and the residual stream"), mark("softmax in FP32 and its copy"), mark("attention masks"),
    mark("repeated keys and values"), mark("rotary angles"), mark("steps of GELU's tanh"),
    mark("casts of shared inputs"), mark("labels and positions"), mark("logits of the output"),
    mark("casts of weights that no product takes")
)  # fmt: skip


def term(name: str) -> Text:
    """A name that an estimate gives to a temporary, or to what is sent."""
    return say(name) if name in TERMS else verbatim(name)


def model(name: str) -> Text:
    """The name of a model, which for a bare number of parameters is that number."""
    number, _, unit = name.partition(" ")
    return say("{number} parameters", number=number) if unit == "parameters" else verbatim(name)

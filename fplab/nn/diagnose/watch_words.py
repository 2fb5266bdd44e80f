"""The words of a watch's reports in both languages. Its data (kinds, layers, tensors, formats) keeps the English.

>>> str(kind("weight gradients")), kind("state exp_avg").zh
('weight gradients', '状态 exp_avg')
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...columns import padded
from ...words import CLAUSE, LIST, NOTHING, Text, joined, mark, say, say_of, verbatim

LABEL = 12  # columns of the word in front of a sentence of advice

# Kinds of tensors, and what is said in place of a tensor's name.
NAMES = (
    mark("activations"), mark("activation gradients"), mark("weight gradients"), mark("gradients"), mark("updates"),
    mark("weights"), mark("initial weights"), mark("buffers"), mark("input"), mark("loss"), mark("the model's input"),
    mark("the loss"), mark("the scaled loss"),
)  # fmt: skip


def kind(name: str) -> Text:
    """A kind of tensor; an optimizer's state keeps the optimizer's name for it."""
    if name.startswith("state "):
        return say("state {name}", name=name.removeprefix("state "))
    return say(name)


def tensor(name: str) -> Text:
    """A tensor by its name in the model, or what is said in place of one."""
    if (layer := name.removeprefix("the input of ")) != name:
        return say("the input of {layer}", layer=layer)
    if name.isdigit():  # of a Sequential
        return say_of("a layer by its number", "{name}", name=name)
    return say(name) if name in NAMES else verbatim(name)


def listed(texts: Iterable[Text | str]) -> Text:
    """Texts one after another, between them the comma of a list."""
    return joined(texts, LIST)


def named(names: Sequence[str], most: int, more: Text) -> Text:
    """The first names; ``more`` says how many others there are."""
    shown = listed(map(tensor, names[:most]))
    return joined((shown, more.fill(n=len(names) - most)), NEXT) if len(names) > most else shown


def by_reason(reasons: Mapping[str, Text]) -> list[Text]:
    """Lines of a list: layers, each with its reason; those of one reason together."""
    layers: dict[Text, list[str]] = {}
    for layer, why in reasons.items():
        layers.setdefault(why, []).append(layer or "-")
    return [REASON.fill(layers=named(names, 4, MORE_LAYERS), why=why) for why, names in layers.items()]


def advice(label: Text, text: Text) -> Text:
    """A sentence behind its label."""
    return joined((Padded(label, LABEL), text))


@dataclass(frozen=True)
class Padded(Text):
    """A text filled with spaces to so many columns in every language."""

    text: Text
    width: int

    def into(self, language: str) -> str:
        """See :meth:`Text.into`."""
        return padded(self.text.into(language), self.width)


NEXT, AND, SEMICOLON = NOTHING, say(" and "), CLAUSE
REASON = say("* {layers}: {why}")

# --- the head ---------------------------------------------------------------------------------------------------
HEADLINE = say("{model} with {optimizer}: {steps} steps{skipped}{part}")
SKIPPED = say(", {n} skipped by the loss scaler")
COUNTED = say(", {n} of them counted")
DIVIDED = say("gradients are shown divided by the run's loss scale ({between})")
BETWEEN = say("{low} to {high}")
GOES_ON = say("the run broke at step {step}; the counts below go on after it: mend that first, then watch again")
FEW = say("few steps: the advice is about the {n} counted alone; watch more, or count every one with every=1")
AS_MADE = say("the model is compiled: here it ran what it was compiled from, each result rounded")
UNREAD = say("not read (no values on this machine): {names}")

# --- what broke -------------------------------------------------------------------------------------------------
BROKEN, BLANK = say("NOT FINITE"), NOTHING
NONE_BROKEN = say("nothing: no infinity and no NaN in any step")
LIKELY = say("likely: {cause}")
EVENT = say("step {step}, {what}: {values}{was}{ended}")
WHOSE = say("{kind} of {tensor}")
OF_VALUES = say("{found} of {size:,} values")
INFINITE, NAN = say("{n:,} infinite"), say("{n:,} NaN")
WAS = say("; finite until step {step}, then at most {most:.3g}")
STEP_SKIPPED = say("; the loss scaler skipped this step")

_BACKWARD = say("the forward pass was finite and the backward pass is not: the loss, or a derivative here, overflows")
_UPDATE = say("the gradients were finite and the update is not: the optimizer divides by zero or overflows")
CAUSES = {
    "input": say("the data holds it already: look at the batch, not at the model"),
    "initial weights": say("there before the first step: a damaged checkpoint or a wrong initialisation"),
    "activations": say("beyond the largest value of its format: a lower learning rate, or hold it in BF16 or FP32"),
    "activation gradients": _BACKWARD,
    "weight gradients": _BACKWARD,
    "updates": _UPDATE,
    "weights": say("{update}, or something else wrote to it", update=_UPDATE),
    "buffers": say(
        "this layer used a buffer that holds it: look at its running statistics, or at what else writes to it"
    ),
}
OF_A_STATE = say("the optimizer's state overflows its format: hold it in FP32")
SCALE_TOO_LARGE = say("the loss scale {scale} is too large here: a dynamic scaler skips the step and halves it")
LOSS_BREAKS = say("the loss does not survive its scale of {scale}: scale less, or look at the loss")
CHANGED = say("not the optimizer's doing, whose last step left it finite: look at what else writes to it or rounds it")
NO_MODULE = say("no module returned it: look at the functions called before this layer, or at the batch")
MASK = say(
    "minus infinity alone, and all else in the step is finite: a mask, or a logarithm of zero that the loss never used"
)
LOG_OF_ZERO = say(
    "minus infinity alone: the logarithm of zero (log_softmax in place of log(softmax) has none), or a mask that "
    "reached the loss"
)
NO_INFINITY = say(
    "no infinity came before this NaN: 0/0, inf - inf, or a log or root of a negative number in this layer"
)

# --- the loss scale ---------------------------------------------------------------------------------------------
LOSS_SCALE = say("LOSS SCALE")
UNSCALED = say("of the non-zero gradients {share} vanish without a scale")
NONE_NEEDED = say("{format}: none needed ({evidence}, none overflow{up})")
UP_TO = say("; any up to 2^{high} is safe")
AT = say("{vanish} vanish and {subnormal} are subnormal at 2^{log2}, {overflow:,} overflow")
SCALE = say("{format}: 2^{log2} = {scale:,} ({evidence}; {at}; every layer stands 2^{low} to 2^{high})")
NO_SCALE = say(
    "{format}: no single scale serves every layer; at 2^{log2} {layers} would lose too much or overflow "
    "({evidence}; {at})"
)
UNRESOLVED = say(
    "{share} of the non-zero gradients lie below 2^-24 of their layer's largest, where FP32's own rounding makes such "
    "values of an exact zero (the first query of a causal attention, biases of keys): no format is judged by them"
)
MORE, MORE_LAYERS = say(" and {n} more"), say(" and {n} more layers")

# --- what stays wide, what may be narrower ----------------------------------------------------------------------
WEIGHTS, STAYS = say("WEIGHTS"), say("STAYS FP32")
NO_COPY = say("no FP32 copy needed in {formats}")
NO_VERDICT = say("whether an FP32 copy is needed cannot be told from a run that went infinite or NaN")
MASTER = say("the weights' master copy")
OF_UPDATES = say("{verdict}: of {moved:,} updates {shares}")
WOULD_LOSE = say("{format} would lose {share}, too many in {bad} of {layers} layers")
WORST = say("{share} ({layer} {most})")
STILL = say(
    "and {n:,} weights with a gradient did not move in the format they are in, too many in {bad} of {layers} layers"
)
STATE = say("{kind} in {unfit} of {layers} layers ({parts})")
VANISH = say("{format}: {share} vanish{changes}")
CHANGES = say(", {share} of its changes lost")
OF_LAYERS = say("{kind} of {layers}")
NOT_JUDGED = say("NO VERDICT")
ALL_BROKEN = say("{layers}: some tensors held infinities and NaN alone")
BITS = say("{bits} BITS")
FITS = say("{kind}: of {n} tensors {counts}{own}{rest}")
IN, IN_NONE = say("{n} in {format}"), say(", {n} in none")
OWN_SCALE, NO_FORMAT = say(" at a scale of their own"), say_of("words", "none")

# --- recipes ----------------------------------------------------------------------------------------------------
IN_RECIPE = say(
    "the products of {n} linear layers lose {low} to {high} in their worst pass ({usual} of normal numbers); {verdict}"
)
KEEP_HIGH, ALL_STAND = say("keep {layers} high"), say("every layer stands it")
PRODUCTS_LEGEND = say(
    "error of a layer's products: forward / data gradient / weight gradient; *: more than twice that of normal "
    "numbers, keep it high"
)
UNMEASURED = say("not measured:")
NOT_LINEAR = say("a {kind}, and only linear layers are measured")
NOT_CALLED = say("its weight is multiplied, if at all, without a call of the layer")
NO_OPERANDS = say("no gradient came to its output, or its operands were not finite, or are another process's in part")

# --- the table --------------------------------------------------------------------------------------------------
HEADS = (say("layer"), say("kind"), say("zero"), say("binades"))
IN_BITS, ALL = say("in {bits} bits"), say("(all)")
NONE, LOST = say_of("words", "none"), say("lost {share}")
LEGEND = say(
    "in each format: vanish / underflow / overflow, of the non-zero values, unscaled; updates and states: changes lost"
)
SHORTENED = say("{shown} of {rows} rows: the whole model, and layers unlike it; all: report.table()")

# --- two runs ---------------------------------------------------------------------------------------------------
CALL = say(", call {n}")
PARTING = say("step {step}{gap}, {name}{values}")
GAP = say(" (the steps after {after} were not kept)")
AGAINST = say(", {one:.9g} against {other:.9g}")
COMPARED = say("{n} steps ({first} to {last}), {tensors} tensors in each{left}")
LEFT = say("; {only} are in one run alone, first {name}, and were not compared")
SAME = say("every bit is the same in {compared}")
WAS_COMPARED = say("compared {compared}")
FIRST_BIT = say("first bit: {parting}")
FAR = say("{ulps:g} ulp of {format}")
NEVER = say("for good: never; every tensor comes back to within {far}")
FOR_GOOD = say("for good: {parting}; more than {far} apart from then on (there {distance:.3g})")

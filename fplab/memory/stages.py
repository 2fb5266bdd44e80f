"""Bytes of one rank, kind by kind: the arithmetic behind :func:`fplab.memory.estimate`."""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass
from fractions import Fraction

from . import activations, pipeline, recipes, sharding
from .activations import Term
from .communication import Traffic
from .models import Model, Tensor, Transformer
from .options import Options
from .sharding import Shapes
from .units import divided_up

PASSING = "intermediate results of a step"
CASTS, CASTS8 = "16-bit casts of the weights", "8-bit casts of the layers' weights"
QUANTISED = "quantised weights of the layers"
KINDS = ("parameters", "gradients", "master", "states", "activations", "temporary", "buffers", "kv cache")


@dataclass(frozen=True)
class Stage:
    """The parameters of one pipeline stage on one tensor-parallel rank.

    ``shapes``: (shape, how many) of all its tensors. ``units``: elements of each layer and of the ends, the pieces in
    which ZeRO-3 gathers parameters.
    """

    index: int
    layers: int
    shapes: Shapes
    units: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Parameters, before data parallelism divides them."""
        return sharding.elements(sharding.flat(self.shapes, 1, 0))


@functools.lru_cache(maxsize=256)
def stages(model: Model, count: int, tensor: int, chunks: int = 1) -> tuple[Stage, ...]:
    """Cut a model into stages: the embedding on the first, the head on the last, which copies tied tensors."""
    out = []
    for index, layers in enumerate(pipeline.layers_of(len(model.layers), count, chunks)):
        groups = groups_on(model, index, count, chunks)
        divided = {id(group): _divided(group, tensor) for group in groups}
        shapes: Counter[tuple[int, ...]] = Counter()
        for group in groups:
            shapes.update(divided[id(group)][0])
        units = tuple(divided[id(group)][1] for group in groups)
        out.append(Stage(index, len(layers), tuple(shapes.items()), units))
    return tuple(out)


def groups_on(model: Model, index: int, count: int, chunks: int = 1) -> list[tuple[Tensor, ...]]:
    """The layers of a stage, whole, behind the embedding on the first and before the head on the last."""
    groups = [model.layers[layer] for layer in pipeline.layers_of(len(model.layers), count, chunks)[index]]
    if index == 0:
        groups.insert(0, model.embedding)
    if index == count - 1:
        groups.append((*model.head, *(model.embedding[:1] if model.tied and count > 1 else ())))
    return groups


def _divided(group: Iterable[Tensor], tensor: int) -> tuple[Counter[tuple[int, ...]], int]:
    """The shapes of a group of tensors on one tensor-parallel rank, and how many elements they have."""
    shares = [t.share(tensor) for t in group]
    return Counter(t.shape for t in shares), sum(t.elements for t in shares)


# --- model states -----------------------------------------------------------------------------------------------
def states(stage: Stage, o: Options, rank: int = 0) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes of the model states of a data-parallel rank: on the device, and in CPU memory."""
    p, rule = recipes.precision(o.precision), recipes.optimizer(o.optimizer)
    whole = sharding.flat(stage.shapes, 1, 0)
    part = sharding.PARTITIONS[o.partition](stage.shapes, o.data, rank)
    if o.offload == "chunks":
        return chunked(stage, o)
    n = [sharding.elements(part if o.zero >= least else whole) for least in (1, 2, 3)]
    if o.offload != "none":  # a gradient leaves as soon as it is reduced: ZeRO-1 keeps its own part, as ZeRO-2 does
        n[1] = n[0]
    counts = 4 * sum(many for _, many in whole) if o.step_counts and rule.counts else 0
    sizes = part if o.zero >= 1 else whole
    device = {
        "parameters": n[2] * p.weights,
        "gradients": n[1] * (p.gradients + p.accumulated),
        "master": n[0] * p.master,
        "states": recipes.state_bytes(sizes, rule, p.state, o.block) + counts,
    }
    away = {"none": (), "optimizer": ("gradients", "master", "states"), "parameters": tuple(device)}[o.offload]
    host = {kind: device.pop(kind) for kind in away}
    return {**dict.fromkeys(KINDS[:4], 0), **device}, host


CHUNKED = {"parameters": "weights", "gradients": "accumulated", "master": "master"}  # fields of a Precision


def chunked(stage: Stage, o: Options) -> tuple[dict[str, int], dict[str, int]]:
    """Model states in chunks (Fang et al., PatrickStar, arXiv 2108.05818): 16-bit weights, master weights, states.

    Tensors are laid into chunks in order, none across a boundary, so the ends of chunks stay empty. A gradient takes
    the place of its 16-bit weight, so gradients need no memory of their own. Every data-parallel rank holds one chunk
    of each group of ``data`` chunks; as many chunks as ``chunk_budget`` bytes hold stay on the device, at least one.
    A chunk of 8-bit states has the maxima of its blocks with it; accumulated gradients are chunks of their own.
    """
    p, rule = recipes.precision(o.precision), recipes.optimizer(o.optimizer)
    count = divided_up(chunks_of(stage.shapes, o.chunk_elements), o.data)
    kinds = {kind: getattr(p, name) * o.chunk_elements for kind, name in CHUNKED.items()}
    kinds["states"] = recipes.state_bytes([(o.chunk_elements, 1)], rule, p.state, o.block)
    room = max(o.chunk_budget, kinds["parameters"])
    device, host = dict.fromkeys(KINDS[:4], 0), dict.fromkeys(KINDS[:4], 0)
    for kind, size in kinds.items():
        fit = min(count, room // size) if size else 0
        room -= fit * size
        device[kind], host[kind] = fit * size, (count - fit) * size
    return device, host


@functools.lru_cache(maxsize=256)
def chunks_of(shapes: Shapes, size: int) -> int:
    """How many chunks of ``size`` elements hold these tensors, laid in order; a larger tensor takes whole chunks.

    >>> chunks_of((((6,), 3), ((25,), 1)), 10)
    6
    """
    done, room = 0, 0
    for n, many in sharding.flat(shapes, 1, 0):
        for _ in range(many):
            if n > room:
                done += divided_up(n, size)
                room = divided_up(n, size) * size
            room -= n
    return done


# --- activations ------------------------------------------------------------------------------------------------
def saved(c: Transformer, stage: Stage, o: Options) -> int:
    """Bytes of saved activations when a stage holds the most micro-batches."""
    layer, ends = _terms(c, o)
    in_flight = pipeline.chunks_in_flight(o.schedule, stage.index, o.pipeline, o.micro_batches, o.chunks)
    plain = _total(activations.kept(layer, o.recompute), o)
    narrow = _total(activations.kept(_terms(c, o, narrow=True)[0], o.recompute), o)
    total, quantised = 0, _quantised(c.layers, o)
    for many, run in zip(in_flight, _runs(c, stage, o), strict=True):
        low = sum(layer in quantised for layer in run)
        total += many * (low * narrow + (len(run) - low) * plain)
    if stage.index == 0:
        total += in_flight[0] * _total(ends[0], o)
    if stage.index == o.pipeline - 1:
        total += in_flight[-1] * _total(ends[1], o)
    return total


def _runs(c: Transformer, stage: Stage, o: Options) -> list[tuple[int, ...]]:
    """The layers of each model chunk of a stage, by their places in the model."""
    layers, size = pipeline.layers_of(c.layers, o.pipeline, o.chunks)[stage.index], stage.layers // o.chunks
    return [layers[size * chunk : size * (chunk + 1)] for chunk in range(o.chunks)]


def _quantised(layers: int, o: Options) -> Container[int]:
    """The layers whose products' operands are narrower than 16 bits, by their places in the model."""
    if recipes.precision(o.precision).operands:
        return range(layers)
    return o.quantised.layers(layers) if o.quantised else ()


def _terms(
    c: Transformer, o: Options, narrow: bool = False
) -> tuple[tuple[Term, ...], tuple[tuple[Term, ...], tuple[Term, ...]]]:
    """The terms of a layer, and of both ends; ``narrow``: of a layer whose operands are."""
    p = recipes.precision(o.precision)
    operands = (o.quantised.input if o.quantised else p.operands) if narrow else 0
    return _all_terms(c, o.micro_batch, o.sequence or c.sequence, p.activations, operands)


@functools.lru_cache(maxsize=64)
def _all_terms(
    c: Transformer, batch: int, sequence: int, width: int, operands: int | Fraction
) -> tuple[tuple[Term, ...], tuple[tuple[Term, ...], tuple[Term, ...]]]:
    shape = (c, batch, sequence, width)
    ends = activations.embedding_terms(*shape), activations.head_terms(*shape)
    return activations.layer_terms(*shape, operands), ends


def _total(terms: Iterable[Term], o: Options) -> int:
    return activations.total(terms, o.tensor, o.sequence_parallel)


# --- what lives only for a moment -------------------------------------------------------------------------------
def temporary(c: Transformer | None, stage: Stage, o: Options) -> dict[str, int]:
    """Buffers beside the model states and the saved activations, by name.

    Communication buckets, casts of the weights and gathered layers are there throughout; of the gradients of the logits
    and of a recomputed layer only the larger counts, since one is gone before the other comes.
    """
    p, n, quantised = recipes.precision(o.precision), stage.elements, o.quantised
    copies, casts8 = (quantised.weights, QUANTISED) if quantised else (Fraction(p.operands), CASTS8)
    out: dict[str, int] = {}
    if o.offload == "chunks":
        out["gathered chunks"] = o.data * o.chunk_elements * p.weights
    elif (o.zero == 3 and o.data > 1) or o.offload == "parameters":
        largest = max(stage.units)
        out["gathered layer, next layer"] = 2 * largest * p.compute
        out["gradients of a layer"] = largest * p.gradients
        out[casts8] = math.ceil(2 * max(_of_layers(stage)) * copies)
    else:
        narrow = 0
        if c is not None and copies:
            runs = itertools.chain.from_iterable(_runs(c, stage, o))
            low = _quantised(c.layers, o)
            narrow = sum(n for n, layer in zip(_of_layers(stage), runs, strict=True) if layer in low)
        elif copies:
            narrow = sum(_of_layers(stage))
        cast = n if quantised and quantised.casts else n - narrow
        out[CASTS] = cast * p.compute if p.compute != p.weights else 0
        out[casts8] = math.ceil(narrow * copies)
    if o.data > 1 and o.zero == 0 and not o.bucket_views:
        out["DDP buckets"] = n * p.gradients
    if (o.data > 1 and o.zero in (1, 2)) or o.offload == "optimizer":
        out["buckets"] = 2 * min(o.bucket, n * p.gradients)
    moments = _moments(c, stage, o) if c is not None else {}
    if moments:
        name = max(moments, key=lambda moment: moments[moment])
        out[name] = moments[name]
    return {name: size for name, size in out.items() if size}


def _of_layers(stage: Stage) -> tuple[int, ...]:
    """Elements of each layer, without the ends."""
    first = int(stage.index == 0)
    return stage.units[first : first + stage.layers]


def _moments(c: Transformer, stage: Stage, o: Options) -> dict[str, int]:
    ends = _terms(c, o)[1]
    runs = itertools.chain.from_iterable(_runs(c, stage, o))
    low = _quantised(c.layers, o)
    of = [_terms(c, o, narrow=narrow)[0] for narrow in {layer in low for layer in runs}]
    again = max(_total(layer, o) - _total(activations.kept(layer, o.recompute), o) for layer in of)
    moments = {"a recomputed layer": again}
    if stage.index == o.pipeline - 1:
        # torch's cross-entropy: the loss's gradient of the log-probabilities, and the logits' made from it
        moments["gradients of the logits"] = 2 * _total([t for t in ends[1] if t.name == "logits"], o)
    return moments


# --- communication ----------------------------------------------------------------------------------------------
def traffic(c: Transformer | None, stage: Stage, o: Options) -> tuple[Traffic, ...]:
    """What a rank of this stage sends in one step."""
    return (*_data_traffic(stage, o), *(_model_traffic(c, stage, o) if c is not None else ()))


def _data_traffic(stage: Stage, o: Options) -> list[Traffic]:
    """Gradients and parameters among data-parallel ranks, and over the link to CPU memory."""
    p, n, data = recipes.precision(o.precision), stage.elements, o.data
    padded, sharded = divided_up(n, data) * data, o.zero == 3 or o.offload == "chunks"
    each = o.micro_batches if o.zero >= 2 or o.offload != "none" else 1
    out = []
    if data > 1 and not sharded and o.zero == 0:
        out.append(Traffic("gradients", "all-reduce", data, padded, p.gradients, each))
    elif data > 1:
        out.append(Traffic("gradients", "reduce-scatter", data, padded, p.gradients, each))
        out.append(Traffic("parameters", "all-gather", data, padded, p.compute, 2 * each if sharded else 1))
    return out + _host_traffic(stage, o)


def _host_traffic(stage: Stage, o: Options) -> list[Traffic]:
    """Over the link to CPU memory: gradients of what is updated there, and the weights that come back.

    Weights that live there are fetched for the forward and the backward pass of every micro-batch; with ZeRO-Offload
    (Ren et al., arXiv 2101.06840, section 4.2) only the updated ones come back, once a step.
    """
    if o.offload == "none":
        return []
    p, whole = recipes.precision(o.precision), stage.elements
    part = divided_up(whole, o.data)
    updated = part if o.zero >= 1 else whole
    fetched = 0 if o.offload == "optimizer" else part if o.zero == 3 else whole
    if o.offload == "chunks":
        host = chunked(stage, o)[1]
        updated = host["master"] // p.master if p.master else host["parameters"] // p.weights
        fetched = host["parameters"] // p.weights
    out = [
        Traffic("gradients to CPU memory", "host", 1, updated, p.gradients, o.micro_batches),
        Traffic("updated parameters from CPU memory", "host", 1, updated, p.compute),
        Traffic("parameters from CPU memory", "host", 1, fetched, p.compute, 2 * o.micro_batches),
    ]
    return [message for message in out if message.elements]


def _model_traffic(c: Transformer, stage: Stage, o: Options) -> list[Traffic]:
    """Activations and their gradients among tensor-parallel ranks and between stages.

    A layer needs four all-reduces of its s-by-b-by-h output (two forward, two backward; Shoeybi et al., Megatron-LM,
    arXiv 1909.08053, section 3), two more where full recomputation repeats its forward pass. Sequence parallelism makes
    each an all-gather and a reduce-scatter of the same volume.
    """
    width, length = recipes.precision(o.precision).activations, o.sequence or c.sequence
    elements, m = length * o.micro_batch * c.hidden, o.micro_batches
    out = []
    if o.tensor > 1:
        times = m * (stage.layers * (6 if o.recompute == "full" else 4))
        times += m * ((stage.index == 0) + (stage.index == o.pipeline - 1))
        for collective in ("all-gather", "reduce-scatter") if o.sequence_parallel else ("all-reduce",):
            out.append(Traffic("activations of layers", collective, o.tensor, elements, width, times))
    if o.pipeline > 1:
        message = divided_up(elements, o.tensor) if o.sequence_parallel else elements
        first, last = stage.index == 0, stage.index == o.pipeline - 1
        for what, ends in (("activations to the next stage", last), ("gradients to the stage before", first)):
            if times := m * (o.chunks - ends):
                out.append(Traffic(what, "send", 2, message, width, times))
    return out

"""What every rank of a run holds, counted in bytes, and the same run with other options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import integer
from . import inference, sharding, stages
from .communication import Traffic
from .models import Model, Transformer
from .options import Options
from .stages import KINDS, Stage

if TYPE_CHECKING:
    from .step import Step


@dataclass(frozen=True)
class Rank:
    """What one rank holds, in bytes, exact. ``ranks``: how many ranks hold the same (of a stage, the fullest).

    ``layers`` and ``elements``: of the model, on this pipeline stage: how many layers and parameters. ``device`` and
    ``host``: by kind, on the GPU and in CPU memory. ``temporary``: what that kind consists of. ``traffic``: the
    collectives of a step that it takes part in.
    """

    stage: int
    layers: int
    ranks: int
    elements: int
    device: Mapping[str, int]
    host: Mapping[str, int]
    temporary: Mapping[str, int]
    traffic: tuple[Traffic, ...] = ()

    @property
    def total(self) -> int:
        return sum(self.device.values())

    @property
    def states(self) -> int:
        """Bytes of the model states on the device: parameters, gradients, master weights, optimizer states."""
        return sum(self.device.get(kind, 0) for kind in KINDS[:4])

    @property
    def sent(self) -> int:
        """Bytes that it sends in one step to other ranks and over the link to CPU memory."""
        return sum(message.sent for message in self.traffic)


@dataclass(frozen=True)
class Counted:
    """What a run holds, counted. ``stages``: a :class:`Rank` for each pipeline stage, the fullest of its ranks.

    ``parameters``: of the whole model. All bytes are exact integers of what the options and the formulas say.
    """

    model: Model
    configuration: Transformer | None
    options: Options
    stages: tuple[Rank, ...]
    traced: Step | None = field(default=None, repr=False)  # where the model is a module

    @property
    def parameters(self) -> int:
        """Parameters of the whole model; tied ones count once."""
        return self.model.parameters

    @property
    def fullest(self) -> Rank:
        """The rank that needs the most memory."""
        return max(self.stages, key=lambda rank: rank.total)

    @property
    def total(self) -> int:
        """Bytes that the fullest rank needs."""
        return self.fullest.total

    def rank(self, number: int) -> Rank:
        """The rank of a number: tensor-parallel ranks are neighbours, then come data-parallel ones, then stages."""
        o = self.options
        number = integer("rank", number, 0, o.gpus - 1)
        stage, place = divmod(number, o.data * o.tensor)
        return rank_of(self, stage, place // o.tensor)


Run = TypeVar("Run", bound=Counted)


def with_options(e: Run, **options: Any) -> Run:
    """The estimate of the same model, run with other options."""
    shell = replace(e, options=replace(e.options, **options), stages=())
    return replace(shell, stages=tuple(rank_of(shell, stage) for stage in range(shell.options.pipeline)))


def rank_of(e: Counted, index: int, data_rank: int | None = None) -> Rank:
    """What a data-parallel rank of a stage holds; None: the fullest of them."""
    o, c = e.options, e.configuration
    stage = stages.stages(e.model, o.pipeline, o.tensor, o.chunks)[index]
    if o.inference is not None:
        assert c is not None
        kinds, temporary = inference.inference(c, stages.groups_on(e.model, index, o.pipeline, o.chunks), stage, o)
        device = {**kinds, "temporary": sum(temporary.values())}
        return Rank(index, stage.layers, o.data * o.tensor, stage.elements, device, {}, temporary)
    if data_rank is None:
        data_rank = fullest_shard(stage, o)
    device, host = stages.states(stage, o, data_rank)
    temporary = {} if e.model.states_only else stages.temporary(c, stage, o)
    if e.traced is not None:  # autocast's casts are saved for the backward pass: they are among the traced ones
        temporary.pop(stages.CASTS, None)
        temporary |= {stages.PASSING: e.traced.passing} if e.traced.passing else {}
    device["activations"] = stages.saved(c, stage, o) if c is not None else e.traced.saved if e.traced else 0
    device["temporary"] = sum(temporary.values())
    if e.model.buffers:
        device["buffers"] = e.model.buffers
    traffic = stages.traffic(c, stage, o)
    return Rank(index, stage.layers, o.data * o.tensor, stage.elements, device, host, temporary, traffic)


def fullest_shard(stage: Stage, o: Options) -> int:
    """The data-parallel rank that holds the most; the first, except where whole tensors are handed out."""
    if o.partition != "tensors" or o.zero == 0:
        return 0
    given = sharding.handed_out(stage.shapes, o.data)
    different = {sizes: rank for rank, sizes in reversed(list(enumerate(given)))}  # the first rank of each kind
    return max(sorted(different.values()), key=lambda rank: sum(stages.states(stage, o, rank)[0].values()))


def with_fewest(e: Run, capacity: int, step: int, most: int = 2**20) -> Run | None:
    """The same run on the fewest GPUs of ``capacity`` bytes that hold it, a multiple of ``step``, at most ``most``."""
    divides = e.options.zero > 0 or e.options.offload == "chunks"

    def at(steps: int) -> Run:
        return with_options(e, gpus=steps * step)

    low, high = 0, 1
    while at(high).total > capacity:  # more ranks, smaller shards: double, then bisect
        low, high = high, 2 * high
        if high * step > most or not divides:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if at(middle).total <= capacity else (middle, high)
    return at(high)

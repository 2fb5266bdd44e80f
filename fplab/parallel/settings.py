"""What a real run is asked, and what its processes leave behind: plain files that the one who started them reads.

No torch here: a :class:`Setting` goes to the processes as JSON; every process writes ``STRATEGY.RANK.npz`` (weights by
name, losses) and ``STRATEGY.RANK.json`` (bytes, messages, notes).
"""

import dataclasses
import json
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LabError, door, own_integer, own_integers, unknown
from ..memory.pipeline import SCHEDULES, demand_groups

Array = np.ndarray[Any, Any]

STRATEGIES = (
    "ddp", "parameter-server", "zero1", "zero2", "zero3", "zero-redundancy", "fully-shard", "tensor", *SCHEDULES,
)  # fmt: skip
"""The ways of sharing a run among processes."""
HANG = "hang"  # no strategy: a process that neither ends nor answers, to see what becomes of the others
BACKENDS = ("gloo", "nccl")
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows ends a process by any signal
LAUNCHED = "FPLAB_LAUNCHED"  # an environment variable: the launcher holds the other end of standard input
HIDDEN, WIDTH = 3, 32  # of the perceptron that is trained: 64-32-32-32-10, 4,522 parameters
LAYERS = HIDDEN + 1


@door
@dataclass(frozen=True)
class Setting:
    """A training run: ``ranks`` processes train the digits for ``steps`` steps with AdamW, ``batch`` images a step.

    ``strategies``: one after the other, each from the same weights. ``micro_batches``: of the pipelines. ``backend``:
    "gloo" (on the CPU), "nccl" (each process on a GPU of its own) or None: NCCL where there are enough GPUs. ``dies``:
    the rank that kills itself before the first step, to see what becomes of the others.
    """

    strategies: tuple[str, ...]
    ranks: int = 2
    steps: int = 3
    batch: int = 32
    micro_batches: int = 4
    seed: int = 0
    lr: float = 0.01
    backend: str | None = None
    dies: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "strategies", tuple(self.strategies))
        if not self.strategies:
            raise LabError(f"no strategy to run; allowed: {', '.join(STRATEGIES)}.")
        for name in self.strategies:
            if name not in (*STRATEGIES, HANG):
                raise unknown("strategy", name, STRATEGIES)
        if self.backend is not None and self.backend not in BACKENDS:
            raise unknown("backend", self.backend, BACKENDS)
        digits = (1, 1438)
        own_integers(self, ranks=(1, 64), steps=(1, 10_000), batch=digits, micro_batches=digits, seed=(0, 2**64 - 1))
        if not (isinstance(self.lr, int | float) and 0 < self.lr < float("inf")):
            raise LabError(f"lr={self.lr!r} is no learning rate; allowed: a positive number.")
        if self.dies is not None:
            own_integer(self, "dies", 0, self.ranks - 1)
        for name in self.strategies:
            self._check(name)

    def _check(self, name: str) -> None:
        """Whether the network and the batch can be divided as a strategy does."""
        parts = {**dict.fromkeys(SCHEDULES, self.micro_batches), "tensor": 1}
        share = parts.get(name, self.ranks)
        if self.batch % share:
            raise LabError(f"batch={self.batch} does not divide into {share} equal parts, as {name} needs.")
        if name == "tensor" and WIDTH % self.ranks:
            raise LabError(f"ranks={self.ranks} does not divide the layers' width of {WIDTH}, as tensor needs.")
        stages = {"gpipe": self.ranks, "1f1b": self.ranks, "interleaved": 2 * self.ranks}.get(name, 1)
        if LAYERS % stages:
            raise LabError(f"{name} on ranks={self.ranks} makes {stages} stages of {LAYERS} layers; allowed: 1, 2, 4.")
        if name == "interleaved":
            demand_groups(self.micro_batches, self.ranks)

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def setting(text: str) -> Setting:
    return Setting(**json.loads(text))


@dataclass(frozen=True)
class Sent:
    """A collective as it was called: ``elements`` of ``width`` bytes are the whole message, ``times``: how often."""

    collective: str
    elements: int
    width: int
    times: int


@dataclass(frozen=True)
class RankResult:
    """What one process says. ``weights``: by name, those it ends with; ``losses``: float32 (steps,), of its own share.

    ``held``: bytes by kind, of the tensors it holds when a step's gradients are complete. ``messages``: of all steps.
    ``notes``: the backend, and what a strategy adds (buckets, in-flight micro-batches).
    """

    rank: int
    weights: Mapping[str, Array]
    losses: Array
    held: Mapping[str, int]
    messages: tuple[Sent, ...]
    notes: Mapping[str, Any]

    @property
    def sent(self) -> dict[str, int]:
        """Bytes of whole messages in all steps, by collective."""
        bytes_sent: dict[str, int] = {}
        for message in self.messages:
            bytes_sent[message.collective] = (
                bytes_sent.get(message.collective, 0) + message.elements * message.width * message.times
            )
        return bytes_sent

    def write(self, folder: Path, strategy: str) -> None:
        stem = folder / f"{strategy}.{self.rank}"
        arrays: dict[str, Any] = {"losses": self.losses, **{f"w:{name}": w for name, w in self.weights.items()}}
        with open(f"{stem}.npz", "wb") as file:
            np.savez(file, **arrays)
        record = {"held": self.held, "messages": [dataclasses.astuple(m) for m in self.messages], "notes": self.notes}
        Path(f"{stem}.json").write_text(json.dumps(record), encoding="utf-8")


def read(folder: Path, strategy: str, rank: int) -> RankResult:
    stem = folder / f"{strategy}.{rank}"
    record = json.loads(Path(f"{stem}.json").read_text(encoding="utf-8"))
    with np.load(f"{stem}.npz", allow_pickle=False) as file:
        weights = {name[2:]: file[name] for name in file.files if name.startswith("w:")}
        losses = file["losses"]
    messages = tuple(Sent(*m) for m in record["messages"])
    return RankResult(rank, weights, losses, record["held"], messages, record["notes"])


@dataclass(frozen=True)
class Result:
    """All processes of one strategy, in the order of their ranks."""

    strategy: str
    setting: Setting
    ranks: tuple[RankResult, ...]

    @property
    def backend(self) -> str:
        return str(self.ranks[0].notes["backend"])

    @property
    def weights(self) -> dict[str, Array]:
        """The whole network's weights, by name; where several ranks have a tensor, they are checked to be the same."""
        by_name: dict[str, Array] = {}
        for rank in self.ranks:
            for name, w in rank.weights.items():
                if name in by_name and by_name[name].tobytes() != w.tobytes():
                    raise LabError(f"{self.strategy}: rank {rank.rank} ends with another {name!r} than a rank before.")
                by_name[name] = w
        return dict(sorted(by_name.items()))

    @property
    def flat(self) -> Array:
        return np.concatenate([w.ravel() for w in self.weights.values()])

    @property
    def losses(self) -> Array:
        """The loss of the whole batch in each step, float64: the mean over the ranks that computed one."""
        rank_losses = [rank.losses.astype(np.float64) for rank in self.ranks if len(rank.losses)]
        return np.asarray(np.mean(rank_losses, axis=0))


def grouped(messages: Iterable[tuple[str, int, int]]) -> tuple[Sent, ...]:
    """Messages counted, in the order in which each was first sent."""
    counts: dict[tuple[str, int, int], int] = {}
    for message in messages:
        counts[message] = counts.get(message, 0) + 1
    return tuple(Sent(*key, times) for key, times in counts.items())

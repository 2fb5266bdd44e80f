"""Sweeps: seeds x recipes x models, each cell a run with a file of its own, shared among any number of processes.

Processes need nothing of each other but the folder. Each takes the next cell that no other has; one that is killed
loses the cell it was at, which another takes over from its latest checkpoint. A cell's file has the same bytes whoever
computed it and however often that was interrupted.
"""

import hashlib
import importlib
import json
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from torch import nn

from ..columns import harmless
from ..errors import LabError, own_integers, reason, summary
from ..nn import bits
from ..storage import contents, digest, opened_to_append, write_text
from ..words import part
from . import policies, tasks
from .checkpoints import demand_same
from .nonfinite import StoppedError
from .policies import Policy
from .runs import baseline, configuration, fit
from .tasks import Task

PAUSE = 0.2  # seconds after which one of few processes looks again whether the others' cells are done
FEW = 8  # of more, each waits longer: all together ask the folder as often
Said = Callable[[str], object]


@dataclass(frozen=True)
class Cell:
    """One run of a sweep. ``model``: a task's name, or MODULE:NAME of a :class:`Task`; ``recipe``: a policy's name.

    ``steps``: None is the task's own number. What cannot be run is refused when the cell is made.
    """

    model: str
    recipe: str
    seed: int
    steps: int | None = None
    gpu: str | None = "H100"

    def __post_init__(self) -> None:
        own = self.task.baseline.steps  # asked always: a model that is none is refused here
        if self.steps is None:
            object.__setattr__(self, "steps", own)
        own_integers(self, steps=(1, 1 << 30), seed=(0, 2**64 - 1))
        with self.policy.running(nn.Module(), self.gpu):
            pass  # the GPU has every unit that this needs

    @cached_property
    def task(self) -> Task:
        """What is trained."""
        return named_task(self.model)

    @cached_property
    def policy(self) -> Policy:
        """How it computes."""
        return policies.get(self.recipe)

    @property
    def name(self) -> str:
        """What its files are called: no two models alike."""
        return f"{quote(self.model, safe='')}.{self.policy.name}.{self.seed}"

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that its numbers depend on, as JSON values."""
        made = configuration(self.task, self.policy, self.seed, baseline(self.task), self.gpu)
        return {**made, "steps": self.steps}

    def file(self, folder: Path) -> Path:
        """Where its result is, once it is done."""
        return folder / f"{self.name}.json"

    def checkpoint(self, folder: Path) -> Path:
        """Where the state of its run is until then."""
        return folder / f"{self.name}.checkpoint.npz"

    def ended(self, folder: Path) -> bool:
        """Whether nothing is left to do: a process killed after it wrote the result has not removed the checkpoint."""
        return self.file(folder).exists() and not self.checkpoint(folder).exists()

    def compute(self, folder: Path, every: int) -> None:
        """Train, from the checkpoint if there is one, and write the result; ``every``: steps from one to the next."""
        checkpoint = self.checkpoint(folder)
        result: dict[str, Any] = {"settings": self.settings}
        try:
            run = fit(self.task, self.policy, seed=self.seed, steps=self.steps, gpu=self.gpu, checkpoint=checkpoint,
                      every=every, progress=lambda step, steps: None)  # fmt: skip
        except StoppedError as error:
            result |= {"losses": [x.hex() for x in error.losses], "stopped": str(error)}
            result |= dict.fromkeys(("skipped", "top1", "held-out loss", "weights"), "")
        else:
            weights = "".join(digest(bits.array(w)) for w in run.model.state_dict().values())
            result |= {
                "losses": [float(x).hex() for x in run.losses], "stopped": "", "skipped": int(run.skipped.sum()),
                "top1": run.scores.top1.hex(), "held-out loss": run.scores.loss.hex(),
                "weights": hashlib.sha256(weights.encode()).hexdigest(),
            }  # fmt: skip
        write_text(self.file(folder), json.dumps({**result, "digest": _digest(result)}, indent=1) + "\n")
        checkpoint.unlink(missing_ok=True)

    def result(self, folder: Path) -> dict[str, Any] | None:
        """What its file holds, None where it is not done; a damaged file and one of other settings are refused."""
        path = self.file(folder)
        try:
            result = json.loads(contents(path).decode())
            if result.pop("digest") != _digest(result):
                raise ValueError("its digest is of something else")
            shown = dict(harmless(result, " "))
        except FileNotFoundError:
            return None
        except Exception as error:  # JSON of something else can be of any shape
            raise LabError(
                f"{str(path)!r} is no result of a sweep, or a damaged one ({reason(error)}); delete it, and the cell "
                "is computed again."
            ) from None
        demand_same(path, result["settings"], self.settings, part("a result"))
        return shown


def _digest(result: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()


def named_task(name: str) -> Task:
    """A task by its name, or what MODULE:NAME is."""
    module, colon, inside = name.partition(":")
    if not colon:
        return tasks.get(name)
    try:
        task = getattr(importlib.import_module(module), inside)
    except Exception as error:  # a name that can be none, and whatever a module raises as it is imported
        raise LabError(f"model {name!r} cannot be imported ({reason(error)}); allowed: MODULE:NAME.") from None
    if not isinstance(task, Task):
        raise LabError(f"model {name!r} is {summary(task)}; allowed: a fplab.training.Task.")
    return task


# --- sharing ----------------------------------------------------------------------------------------------------
class Claims:
    """Which cells are being computed: locks on single bytes of a file, which end with the process that holds them.

    ``possible``: whether the system knows such locks; where it does not, every cell can be taken by everyone.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.possible = file, True
        self.take("")  # a name of no cell

    def take(self, name: str) -> bool:
        """Whether a cell is now this process's."""
        try:
            import fcntl

            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, zlib.crc32(name.encode()))
        except (BlockingIOError, PermissionError):
            return False
        except (ImportError, OSError):  # Windows, some network folders
            self.possible = False
        return True

    def drop(self, name: str) -> None:
        """Give a cell back."""
        if self.possible:
            import fcntl

            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, zlib.crc32(name.encode()))


def work(cells: Sequence[Cell], folder: Path, every: int, rank: int, ranks: int, report: Said) -> None:
    """Compute cells until all are done, by whomever; each rank begins with another.

    Where there are no locks a rank computes its share of the cells alone.
    """
    with opened_to_append(folder / ".claims") as file:  # closed, it has no locks any more
        claims, left = Claims(file), list(cells[rank::ranks])
        if claims.possible:
            left += [cell for i, cell in enumerate(cells) if i % ranks != rank]
        while left := [cell for cell in left if not cell.ended(folder)]:
            cell = next((cell for cell in left if claims.take(cell.name)), None)
            if cell is None:
                time.sleep(PAUSE * max(1, ranks / FEW))
                continue
            if cell.file(folder).exists():  # another has written it, and may have died at that
                cell.checkpoint(folder).unlink(missing_ok=True)
            else:
                cell.compute(folder, every)
                done = sum(other.file(folder).exists() for other in cells)
                report(f"[{done}/{len(cells)}] {cell.name}")
            claims.drop(cell.name)

"""The commands ``fplab survey``, ``fplab explain`` and ``fplab watch``: a model by its name, an answer, its files."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...columns import REPORT, folded, grid
from ...errors import LabError, integer, reason, summary
from ...storage import contents, demand_writable
from ...tensorcore import Plan
from ...words import Text, say
from ..reporting import Report
from .explain import explain as explaining
from .explain import logits
from .survey import survey as surveying
from .survey_report import Survey
from .watch import watch as watching

ALLOWED = "allowed: MODULE:NAME or FILE.py:NAME of a function that gives (model, batches) or (model, batches, loss)."
VERDICTS = say("layer, worst first"), say("take")
EFFECT = say("effect on the loss in {choice}")
WRITTEN = say("In {folder}: {files}")
SETTING = say("{option} {text} is not possible; allowed: NAME=VALUE, such as gpu=H100 inputs=bf16 recipe=nvfp4 rows=1.")
Loss = Callable[[nn.Module, Any], Any]


def _named(name: str) -> Any:
    """What a module or file has under a name."""
    module, colon, inside = name.rpartition(":")
    if not colon:
        raise LabError(f"the model {name!r} is not possible; {ALLOWED}")
    try:
        with _from_here():
            return getattr(_file(Path(module)) if module.endswith(".py") else importlib.import_module(module), inside)
    except Exception as error:  # whatever a module raises as it is imported
        raise LabError(f"the model {name!r} cannot be imported ({reason(error)}); {ALLOWED}") from None


def built(name: str) -> tuple[nn.Module, list[Any], Loss]:
    """The model that a name builds, its batches and its loss: see ``ALLOWED``.

    Without a loss, it is what the model's output has as ``loss``, or the cross-entropy of its logits for the last part
    of a batch.
    """
    given = _named(name)
    result = given() if callable(given) and not isinstance(given, nn.Module) else given
    fits = isinstance(result, tuple) and len(result) in (2, 3) and isinstance(result[0], nn.Module)
    if not fits or (isinstance(result[1], list) and not result[1]):
        raise LabError(f"the model {name!r} gives {summary(result)}; {ALLOWED}")
    model, batches, *loss = result
    return model, list(batches) if isinstance(batches, list) else [batches], loss[0] if loss else usual_loss


def usual_loss(model: nn.Module, batch: Any) -> Any:
    """The loss of a model that has none of its own said; with the logits, where it is the cross-entropy of them."""
    *given, target = batch if isinstance(batch, tuple | list) else (batch, None)
    if target is None:
        found = model(**batch) if isinstance(batch, dict) else model(batch)
        if getattr(found, "loss", None) is None:
            raise LabError("the model's output has no loss, and its batches no targets; let the function give a loss.")
        return found.loss
    result = logits(model, tuple(given))
    return nn.functional.cross_entropy(result.flatten(0, -2), target.flatten()), result


@contextlib.contextmanager
def _from_here() -> Iterator[None]:
    """Modules of the folder where the command was typed are found."""
    sys.path.insert(0, "")
    try:
        yield
    finally:
        sys.path.remove("")


def _file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    contents(path)  # what is no file is refused: who reads a pipe waits
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def survey(args: argparse.Namespace) -> int:
    """Print a verdict a layer, worst first, below the recommendation with its loss."""
    demand_writable(args.out)
    model, batches, loss = built(args.model)
    on = {"gpu": args.gpu, "fallback": args.fallback}
    found = surveying(model, batches, loss, args.formats, args.recipes, **on, budget=args.budget)
    print(*folded([str(found.text)]), "", *grid(verdicts(found), REPORT), "", sep="\n")
    if found.notes:
        print(*folded(found.notes), "", sep="\n")
    return _saved(found, args.out)


def verdicts(found: Survey) -> list[list[str]]:
    """A row a layer: what to take, and what each choice would do to the loss; those that it feels most come first."""
    choices, effects = list(found.wholes), dict[str, dict[str, str]]()
    worst = dict[str, float]()
    for row in found.rows:
        if row.phase == "forward":
            effects.setdefault(row.layer, {})[row.choice] = row.effect_text
            worst[row.layer] = max(worst.get(row.layer, 0.0), abs(row.effect) if row.effect == row.effect else 1e300)
    taken = found.recommended.assignment
    heads = [*map(str, VERDICTS), *(str(EFFECT.fill(choice=choice)) for choice in choices)]
    return [heads, *([layer, taken.get(layer, ""), *(effects[layer].get(choice, "") for choice in choices)]
                     for layer in sorted(worst, key=lambda layer: -worst[layer]))]  # fmt: skip


def explain(args: argparse.Namespace) -> int:
    """Print why two ways of computing a model's output differ."""
    demand_writable(args.out)
    if args.other is not None:
        answer = explaining(*map(_program, (args.model, args.other)))
        print(answer, "", sep="\n")
        return _saved(answer, args.out)
    a, b = (_way(option, given) for option, given in (("--a", args.a), ("--b", args.b)))
    model, batches, _ = built(args.model)
    first = batches[0]
    batch = tuple(first[:-1]) if isinstance(first, tuple | list) else first
    found = explaining(model.eval(), batch, a, b)
    print(found, "", sep="\n")
    return _saved(found, args.out)


def _program(name: str) -> str | Callable[[], Any]:
    """The folder of a dump, or the function without arguments that a name says."""
    return name if Path(name).is_dir() or ":" not in name else _named(name)


def _way(option: str, given: list[str]) -> dict[str, Any]:
    """The settings of a way: numbers for rows, a plan for split_k, texts for the others."""
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise LabError(SETTING.fill(option=option, text=text))
        whole = int(value) if value.isdecimal() and len(value) < 20 else value
        if name == "split_k":
            found["plan"] = Plan(split_k=integer(name, whole, 1, 1 << 16))
        elif name in ("compiled", "sequence_parallel"):
            found[name] = {"True": True, "False": False}.get(value, value)
        else:
            found[name] = whole if name in ("rows", "tensor_parallel", "expert_parallel") else value
    return found


def watch(args: argparse.Namespace) -> int:
    """Train for some steps under watch, and print what the run needs of formats and recipes."""
    demand_writable(args.out)
    steps = integer("--steps", args.steps, 1, 1 << 30)
    if not 0 <= args.rate < math.inf:
        raise LabError(f"--rate {args.rate} is not possible; allowed: 0 and more, such as 0.001.")
    model, batches, loss = built(args.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate)
    with watching(model, optimizer, recipes=args.recipes) as seen:
        for batch in itertools.islice(itertools.cycle(batches), steps):
            optimizer.zero_grad()
            value = loss(model, batch)
            (value[0] if isinstance(value, tuple) else value).backward()
            optimizer.step()
    report = seen.report()
    print(report, "", sep="\n")
    if args.horizon is not None:
        foretold = seen.forecast(args.horizon)
        print(foretold, "", sep="\n")
        _saved(foretold, args.out)
    return _saved(report, args.out)


def _saved(report: Report, folder: Path) -> int:
    report.save(folder)
    files: Text | str = ", ".join(f"{report.FILE}.{kind}" for kind in ("html", "json", "csv"))
    print(WRITTEN.fill(folder=folder, files=files))
    return 0

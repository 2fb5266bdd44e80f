"""What an experiment leaves on disk: figures, the data behind them, and the manifest that says how they were made.

``NAME.svg``, on request also ``NAME.png``, both in dark colours and in Chinese (:data:`PICTURES`), ``NAME.csv``,
``NAME.steps.svg`` (``.zh.svg``) where the experiment has an ``animation``, and ``MANIFEST.json`` with parameters,
versions and digests of the arrays whose bits are the same on every machine. Each file is written beside its place and
renamed into it, the manifest last.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import exact_products
from ..columns import as_csv, harmless
from ..errors import LabError, misfit
from ..hardware.environment import versions
from ..language import lang, speaking
from ..storage import alone, contents, described, write_text
from ..words import say
from . import uptodate
from .frame import Experiment
from .outcomes import Evidence, Outcome, absent, failed, passed
from .progress import Tick
from .quantities import Columns
from .table import Row

MANIFEST = "MANIFEST.json"
AS_BEFORE = say("arrays as in the manifest")
# By how their names end: the theme, and the language where it is not the chosen one.
PICTURES = {"svg": ("light", ""), "png": ("light", ""), "dark.svg": ("dark", ""), "dark.png": ("dark", ""),
            "zh.svg": ("light", "zh")}  # fmt: skip


def size_name(full: bool) -> str:
    """How the two sizes of an experiment are called."""
    return "full" if full else "quick"


def params_of(experiment: Experiment, full: bool) -> Any:
    """The parameters of the full or the quick size."""
    return experiment.full if full else experiment.quick


def default_folder(full: bool) -> Path:
    """Runs go below ``runs/``: what is kept in ``figures/``, the gallery, is drawn on purpose only."""
    return Path("runs") / size_name(full)


def write_outputs(
    folder: Path, name: str, experiment: Experiment, result: Any, size: str, tick: Tick,
    pictures: Sequence[str] = ("svg",), anew: bool = True,
) -> list[Path]:  # fmt: skip
    """Write the figures, the table and the manifest's entry of one experiment; returns the files.

    ``anew=False`` leaves figures that would be drawn the same.
    """
    of = None if anew else uptodate.made_of(result, pictures, [PICTURES[ending][1] or lang() for ending in pictures])
    left = uptodate.kept(folder, name, of)
    written = left or write_figures(folder, name, experiment, result, tick, pictures)
    table = folder / f"{name}.csv"
    write_text(table, csv_text(experiment.rows(result)))
    tick(0.95, "manifest")
    manifest = merge_manifest(folder, name, entry(experiment, result, size))
    if not left:
        uptodate.note(folder, name, of, written)
    return [*written, table, manifest]


def write_figures(
    folder: Path, name: str, experiment: Experiment, result: Any, tick: Tick, pictures: Sequence[str] = ("svg",)
) -> list[Path]:
    """Draw the figures once for each theme and language that ``pictures`` (names of :data:`PICTURES`) ask for."""
    from ..draw.style import save, themed

    written = []
    for kind in dict.fromkeys(PICTURES[ending] for ending in pictures):
        theme, language = kind
        tick(0.1, f"figure, {theme}")
        with speaking(language or lang()), themed(theme):
            for i, draw in enumerate(experiment.figures):
                figure, stem = draw(result), f"{name}.{draw.__name__}" if i else name
                for ending in (asked for asked in pictures if PICTURES[asked] == kind):
                    path = folder / f"{stem}.{ending}"
                    save(figure, path, theme)
                    written.append(path)
    if (animation := experiment.animation) is not None:
        for language in dict.fromkeys(PICTURES[ending][1] for ending in pictures):
            written.append(folder / f"{name}.steps.{language and f'{language}.'}svg")
            with speaking(language or lang()):
                write_text(written[-1], animation())
    return written


# --- the table --------------------------------------------------------------------------------------------------
def csv_text(columns: Columns) -> str:
    """Columns of equal length as CSV; a float as its shortest exact text, an integer as an integer, None as nothing.

    >>> csv_text({"format": ["fp16", "bf16"], "bits": [16, 16], "eps": [2**-10, 2**-7]})
    'format,bits,eps\\nfp16,16,0.0009765625\\nbf16,16,0.0078125\\n'
    """
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise LabError(f"columns of a table have equal lengths; these have {lengths}.")
    return as_csv([columns, *(map(_cell, row) for row in zip(*columns.values(), strict=True))])


def _cell(value: Any) -> str:
    """One value as text that does not depend on the platform or on numpy's print options."""
    if value is None:
        return ""
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, float | np.floating):
        return repr(float(value))
    return str(value)


# --- the manifest -----------------------------------------------------------------------------------------------
def array_of(result: Any, name: str) -> Any:
    """A digested array of a result by its name; integers of any size as limbs. None where there is none."""
    values = getattr(result, name, None)
    values = getattr(values, "values", values)  # of an array with named axes
    return exact_products.pack(values) if values is not None and values.dtype == object else values


def entry(experiment: Experiment, result: Any, size: str) -> dict[str, Any]:
    """What the manifest says of one run."""
    arrays = {name: array_of(result, name) for name in sorted(experiment.digested())}
    for name, array in arrays.items():
        if array is None:
            raise LabError(f"its result has no {name!r}, which has a digest.")
    return {
        "title": experiment.title.en,
        "size": size,
        "parameters": dataclasses.asdict(result.params),
        "versions": versions(),
        "arrays": {name: described(array) for name, array in arrays.items()},
    }


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder, empty where there is none."""
    path = folder / MANIFEST
    if not path.exists():
        return {}
    try:
        manifest = harmless(json.loads(contents(path).decode()), " ")
    except (ValueError, RecursionError) as error:
        raise LabError(f"{str(path)!r} is no JSON ({error}); delete it, and the next run writes a new one.") from None
    except OSError as error:
        raise LabError(f"cannot read {str(path)!r}: {error.strerror}.") from None
    if not isinstance(manifest, dict):
        raise LabError(f"{str(path)!r} is not a manifest; delete it, and the next run writes a new one.")
    return manifest


def merge_manifest(folder: Path, name: str, new: Mapping[str, Any]) -> Path:
    """Put one experiment's entry into the manifest and leave those of the others, who may write theirs meanwhile."""
    with alone(folder):
        manifest = {**read_manifest(folder), name: new}
        text = json.dumps(manifest, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
        write_text(folder / MANIFEST, text + "\n")
    return folder / MANIFEST


def restore(experiment: Experiment, given: Mapping[str, Any]) -> Any:
    """The ``Params`` that a manifest names; JSON's lists are tuples again."""

    def frozen(value: Any) -> Any:
        return tuple(frozen(v) for v in value) if isinstance(value, list) else value

    known, kind = [field.name for field in dataclasses.fields(experiment.full)], type(experiment.full)
    if set(given) != set(known):
        raise LabError(f"the manifest has parameters {sorted(given)}, the experiment takes {sorted(known)}.")
    parameters = {name: frozen(value) for name, value in given.items()}
    if refusal := misfit(kind.__init__, (None,), parameters):
        raise refusal
    return kind(**parameters)


def compare(name: str, experiment: Experiment, manifest: Mapping[str, Any], tick: Tick) -> list[Row]:
    """Run an experiment with the manifest's parameters and compare the digest of each array: a row an array.

    One that digests nothing has a row that says so.
    """
    word = Evidence.PROVED.value
    before = manifest.get(name)
    if before is None:
        outcome = absent(say("not in {file}; fplab figures {name} adds it", file=MANIFEST, name=name))
        return [Row(name, AS_BEFORE, word, outcome)]
    if not _is_entry(before):
        raise LabError(f"the manifest's entry of {name!r} is damaged; fplab figures {name} writes it anew.")
    names = sorted({*before["arrays"], *experiment.digested()})
    if not names:
        return [Row(name, AS_BEFORE, word, absent(say("none of its arrays has the same bits everywhere")))]
    result = experiment.run(restore(experiment, before["parameters"]), tick)
    now = {array: _compared(before["arrays"].get(array), array_of(result, array)) for array in names}
    claim = say("array {array!r} as in the manifest")
    return [Row(name, claim.fill(array=array), word, outcome) for array, outcome in now.items()]


def _is_entry(value: Any) -> bool:
    """Whether a value of a manifest is what :func:`entry` writes, as far as it is read again."""
    parts = [value.get(part) for part in ("parameters", "arrays")] if isinstance(value, dict) else [None]
    if not all(isinstance(part, dict) for part in parts):
        return False
    return all(isinstance(x, dict) and {"dtype", "shape", "sha256"} <= x.keys() for x in value["arrays"].values())


def _compared(before: Mapping[str, Any] | None, array: np.ndarray | None) -> Outcome:
    """One array against what the manifest says of it."""
    if before is None:
        return failed(say("the manifest has no digest of it"))
    if array is None:
        return failed(say("the experiment does not return it any more"))
    now = described(array)
    for what in ("dtype", "shape", "sha256"):
        if now[what] != before[what]:
            differ = say("{what} differs: {now} now, {then} in the manifest", what=what)
            return failed(differ.fill(now=_short(now[what]), then=_short(before[what])))
    return passed(f"{now['dtype']}{now['shape']}, sha256 {now['sha256'][:12]}…")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 20 else text[:12] + "…"

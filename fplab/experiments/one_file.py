"""The recorder as one Python file, and the one file that it writes: made on a stranger's GPU, verified and kept here.

``fplab_record.py`` holds the package's source; it needs torch and numpy and no install. What it writes is a zip of
records without their inputs, which are the package's own, at most 10 MB and without host, user or path. Whoever wrote
one may have made it up: :func:`doubts` says what shows that.
"""

import base64
import getpass
import io
import json
import lzma
import os
import re
import shutil
import socket
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..errors import LabError, reason
from ..hardware import environment, records, scalars, software
from ..hardware.instructions import SCALARS
from ..hardware.records import Record
from ..storage import contents, demand_writable, digest, write_bytes, write_text
from ..tensorcore.gpus import ROWS
from ..version import __version__
from ..words import Text, joined, say
from .outcomes import Evidence, Status, absent, failed
from .recorder import FIRST, Evidenced, cases_of, verify_record
from .recorder import record as record_cases
from .table import Row

PACKAGE = Path(__file__).parents[1]
LIMIT = 10_000_000  # bytes of the file that is written
MEMBERS = 200  # files in one
LEFT_OUT = ("hardware/records/", "pages/", "words/zh", "widgets/data/", "__pycache__")
APART = 0.002  # the least share of an approximation's results that no correctly rounded one gives
NEAR = 2.0**-9  # the most by which any approximation differs, of 1 or of the result
INPUTS = "inputs"  # in a record's meta: the digests of its cases' inputs
SCRIPT = Path(__file__).with_name("fplab_record.py.txt")  # with places for {version} and {package}


# --- the file that records ----------------------------------------------------------------------------------------
def generate(out: Path) -> int:
    """Write the recorder as one Python file; its size in bytes. Equal sources give equal files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(PACKAGE.rglob("*")):
            inside = path.relative_to(PACKAGE).as_posix()
            if path.is_file() and not any(part in inside for part in LEFT_OUT) and path.suffix != ".pyc":
                archive.writestr(zipfile.ZipInfo(f"fplab/{inside}"), path.read_bytes())
    text = base64.b85encode(lzma.compress(buffer.getvalue(), preset=9)).decode()
    lines = "\n".join(text[i : i + 120] for i in range(0, len(text), 120))
    script = SCRIPT.read_text(encoding="utf-8").replace("{version}", __version__).replace("{package}", lines)
    write_text(out, script)
    return len(script)


def main(out: str, device: str | None = None, names: Sequence[str] = FIRST) -> int:
    """Record into one file; what was interrupted goes on. What the one Python file runs."""
    target = Path(out)
    parts = target.with_suffix(".parts")
    try:
        torch = environment.torch_for("cpu")
        there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        device = device or next((name for name in there if there[name]), None)
        if device is None:
            raise LabError(
                "torch sees no GPU (CUDA's, ROCm's or Apple's); --device cpu records the CPU as a stand-in for one."
            )
        demand_writable(parts)
        began: set[str] = set()

        def tick(fraction: float, text: str) -> None:
            if (part := text.split(":")[0]) not in began:
                began.add(part)
                print(say("recording {part} ...", part=part), flush=True)

        done = [recorded.record for recorded in record_cases(parts, device, names, tick=tick, resume=True)]
        left = pack(done, target)
    except LabError as error:
        print(f"fplab_record: {error}")
        return 2
    shutil.rmtree(parts, ignore_errors=True)
    size = target.stat().st_size / 1e6
    print(say("{file}: {n} parts, {size:.1f} MB, no host, user or path in it.", file=out, n=len(done) - len(left),
              size=size))  # fmt: skip
    if left:
        print(say("left out, since the file would have more than 10 MB: {names}", names=", ".join(left)))
    print(say("Then, anywhere: fplab verify {file}; to keep it: fplab records add {file} --origin TEXT",
              file=target.name))  # fmt: skip
    return 0


def pack(done: Sequence[Record], target: Path) -> list[str]:
    """Write records without inputs into one file, the first ones as far as there is room; the names of the others."""
    buffer, left, size = io.BytesIO(), [], 0
    with zipfile.ZipFile(buffer, "w") as archive:
        for record in done:
            data = records.pack(without_inputs(record))
            if size + len(data) > LIMIT - 4096:
                left.append(record.experiment)
                continue
            size += len(data)
            archive.writestr(zipfile.ZipInfo(records.filename(record.meta)), data)
    write_bytes(target, buffer.getvalue())
    return left


def without_inputs(record: Record) -> Record:
    """A record with digests in the place of inputs, and without what a message says of its machine.

    LabError where its description still names the host, the user or a folder.
    """
    digests = {case.name: {name: digest(x) for name, x in case.inputs.items()} for case in record.cases}
    cases = tuple(replace(case, inputs={}) for case in record.cases)
    meta = {**record.meta, INPUTS: digests}
    if "not here" in meta:
        meta["not here"] = {name: impersonal(text) for name, text in meta["not here"].items()}
    failures = {name: impersonal(text) for name, text in record.failed.items()}
    text = json.dumps([meta, failures])
    if wrong := [word for word in _private() if len(word) > 4 and re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text)]:
        raise LabError(f"the record's description names {wrong[0]!r}, which is private; nothing was written.")
    return Record(meta, cases, failures)


def impersonal(text: str) -> str:
    """A message without paths, and without the names of host and user."""
    text = re.sub(r"(?:[A-Za-z]:)?(?:[\\/][\w.+~@-]+){2,}[\\/]?", "<path>", text)
    for word in _private():
        text = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", "<private>", text)
    return text


def _private() -> list[str]:
    """What tells whose machine this is."""
    words = [str(Path.home()), os.getcwd()]
    with suppress(OSError, KeyError, ImportError):
        words += [socket.gethostname(), getpass.getuser()]
    return [word for word in words if len(word) > 2]


# --- the file that was recorded -----------------------------------------------------------------------------------
def opened(path: Path) -> list[Record]:
    """The records of a file, with their inputs; LabError where it is damaged, foreign, or of other inputs."""
    try:
        data = contents(path, LIMIT + 1)
        if len(data) > LIMIT:
            raise LabError(f"it has more than {LIMIT:,} bytes")
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if len(members) > MEMBERS or sum(file.file_size for file in members) > LIMIT:
                raise LabError(f"it holds more than {MEMBERS} files, or would expand to more than {LIMIT:,} bytes")
            if any(file.compress_type != zipfile.ZIP_STORED or not file.filename.endswith(".npz") for file in members):
                raise LabError("it holds something that is no record")
            unpacked = [_with_inputs(records.unpack(archive.read(file))) for file in members]
        if not unpacked:
            raise LabError("there is no record in it")
        return unpacked
    except OSError as error:
        raise LabError(f"cannot read {str(path)!r}: {error.strerror or error}.") from None
    except (LabError, zipfile.BadZipFile, ValueError, KeyError, TypeError, AttributeError, NotImplementedError,
            RuntimeError) as error:  # fmt: skip  # the parser of zip raises whatever it comes upon
        raise LabError(f"record {str(path)!r} is refused: {reason(error)}.") from None


def _with_inputs(record: Record) -> Record:
    """A record with the inputs that its cases have here."""
    meta = dict(record.meta)
    digests = meta.pop(INPUTS)
    here = {case.name: case for case in cases_of(record.experiment, record.meta["size"])}
    cases = []
    for done in record.cases:
        if done.name not in here:
            raise LabError(f"this version has no case {done.name!r} of {record.experiment!r}")
        inputs = here[done.name].inputs()
        if {name: digest(x) for name, x in inputs.items()} != digests.get(done.name):
            raise LabError(f"case {done.name!r} of {record.experiment!r} had other inputs than here")
        if dict(here[done.name].formats) != done.formats:
            raise LabError(f"case {done.name!r} of {record.experiment!r} has other outputs than here")
        cases.append(replace(done, inputs=inputs))
    return Record(meta, tuple(cases), record.failed)


def doubts(parts: Sequence[Record]) -> list[Text]:
    """Why records that claim to be of a GPU may not be: no proof that they are where there is none.

    All parts are of one device and its software, its compute capability is that of its name, and it approximates as
    GPUs do, whose approximations the lab has no model of: near to what is right, and often not the nearest number.
    """
    if not any(record.on_gpu for record in parts):
        return []
    if any(record.meta["kind"] == "mps" for record in parts):
        return [say("the lab has no model of Apple's GPUs, by which a recording is told from a computation")]
    reasons: list[Text] = []
    for name in ("kind", "device", "capability", "driver", "cuda", "torch", "numpy", "python", "platform", "fplab"):
        if len({str(record.meta.get(name)) for record in parts}) > 1:
            reasons.append(say("its parts differ in {name}", name=name))
    meta = parts[0].meta
    reasons += [say("it has no {name}", name=name) for name in ("capability", "driver", "cuda") if not meta.get(name)]
    with suppress(LabError):
        row = next(row for row in ROWS if row.name == software.gpu_of(meta))
        if row.capability and ".".join(map(str, row.capability)) != str(meta.get("capability")):
            reasons.append(say("{device} has another compute capability than {given}", device=row.name,
                            given=str(meta.get("capability"))))  # fmt: skip
    outputs = {case.name: case for record in parts if record.experiment == "scalar" for case in record.cases}
    for scalar in SCALARS:
        if "approx" not in scalar.opcode or scalar.y != "f" or scalar.since > (7, 0):
            continue
        if scalar.name not in outputs:
            reasons.append(say("{name} is missing, which every GPU has", name=scalar.name))
            continue
        case = outputs[scalar.name]
        given = list(case.inputs.values())
        with np.errstate(all="ignore"):
            numbers = [x.view(np.float32).astype(np.float64) for x in (scalars.correctly_rounded(scalar, given),
                                                                      case.outputs["y"], *given)]  # fmt: skip
            right, y, *operands = numbers
            plain = np.isfinite(right) & (np.abs(right) > 2.0**-100) & (np.abs(right) < 2.0**100)
            for x in operands:
                plain &= (np.abs(x) > 2.0**-16) & (np.abs(x) < 2.0**16)
            far = np.abs(y - right)[plain] > NEAR * np.maximum(1, np.abs(right[plain]))
            apart = (y != right)[plain].mean()
        if far.any() or not np.isfinite(y[plain]).all():
            reasons.append(say("{name} gives what no approximation does", name=scalar.name))
        elif apart < APART and scalar.operands == 1 and "sqrt" not in scalar.opcode:
            reasons.append(say("{name} is correctly rounded, as in no GPU", name=scalar.name))
    return reasons


def verify(path: Path) -> tuple[list[Evidenced], list[Text]]:
    """The cases of a file against the lab's bits, and what is to be said of it: unit, doubts, what it would settle.

    Where there are doubts no case passes as a GPU's.
    """
    try:
        parts = opened(path)
    except LabError as error:
        return [Evidenced(Row("records", path.name, Evidence.RECORDED.value, failed(str(error))), "")], []
    compared = [case for record in parts for case in verify_record(record)]
    meta, doubted = parts[0].meta, doubts(parts)
    try:
        unit = software.gpu_of(meta) if parts[0].on_gpu else str(say("no GPU"))
    except LabError as error:
        unit = str(error)
    notes: list[Text] = [say("{device}: the unit of {unit}", device=meta["device"], unit=unit)]
    agreed = [case for case in compared if case.row.outcome.status is Status.PASS]
    notes.append(say("{agreed} cases agree in every bit, {n} do not or cannot be compared.", agreed=len(agreed),
                    n=len(compared) - len(agreed)))  # fmt: skip
    settled = ", ".join(dict.fromkeys(f"{case.row.experiment}: {case.row.claim}" for case in agreed))
    if doubted:
        why = joined(doubted, say("; "))
        notes.append(say("It is doubtful that a GPU made this, so nothing of it passes: {why}.", why=why))
        compared = [
            replace(case, row=replace(case.row, outcome=absent(say("doubtful: {why}", why=why))))
            if case in agreed
            else case
            for case in compared
        ]
    elif not parts[0].on_gpu:
        notes.append(say("A CPU stood in for a GPU: it settles nothing."))
    elif settled:
        notes.append(say("It would settle, for this GPU: {parts}.", parts=settled))
    return compared, notes


def add(path: Path, origin: str) -> list[Path]:
    """Put a file's records where the package finds them, with their origin; their paths.

    LabError for a file that is doubtful, of no GPU, or without an origin.
    """
    parts = opened(path)
    if doubted := doubts(parts):
        raise LabError(f"record {str(path)!r} is doubtful and is not added: {'; '.join(map(str, doubted))}.")
    if not parts[0].on_gpu:
        raise LabError(f"record {str(path)!r} is a CPU's that stood in for a GPU; it is no evidence and is not added.")
    if not origin.strip():
        raise LabError("the origin of a record is who made it, and where; it may not be empty.")
    folder = records.added()
    demand_writable(folder)
    return [
        written
        for record in parts
        for written, _ in records.save(folder, replace(record, meta={**record.meta, "origin": origin.strip()}))
    ]

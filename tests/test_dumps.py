"""Dumps: what a program computed, noted by one file without fplab, read without trust, and computed again."""

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils._debug_mode import DebugMode

from fplab import LabError
from fplab.nn import capture, explain
from fplab.nn.diagnose import capturing, dumps


def trained(out: Path, what: str = "rows", **given: int) -> tuple[nn.Module, torch.Tensor]:
    """A dump of one training step: attention, dropout, what changes in place, lists of tensors."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.Embedding(300, 32), nn.TransformerEncoder(layer, 2), nn.Linear(32, 300))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = torch.randint(300, (2, 8))
    with capture(model, out, what, **given):
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
    return model, tokens


def digests(dump: dumps.Dump, values: list[torch.Tensor | None]) -> list[int]:
    """The tensors whose values have another digest than the one noted."""
    known = ((n, x, note["digest"]) for n, (x, note) in enumerate(zip(values, dump.tensors, strict=True))
             if x is not None and "digest" in note)  # fmt: skip
    return [n for n, x, digest in known if digest[:16] != f"{capturing.digest(x.detach().contiguous()):016x}"]


def test_a_training_step_is_computed_again_to_the_bit(tmp_path: Path) -> None:
    model, _ = trained(tmp_path)
    dump = dumps.read(tmp_path)
    values = dump.run()
    assert not any(x is None for x in values)
    assert digests(dump, values) == []
    named = {note["name"]: n for n, note in enumerate(dump.tensors) if "name" in note}
    assert named.keys() >= {name for name, _ in model.named_parameters()}
    modules = {op.module for op in dump.operations}
    assert {"0", "1.layers.0.self_attn", "1.layers.1.linear2", "2"} <= modules
    output = values[dump.output]
    assert output is not None
    assert output.shape == (2, 8, 300)
    doubled = dump.run(lambda n, f, args, kwargs: 2 * f(*args, **kwargs) if "addmm" in str(f) else f(*args, **kwargs))
    assert digests(dump, doubled)


def test_the_library_reads_the_file_and_has_the_same_tensors(tmp_path: Path) -> None:
    _, tokens = trained(tmp_path, "all")
    dump, theirs = dumps.read(tmp_path), load_file(tmp_path / "rank-0.safetensors")
    assert theirs.keys() == {str(n) for n in dump.kept}
    assert all(theirs[str(n)].numpy().tobytes() == x.numpy().tobytes() for n, x in dump.kept.items())
    assert any(torch.equal(x, tokens) for x in theirs.values())


def test_how_much_is_kept_is_bounded(tmp_path: Path) -> None:
    sizes = {}
    for what in capturing.WHAT:
        trained(tmp_path / what, what)
        sizes[what] = (tmp_path / what / "rank-0.safetensors").stat().st_size
    assert sizes["digests"] < sizes["rows"] < sizes["all"]
    trained(tmp_path / "few", most=1000, operations=100)
    few = dumps.read(tmp_path / "few")
    assert few.cut
    assert len(few.operations) == 100
    assert sum(x.nbytes for x in few.kept.values()) <= 1000
    assert any(x is None for x in few.run())  # what was not kept is not made up


ALONE = """
import sys, torch
from capturing import Capture
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
with Capture(model, "dump") as recording:
    model(torch.randn(4, 8))
assert not any(name.partition(".")[0] in ("fplab", "numba") for name in sys.modules)
"""


def test_one_file_does_it_without_fplab(tmp_path: Path) -> None:
    shutil.copy(str(capturing.__file__), tmp_path)
    here = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", ALONE], cwd=tmp_path, env=here, check=True)
    dump = dumps.read(tmp_path / "dump")
    assert [op.short for op in dump.operations] == ["randn", "t", "addmm", "gelu"]
    assert digests(dump, dump.run()) == []


def test_a_block_that_fails_leaves_what_there_was(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), capture(nn.Linear(4, 4), tmp_path):
        nn.Linear(4, 4)(torch.ones(2, 4)) @ torch.ones(3, 3)
    assert "RuntimeError" in json.loads((tmp_path / "rank-0.json").read_text())["error"]
    assert [op.short for op in dumps.read(tmp_path).operations][-3:] == ["t", "addmm", "ones"]


HOSTILE = [
    (lambda m: m.update(format="x"), "does not say that it is a fplab dump"),
    (lambda m: m.update(version=9), "of version 9"),
    (lambda m: m.pop("tensors"), "tensors"),
    (lambda m: m["tensors"][0].update(shape=[1 << 40], stride=[1]), "not as large"),
    (lambda m: m["tensors"][0].update(shape="ab"), "tensor 0 is damaged"),
    (lambda m: m["tensors"][0].update(dtype="load"), "tensor 0 is damaged"),
    (lambda m: m["tensors"][1].update(same=1), "tensor 1 is damaged"),
    (lambda m: m["operations"][0].update(results=[10**9]), "names tensor"),
    (lambda m: m["operations"][0].update(args=[{"t": "x"}]), "names tensor"),
    (lambda m: m["operations"][0].update(name=3), "operation 0 is damaged"),
    (lambda m: m.update(output=10**9), "the output is tensor"),
    (lambda m: m["operations"][0].update(name="aten.from_file.default"), "none that a dump may have"),
    (lambda m: m["operations"][0].update(name="os.system.default"), ""),  # is never called
    (lambda m: m["operations"][0].update(name="aten.nonsense.default"), "none that a dump may have"),
    (lambda m: m["operations"][0].update(args=[1, 2, 3]), "aten.t.default"),
]  # fmt: skip


@pytest.mark.parametrize(("harm", "why"), HOSTILE)
def test_a_hostile_manifest_is_refused_in_words(harm, why: str, tmp_path: Path) -> None:
    layer, x = nn.Linear(4, 4), torch.ones(2, 4)
    with capture(None, tmp_path):
        layer(x)
    manifest = json.loads((tmp_path / "rank-0.json").read_text())
    harm(manifest)
    (tmp_path / "rank-0.json").write_text(json.dumps(manifest))
    if not why:
        assert len(dumps.read(tmp_path).run()) > 3
        return
    with pytest.raises(LabError, match=why):
        dumps.read(tmp_path).run()


@pytest.mark.parametrize("name", ["rank-0.json", "rank-0.safetensors"])
def test_a_file_with_any_byte_changed_or_cut_is_read_or_refused(name: str, tmp_path: Path) -> None:
    with capture(None, tmp_path):
        nn.Linear(4, 4)(torch.ones(2, 4))
    data, draw = (tmp_path / name).read_bytes(), random.Random(0)
    for _ in range(200):
        at = draw.randrange(len(data))
        cut = bytes([draw.randrange(256)]) + data[at + 1 :] if draw.random() < 0.8 else b""
        (tmp_path / name).write_bytes(data[:at] + cut)
        with contextlib.suppress(LabError):
            dumps.read(tmp_path).run()
    (tmp_path / name).unlink()
    with pytest.raises(LabError, match="No such file"):
        dumps.read(tmp_path)


def test_what_is_asked_for_is_checked(tmp_path: Path) -> None:
    for call, why in (
        (lambda: capture(3, tmp_path), "model is a int; pass a torch"),
        (lambda: capture(None, tmp_path, "al"), "unknown choice of what to keep 'al'"),
        (lambda: capture(None, tmp_path, most=-1), "most=-1"),
    ):
        with pytest.raises(LabError, match=why):
            call()


def test_a_compiled_model_is_refused_in_words(tmp_path: Path) -> None:
    layer = nn.Linear(4, 4)
    compiled = torch.compile(lambda x: layer(x) * 2, backend="eager")
    compiled(torch.ones(2, 4))
    for rows in (2, 3):  # in torch's cache, and not
        with pytest.raises(RuntimeError, match=r"torch\.compile joins operations"), capture(None, tmp_path):
            compiled(torch.ones(rows, 4))
    assert compiled(torch.ones(2, 4)).shape == (2, 4)


def debugged(model: nn.Module, x: torch.Tensor, path: Path, inputs: bool = True) -> str:
    """The text of torch's DebugMode, with hashes."""
    mode = DebugMode(record_nn_module=True, record_ids=True)
    with torch.no_grad(), mode, DebugMode.log_tensor_hashes(hash_inputs=inputs):
        model(x).chunk(2, -1)[0].add_(1.5)
    path.write_text(mode.debug_string())
    return mode.debug_string()


def test_the_text_of_debug_mode_says_where_two_programs_part_and_in_what(tmp_path: Path) -> None:
    torch.manual_seed(0)
    parts = nn.Embedding(9, 16), nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Dropout(0.0), nn.Linear(32, 4)
    model, x = nn.Sequential(*parts), torch.randint(9, (2, 8))
    a, b = tmp_path / "a.txt", tmp_path / "b.txt"
    debugged(model, x, a)
    changes: list[tuple[Any, str, Any, str, Any]] = [
        (model[2], "approximate", "tanh", "Sequential.2", {"approximate": ("none", "tanh")}),
        (model[3], "eps", 1e-2, "Sequential.3", {"eps": ("1e-05", "0.01")}),
    ]
    for layer, name, value, place, facts in changes:
        before = getattr(layer, name)
        setattr(layer, name, value)
        debugged(model, x, b)
        setattr(layer, name, before)
        said = explain(a, b)
        (row,) = said.rows
        assert (row.a, str(row.kind), row.facts, row.exact) == (place, name, facts, False)
        assert "The outputs differ; their values were not kept." in str(said)
        assert "It could not be computed again here: operands were not kept." in " ".join(str(said).split())
    with torch.no_grad():
        model[1].weight.mul_(2)
    debugged(model, x, b)
    (row,) = explain(a, b).rows
    assert (row.a, str(row.kind)) == ("Sequential.1", "data")
    assert str(explain(a, a).text) == "The outputs have the same hash."
    debugged(model, x, b, inputs=False)
    for path in (b, Path(__file__)):
        with pytest.raises(LabError, match="it does not say of every tensor its number and hash"):
            explain(a, path)


def test_a_text_with_any_part_changed_or_cut_is_read_or_refused(tmp_path: Path) -> None:
    draw, path = random.Random(0), tmp_path / "a.txt"
    text = debugged(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), torch.ones(2, 4), path)
    (tmp_path / "b.txt").write_text(text)
    refusals = []
    for _ in range(300):
        at, more = draw.randrange(len(text)), draw.randrange(9)
        path.write_text(
            text[:at] + draw.choice(["", "'", "(", "t$9999: f32[2]", "\x00", "1e999", "[[[["]) + text[at + more :]
        )
        try:
            explain(path, tmp_path / "b.txt", most=2)
        except LabError as error:
            refusals.append(str(error))
    assert all("holds no dump that fplab can read" in words for words in refusals)
    assert 20 < len(refusals) < 280

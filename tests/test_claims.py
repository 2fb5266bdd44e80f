"""The source documents' claims: each verdict is computed, and is what the lab's own notes on the documents say."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import fplab
from fplab import LabError, claims
from fplab.claims import base, memory, quantisation, tables, training
from fplab.claims.base import Part, Verdict
from fplab.claims.training import UNDERFLOW
from fplab.language import speaking
from fplab.words import verbatim

nbformat = pytest.importorskip("nbformat")
NOTEBOOK = Path(__file__).parent.parent / "notebooks" / "claims.ipynb"
CHINESE = re.compile(r"[\u4e00-\u9fff]")

EXPECTED = {
    Verdict.TRUE: """
        fields bf16-loses-3 sizes fp32-partials small-gradients gradient-times-lr
        adam-written-out same-accuracy fp16-or-bf16 straight-through eight-bit-step three-quarters blockwise tree
        table-and-search per-billion bloom-bytes recomputation collectives replicas pipeline zero fp8-formats mx-scale
        mx-round-up nvfp4-ingredients four-over-six bf16-support overfitting bf16-loop extrema layer-by-layer
    """,
    Verdict.LOOSE: """
        ranges fp16-exponents generations all-underflow master-copy amp-loop decay-is-l2 compute-and-storage
        pytorch-names
        llm-int8-slower int4-on-turing int8-values percentile-calibration block-maximum stable-embedding one-one-two
        six-billion bloom-cards memory-halved intermediates offloading tensor-parallel fp8-promotion eight-bit-as-good
    """,
    Verdict.WRONG: """
        bf16-finer fp16-below bf16-like-fp32 int8-bytes int4-training histogram-shift all-but-master training-shares
        dynamic-map half-partials
    """,
    Verdict.UNTRIED: "half-is-faster",
}


@pytest.mark.parametrize(
    ("name", "verdict"), [(name, verdict) for verdict, names in EXPECTED.items() for name in names.split()]
)
def test_a_verdict_is_what_comes_out_when_the_claim_is_tried(name, verdict):
    claim = claims.get(name)
    assert claim.verdict is verdict, "\n" + str(claims.tried(name))


def test_every_claim_is_expected_and_has_a_try():
    names = [claim.name for claim in claims.claims()]
    assert len(set(names)) == len(names)
    assert set(names) == set(claims.TRIES) == {name for names in EXPECTED.values() for name in names.split()}
    chapters = [claim.chapter for claim in claims.claims()]
    assert chapters == sorted(chapters)
    sources = {source for claim in claims.claims() for source in claim.source.split(", ")}
    assert sources == {*(f"D{i}" for i in range(1, 6)), *(f"P{i}" for i in range(1, 7))}


def numbers(text: str) -> list[str]:
    """The numbers of a text, in order of size."""
    return sorted(re.findall(r"\d[\d.,]*(?<![.,])", text))


def test_every_text_is_there_in_both_languages():
    for claim in claims.claims():
        for text in (claim.statement, claim.why, *(part.about for part in claim.parts)):
            assert text.en.isascii() or not CHINESE.search(text.en), text
            assert CHINESE.search(text.zh) or text.zh == text.en == "torch.cuda.amp.GradScaler", text
        for part in claim.parts:
            for text in (part.claimed, part.found):
                assert text.en, part
                assert not CHINESE.search(text.en), part
                assert bool(CHINESE.search(text.zh)) or text.en == text.zh, part
                assert numbers(text.en) == numbers(text.zh), part


def made(*verdicts: Verdict | None) -> tuple[Part, ...]:
    return tuple(Part(verbatim("a"), verbatim("b"), verbatim("c"), verdict) for verdict in verdicts)


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [(made(Verdict.TRUE, Verdict.TRUE), Verdict.TRUE),
     (made(Verdict.LOOSE, Verdict.TRUE), Verdict.LOOSE),
     (made(Verdict.TRUE, Verdict.WRONG, Verdict.LOOSE), Verdict.WRONG),
     (made(Verdict.TRUE, Verdict.UNTRIED), Verdict.TRUE),
     (made(Verdict.UNTRIED), Verdict.UNTRIED),
     (made(Verdict.LOOSE, None), Verdict.LOOSE)],
)  # fmt: skip
def test_a_claim_is_worth_its_weakest_part_and_untried_parts_count_for_nothing(parts, verdict, monkeypatch):
    monkeypatch.setitem(base.TRIES, "made up", lambda: parts)
    base._tried.cache_clear()
    assert base.SourceClaim("made up", 1, "D1", verbatim("x"), verbatim("y")).verdict is verdict
    base._tried.cache_clear()


def test_a_part_holds_strictly_loosely_or_not_at_all():
    cases = {(True,): Verdict.TRUE, (True, True): Verdict.TRUE, (False, True): Verdict.LOOSE, (False,): Verdict.WRONG}
    assert {how: base.part(verbatim("a"), "b", "c", *how).verdict for how in cases} == cases
    assert base.equal(verbatim("a"), 3, 3).verdict is Verdict.TRUE
    assert base.equal(verbatim("a"), 3, 4).verdict is Verdict.WRONG


def constant(value):
    """A fault that puts a value in the place of another."""
    return lambda good: value


def returning(value):
    """A fault that makes a function give a value, whatever it is given."""
    return lambda good: lambda *args, **how: value


def times(factor):
    """A fault that multiplies what a function gives."""
    return lambda good: lambda *args, **how: good(*args, **how) * factor


def estimate(**instead):
    """A fault of the calculator: other options than those asked for."""
    return lambda good: lambda *args, **how: good(*args, **{**how, **instead})


def bytes_of(**factors):
    """A fault of the bytes by kind: some kinds are larger or smaller."""
    return lambda good: lambda *args, **how: {k: v * factors.get(k, 1) for k, v in good(*args, **how).items()}


def without(name):
    """A fault of a table: an entry is gone."""
    return lambda good: {key: value for key, value in good.items() if key != name}


def first_code_flipped(good):
    def quantise(*args, **how):
        q = good(*args, **how)
        q.codes.reshape(-1)[0] ^= 1
        return q

    return quantise


SWAPPED = {"fp16": "bf16", "bf16": "fp16"}
ONES = np.ones(64, np.float32)
LOSSES = [{"states": s, "final_loss": "3.0", "unstable": "false"} for s in ("32-bit", "dynamic + blocks", "linear")] * 2
POINTS = [{"bits": "4", "right": "0.9", "right_fp32": "0.91"}] * 2
BITS, TRAINING, OPTIMIZERS = "fplab.claims.bits", "fplab.claims.training", "fplab.claims.optimizers"
QUANTISATION, MEMORY, PARALLEL = "fplab.claims.quantisation", "fplab.claims.memory", "fplab.claims.parallel"
SCALES = "fplab.claims.scales"
MUTANTS = {  # of each claim another world, in which its verdict is another
    "fields": (f"{BITS}.fields", returning((1, 8, 7))),
    "ranges": (f"{BITS}.decades", returning((-30, 30))),
    "bf16-finer": (f"{BITS}.get", lambda good: lambda name: good(SWAPPED.get(name, name))),
    "fp16-below": (f"{BITS}.get", lambda good: lambda name: good({"fp16": "e4m3", "bf16": "fp16"}.get(name, name))),
    "bf16-loses-3": (f"{BITS}.digits", lambda good: lambda name: {"fp16": 11}.get(name, 9)),
    "bf16-like-fp32": (f"{BITS}.digits", returning(24)),
    "int8-bytes": (f"{BITS}.signed_byte", returning((8, -128, 127))),
    "sizes": (f"{BITS}.signed_byte", returning((2, -128, 127))),
    "int8-values": (f"{BITS}.signed_byte", returning((1, -127, 127))),
    "fp16-exponents": (f"{BITS}.get", lambda good: lambda name: good("bf16")),
    "int4-training": (f"{BITS}.stored", lambda good: lambda x, how: x),
    "generations": (f"{BITS}.quantize", times(0.5)),
    "bf16-support": (f"{BITS}.has", returning(True)),
    "half-partials": (f"{TRAINING}.fp16", lambda good: np.asarray),
    "fp32-partials": (f"{TRAINING}.dot", times(1.01)),
    "all-underflow": (f"{TRAINING}.add", returning((0, UNDERFLOW))),
    "small-gradients": (f"{TRAINING}.sample", returning(ONES)),
    "histogram-shift": (f"{TRAINING}.sgd_step", lambda good: np.sign),  # steps that no scale changes, as Adam's
    "gradient-times-lr": (f"{TRAINING}.sample", returning(ONES)),
    "compute-and-storage": (f"{TRAINING}.RULES", without("softmax.int")),
    "pytorch-names": ("torch.cuda.amp.GradScaler", returning(None)),
    "same-accuracy": (f"{TRAINING}.TOP_1", constant({"ResNet50": (76.0, 75.0)})),
    "fp16-or-bf16": (f"{TRAINING}.sample", returning(ONES)),
    "master-copy": (f"{OPTIMIZERS}.add", lambda good: lambda a, b, fmt: a + b),
    "all-but-master": (f"{OPTIMIZERS}.fp16", lambda good: np.asarray),
    "amp-loop": ("torch.nn.Linear", lambda good: lambda *sizes: good(*sizes).half()),
    "adam-written-out": ("torch.optim.AdamW", lambda good: torch.optim.Adam),
    "decay-is-l2": (f"{OPTIMIZERS}.one_step", returning(1.9)),
    "overfitting": ("torch.optim.AdamW", lambda good: lambda p, lr, weight_decay: good(p, lr=lr)),
    "bf16-loop": ("torch.nn.Linear", lambda good: lambda *sizes: good(*sizes).bfloat16()),
    "eight-bit-as-good": (f"{QUANTISATION}.rows_of", returning(LOSSES)),
    "llm-int8-slower": (f"{QUANTISATION}.BLOOM_TIMES", constant((((100, 100), (118, 119)),))),
    "int4-on-turing": (f"{QUANTISATION}.rows_of", returning(POINTS)),
    "percentile-calibration": ("fplab.integers.Histogram.percentile", returning(1e9)),
    "straight-through": ("fplab.nn.fake_quantize", lambda good: lambda x, *args, **how: x * 1),
    "eight-bit-step": ("fplab.training.Adam8bit", lambda good: lambda p, block: good(p, block=1024)),
    "three-quarters": ("fplab.memory.estimate", lambda good: lambda n, **how: good(n, precision="fp32")),
    "blockwise": ("fplab.codebooks.quantize_blockwise", lambda good: lambda x, book, *args: good(x, book, None)),
    "block-maximum": ("fplab.codebooks.dynamic", lambda good: fplab.codebooks.linear),
    "tree": (f"{QUANTISATION}.tree.fields", lambda good: lambda code, *args: good(code ^ 1, *args)),
    "dynamic-map": (f"{QUANTISATION}.states", returning((np.logspace(-4, 0, 99), np.logspace(-4, 0, 99)))),
    "stable-embedding": ("fplab.training.StableEmbedding", lambda good: torch.nn.Embedding),
    "table-and-search": ("fplab.codebooks.quantize_blockwise", first_code_flipped),
    "offloading": ("fplab.memory.estimate", lambda good: lambda n, **how: good(2 * n, **how)),
    "per-billion": (
        f"{MEMORY}.estimate",
        lambda good: lambda *a, **how: good(*a, **how if "precision" in how else {"inference": "fp32"}),
    ),
    "one-one-two": (f"{MEMORY}.device", bytes_of(gradients=2)),
    "six-billion": (f"{MEMORY}.device", bytes_of(parameters=2)),
    "bloom-bytes": (f"{MEMORY}.estimate", lambda good: lambda name, **how: good("gpt3", **how)),
    "bloom-cards": (f"{MEMORY}.CARD", constant(30 * memory.BILLION)),
    "training-shares": (f"{MEMORY}.device", bytes_of(gradients=2.5)),
    "memory-halved": (
        f"{MEMORY}.device",
        lambda good: (
            lambda *args, precision, **how: {
                kind: size * (2 if precision == "mixed" else 1)
                for kind, size in good(*args, precision=precision, **how).items()
            }
        ),
    ),
    "intermediates": (f"{MEMORY}.activations.layer_terms", lambda good: lambda *args: good(*args)[:1]),
    "recomputation": ("torch.utils.checkpoint.checkpoint", lambda good: lambda f, x, **how: f(x) * 1.01),
    "collectives": ("fplab.parallel.collectives.execute", times(1.01)),
    "extrema": ("fplab.parallel.collectives.Wire.plus", lambda good: lambda self, x, y: np.float32(x + y)),
    "layer-by-layer": ("fplab.parallel.collectives.execute", lambda good: lambda c, x: good(c, x) + x.shape[1]),
    "replicas": (f"{PARALLEL}.estimate", lambda good: lambda n, gpus: good(n, gpus=gpus, zero=int(gpus > 1))),
    "tensor-parallel": (f"{PARALLEL}.matmul", lambda good: lambda a, b, gpu: good(a, b, gpu=gpu)[:, ::-1]),
    "pipeline": ("fplab.parallel.schedules.timeline", lambda good: lambda name, stages, n: good(name, stages, 8)),
    "zero": (f"{PARALLEL}.estimate", estimate(zero=0)),
    "fp8-formats": (f"{SCALES}.decode", lambda good: lambda codes, name: good(codes, "e5m2")),
    "mx-scale": (f"{SCALES}.quantize", lambda good: lambda x, name: good(x, name, rule="ceil")),
    "fp8-promotion": (f"{SCALES}.product", lambda good: lambda a, b, gpu, every: good(a, b, "B200", every)),
    "mx-round-up": (f"{SCALES}.quantize", lambda good: lambda x, name, rule: good(x, name, rule="floor")),
    "nvfp4-ingredients": (
        f"{SCALES}.quantize",
        lambda good: lambda x, name, *axis, rounding="", seed=0, **how: good(x, name, *axis, **how),
    ),
    "four-over-six": (f"{SCALES}.quantize", lambda good: lambda x, name, rule="": good(x, name)),
}


def test_every_claim_that_is_tried_has_a_mutant():
    assert set(MUTANTS) == {c.name for c in claims.claims() if c.verdict is not Verdict.UNTRIED}


@pytest.mark.parametrize("name", MUTANTS)
def test_another_world_gives_another_verdict(name, monkeypatch):
    """A verdict that no finding could change would be an assertion."""
    path, fault = MUTANTS[name]
    there, last = resolved(path)
    monkeypatch.setattr(there, last, fault(getattr(there, last)))
    parts = claims.TRIES[name]()
    found = max((p.verdict for p in parts if p.verdict not in (None, Verdict.UNTRIED)), key=lambda v: v.rank)
    assert found is not claims.get(name).verdict, parts


def resolved(path: str):
    """What holds the last name of a dotted path, module or class, and that name."""
    names = path.split(".")
    there = importlib.import_module(names[0])
    for name in names[1:-1]:
        if not hasattr(there, name):
            importlib.import_module(f"{there.__name__}.{name}")
        there = getattr(there, name)
    return there, names[-1]


def test_what_was_not_drawn_here_is_said_to_be_untried(monkeypatch):
    monkeypatch.setattr(quantisation, "rows_of", lambda name: [])
    assert {part.verdict for part in quantisation.int4_on_turing()} == {Verdict.UNTRIED}
    assert {part.verdict for part in quantisation.eight_bit_as_good()} == {Verdict.UNTRIED}
    monkeypatch.setattr(training, "rows_of", lambda name: [])
    assert list(training.same_accuracy())[-1].verdict is Verdict.UNTRIED


# --- what is shown ----------------------------------------------------------------------------------------------
def test_tables_say_the_verdict_with_a_sign_and_a_word_in_both_languages():
    html = claims.overview()._repr_html_()
    for verdict in Verdict:
        assert f"{verdict.sign}</b> {verdict.word.en}" in html
        assert f"{verdict.sign}</b> {verdict.word.zh}" in html
    assert html.count("<tr") == 2 * (len(claims.claims()) + 1)
    assert sum(claims.overview().counts().values()) == len(claims.claims())
    one = claims.tried("half-is-faster")
    assert "?</b> UNTRIED" in one._repr_html_()
    assert "?</b> 未检验" in one._repr_html_()
    for claim in claims.claims():  # the heads and the words of every table are those of its language
        english, chinese = claims.tried(claim.name)._repr_html_().split('<div class="fplab-zh"')
        assert not CHINESE.search(english)
        assert all(f">{head.zh}</th>" in chinese for head in tables.HEADS)
        assert not re.search(r">(part|it says|the lab finds|verdict)<|</b> (TRUE|LOOSE|WRONG|UNTRIED)", chinese)
    with speaking("zh"):
        assert str(one).startswith("? 未检验：在 Tensor Core 上")
    assert repr(claims.tried("bf16-finer")).startswith("✗ WRONG: BF16 has a smaller range")
    assert len(repr(claims.overview()).splitlines()) == len(claims.claims())


@pytest.mark.parametrize("damaged", ["[[claim]]", "claim = 3", "[[claim", "[other]", "\x00"])
def test_a_damaged_table_of_claims_says_what_to_do(damaged: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "claims.toml").write_text(damaged)
    monkeypatch.setattr(claims, "HERE", tmp_path)
    with pytest.raises(LabError, match=r"claims.toml' is part of fplab and cannot be read \(.*\); install fplab again"):
        claims.claims.__wrapped__()


def test_the_notebook_has_every_claim_with_the_verdict_that_is_computed():
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    told = {cell.source: i for i, cell in enumerate(cells) if cell.cell_type == "markdown"}
    places = []
    for claim in claims.claims():
        assert claims.markdown(claim) in told, f"{claim.name}: its cell is not what claims.markdown gives"
        at = told[claims.markdown(claim)]
        assert f'fplab.claims.tried("{claim.name}")' in cells[at + 1].source, claim.name
        places.append(at)
    assert places == sorted(places)
    for chapter in {claim.chapter for claim in claims.claims()}:
        assert told[tables.heading(chapter)] < min(
            told[claims.markdown(c)] for c in claims.claims() if c.chapter == chapter
        )
    assert any(cell.source == "fplab.claims.overview()" for cell in cells[: min(places)])


def test_the_examples_of_the_notebook_are_called_what_they_are():
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    kinds = {"one that holds": Verdict.TRUE, "one that is loose": Verdict.LOOSE, "one that is wrong": Verdict.WRONG}
    named = [(kind, cells[i + 1].source) for i, cell in enumerate(cells) for kind in kinds if kind in cell.source]
    assert named
    for kind, source in named:
        assert claims.get(source.split('"')[1]).verdict is kinds[kind], (kind, source)

"""The source documents' claims: each verdict is computed, and is what the lab's own notes on the documents say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fplab import LabError, claims
from fplab.claims import base, bits, memory, optimizers, parallel, quantisation, show, training
from fplab.claims.base import Part, Verdict
from fplab.language import Text, speaking

nbformat = pytest.importorskip("nbformat")
NOTEBOOK = Path(__file__).parent.parent / "notebooks" / "claims.ipynb"
CHINESE = re.compile(r"[\u4e00-\u9fff]")

EXPECTED = {
    Verdict.TRUE: """
        fields bf16-loses-3 sizes fp32-partials small-gradients histogram-shift gradient-times-lr master-copy
        adam-written-out half-is-faster same-accuracy fp16-or-bf16 straight-through eight-bit-step three-quarters
        blockwise tree table-and-search offloading per-billion bloom-bytes recomputation collectives replicas
        tensor-parallel pipeline zero
    """,
    Verdict.LOOSE: """
        ranges fp16-exponents generations all-underflow amp-loop decay-is-l2 compute-and-storage pytorch-names
        llm-int8-slower int4-on-turing percentile-calibration block-maximum dynamic-map stable-embedding one-one-two
        six-billion bloom-cards memory-halved intermediates
    """,
    Verdict.WRONG: """
        bf16-finer fp16-below bf16-like-fp32 int8-bytes int8-values int4-training all-but-master training-shares
    """,
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
    assert {source for claim in claims.claims() for source in claim.source.split(", ")} == {
        "D1",
        "D2",
        "D3",
        "D4",
        "D5",
    }


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
    return tuple(Part(Text("a", "a"), Text("b", "b"), Text("c", "c"), verdict) for verdict in verdicts)


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        (made(Verdict.TRUE, Verdict.TRUE), Verdict.TRUE),
        (made(Verdict.LOOSE, Verdict.TRUE), Verdict.LOOSE),
        (made(Verdict.TRUE, Verdict.WRONG, Verdict.LOOSE), Verdict.WRONG),
        (made(Verdict.TRUE, Verdict.UNTRIED), Verdict.TRUE),
        (made(Verdict.UNTRIED), Verdict.UNTRIED),
        (made(Verdict.LOOSE, None), Verdict.LOOSE),
    ],
)
def test_a_claim_is_worth_its_weakest_part_and_untried_parts_count_for_nothing(parts, verdict, monkeypatch):
    monkeypatch.setitem(base.TRIES, "made up", lambda: parts)
    base._tried.cache_clear()
    assert base.Claim("made up", 1, "D1", Text("x", "x"), Text("y", "y")).verdict is verdict
    base._tried.cache_clear()


def test_a_part_holds_strictly_loosely_or_not_at_all():
    cases = {(True,): Verdict.TRUE, (True, True): Verdict.TRUE, (False, True): Verdict.LOOSE, (False,): Verdict.WRONG}
    assert {how: base.part("a", "a", "b", "c", *how).verdict for how in cases} == cases
    assert base.equal("a", "a", 3, 3).verdict is Verdict.TRUE
    assert base.equal("a", "a", 3, 4).verdict is Verdict.WRONG


def worst(parts: tuple[Part, ...]) -> Verdict:
    return max((p.verdict for p in parts if p.verdict not in (None, Verdict.UNTRIED)), key=lambda verdict: verdict.rank)


def test_another_world_gives_other_verdicts(monkeypatch):
    """A verdict that no finding could change would be an assertion."""
    monkeypatch.setattr(bits, "digits", lambda name: {"fp16": 11, "bf16": 12, "fp32": 24}[name])
    assert worst(bits.bf16_higher()) is Verdict.WRONG  # its range is still not smaller
    assert worst(bits.three_bits()) is Verdict.WRONG
    monkeypatch.setattr(bits, "octaves", lambda name: {"fp16": 30, "bf16": 29}[name])
    assert worst(bits.bf16_higher()) is Verdict.TRUE

    monkeypatch.setattr(training, "sample", lambda kind: training.np.ones(64, training.np.float32))
    assert worst(training.small_gradients()) is Verdict.WRONG
    assert worst(training.gradient_times_lr()) is Verdict.WRONG
    monkeypatch.setattr(optimizers, "add", lambda a, b, fmt: a + b)
    assert worst(optimizers.master_copy()) is Verdict.WRONG
    monkeypatch.setattr(optimizers, "one_step", lambda made, decay, decoupled=False: 1.9)
    assert worst(optimizers.decay_is_l2()) is Verdict.TRUE

    monkeypatch.setattr(quantisation, "BLOOM_TIMES", (((100, 100), (118, 119)),))
    assert worst(quantisation.llm_int8_slower()) is Verdict.TRUE
    monkeypatch.setattr(quantisation, "BLOOM_TIMES", (((100, 100), (200, 300)),))
    assert worst(quantisation.llm_int8_slower()) is Verdict.WRONG
    monkeypatch.setattr(memory, "CARD", 44 * memory.BILLION)
    assert memory.bloom_cards()[0].verdict is Verdict.TRUE
    monkeypatch.setattr(parallel, "ZERO", ((2, 2, 4, 8), (2, 2, 1, 2), (2, 1, 1, 2), (0.5, 0.5, 1, 2)))
    assert worst(parallel.zero()) is Verdict.WRONG


def test_what_was_not_drawn_here_is_said_to_be_untried(monkeypatch):
    monkeypatch.setattr(quantisation, "rows_of", lambda name: [])
    assert {part.verdict for part in quantisation.int4_on_turing()} == {Verdict.UNTRIED}
    monkeypatch.setattr(training, "rows_of", lambda name: [])
    assert training.same_accuracy()[-1].verdict is Verdict.UNTRIED


# --- what is shown ----------------------------------------------------------------------------------------------


def test_tables_say_the_verdict_with_a_sign_and_a_word_in_both_languages():
    html = claims.overview()._repr_html_()
    for verdict in Verdict:
        assert (f"{verdict.sign}</b> {verdict.word.en}" in html) is (verdict is not Verdict.UNTRIED)
        assert (f"{verdict.sign}</b> {verdict.word.zh}" in html) is (verdict is not Verdict.UNTRIED)
    assert html.count("<tr") == 2 * (len(claims.claims()) + 1)
    assert sum(claims.overview().counts().values()) == len(claims.claims())
    one = claims.tried("half-is-faster")
    assert "?</b> UNTRIED" in one._repr_html_()
    assert "?</b> 未检验" in one._repr_html_()
    for claim in claims.claims():  # the heads and the words of every table are those of its language
        english, chinese = claims.tried(claim.name)._repr_html_().split('<div class="fplab-zh"')
        assert not CHINESE.search(english)
        assert all(f">{head.zh}</th>" in chinese for head in show.HEADS)
        assert not re.search(r">(part|it says|the lab finds|verdict)<|</b> (TRUE|LOOSE|WRONG|UNTRIED)", chinese)
    with speaking("zh"):
        assert str(one).startswith("✓ 正确：在 Tensor Core 上")
    assert repr(claims.tried("bf16-finer")).startswith("✗ WRONG: BF16 has a smaller range")
    assert len(repr(claims.overview()).splitlines()) == len(claims.claims())


def test_an_unknown_claim_suggests_the_nearest():
    with pytest.raises(LabError, match=r"unknown claim 'rangs'\. Allowed: .*Did you mean 'ranges'\?"):
        claims.get("rangs")


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
        assert told[show.heading(chapter)] < min(
            told[claims.markdown(c)] for c in claims.claims() if c.chapter == chapter
        )
    assert any(cell.source == "fplab.claims.overview()" for cell in cells[: min(places)])

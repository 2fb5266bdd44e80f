"""An estimate's table in both languages: every word, the same numbers, columns that line up; data in English."""

import re
from typing import Any

import pytest

from fplab.columns import width_of
from fplab.language import speaking
from fplab.memory import Estimate, estimate, report, words

CHINESE = re.compile(r"[\u4e00-\u9fff]")
# Names of models, precisions and options, units, and what the field says in English.
NAMES = (
    r"llama3-8b|bloom-176b|gpt2|adamw8bit|adamw|mixed|int8|ZeRO|--zero|inputs=|GPU|CPU|DDP|GiB|[GMk]B|rank|logits|"
    r"softmax|Megatron|transformers|FP32|GELU|tanh"
)
CASES: list[tuple[Any, dict[str, Any]]] = [
    (10**9, {}),
    (7_500_000_000, {"gpus": 64, "zero": 2}),
    ("llama3-8b", {"gpus": 8, "zero": 3, "optimizer": "adamw8bit"}),
    ("llama3-8b", {"gpus": 8, "zero": 1, "pipeline": 4, "micro_batches": 4, "offload": "optimizer"}),
    ("llama3-8b", {"gpus": 8, "tensor": 8, "recompute": "selective", "sequence_parallel": True}),
    ("llama3-8b", {"gpus": 4, "precision": "amp", "recompute": "full"}),
    ("llama3-8b", {"offload": "parameters"}),
    ("llama3-8b", {"precision": "amp", "flash": False, "sequence": 4096}),
    ("gpt2", {"precision": "amp", "micro_batch": 8}),
    ("llama3-8b", {"offload": "chunks", "chunk_budget": 10**10}),
    ("bloom-176b", {"inference": "int8", "gpus": 8, "tensor": 8}),
]


def spoken(e: Estimate) -> str:
    with speaking("zh"):
        return e.table(1000)


def numbers(text: str) -> list[str]:
    return sorted(re.findall(r"\d[\d,.]*(?<![,.])", text))


@pytest.mark.parametrize(("model", "options"), CASES, ids=str)
def test_the_table_in_chinese(model: Any, options: dict[str, Any]) -> None:
    e = estimate(model, **options)
    english, chinese = e.table(1000), spoken(e)
    assert not CHINESE.search(english)
    assert "：" not in english
    rest = re.sub("|".join([NAMES, *(value for value in options.values() if isinstance(value, str))]), "", chinese)
    assert not re.search("[A-Za-z]{2}", rest), rest
    assert numbers(english) == numbers(chinese)
    assert len(english.splitlines()) == len(chinese.splitlines())
    lines = chinese.splitlines()[2:]
    lines = lines[: next(i for i, line in enumerate(lines) if line.startswith("合计")) + 1]
    ends = {width_of(re.split(r" +[█▏]|  各占多少", line)[0].rstrip()) for line in lines[1:]}
    assert ends == {width_of(lines[0].removesuffix("  各占多少"))}


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(
    ("model", "options"),
    [("llama3-8b", {"gpus": 8, "zero": 3, "optimizer": "adamw8bit"}),
     ("llama3-405b", {"gpus": 1024, "tensor": 8, "pipeline": 16, "micro_batches": 16}),
     ("bloom-176b", {"inference": "int8"}), (7 * 10**9, {"gpus": 64, "zero": 3}),
     ("gpt3", {"gpus": 64, "tensor": 8, "pipeline": 8, "micro_batches": 16, "recompute": "selective",
      "offload": "optimizer"})],
)  # fmt: skip
def test_a_table_fits_100_columns(model: Any, options: dict[str, Any], language: str) -> None:
    with speaking(language):
        found = estimate(model, **options)
        assert max(map(width_of, found.table().splitlines())) <= 100
        whole = "".join(found.table(1000).split())
        assert re.sub("[█▏]", "", "".join(found.table().split())) == re.sub("[█▏]", "", whole)


def test_every_kind_has_a_word_and_every_term_is_said() -> None:
    from fplab.memory.stages import KINDS

    assert tuple(words.KINDS) == KINDS
    for model, options in CASES:
        rank = estimate(model, **options).fullest
        said = {word for one in rank.traffic for word in (one.what, one.collective)} | set(rank.temporary)
        said |= set(report.as_dict(estimate(model, **options))["beyond"] or ())
        assert said <= set(words.TERMS), said - set(words.TERMS)


def test_data_and_figures_stay_english() -> None:
    e = estimate("llama3-8b", gpus=8, zero=3)
    before = report.as_dict(e), report.bars(e)
    with speaking("zh"):
        assert (report.as_dict(e), report.bars(e)) == before
        assert not CHINESE.search(e.to_json())
    assert not CHINESE.search(before[1][0])

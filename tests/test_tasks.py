"""The tasks: their data is what its source says, their batches are the same from any step, their models learn."""

import gzip
import hashlib
import math
import sys

import numpy as np
import pytest
import refusals
import torch
from torch import nn

from fplab import training
from fplab.training import CHARACTERS, DIGITS, DIGITS_MLP, Recipe, Task, characters, tasks
from fplab.training.data import FOLDER
from fplab.training.loop import one_thread
from fplab.training.text import ALPHABET, HELD_OUT, text, tokens
from fplab.training.transformer import transformer

DIGEST = "6eafe7073a38bbec557c2005af1fd475d0543fa9e8416a81f8ed92095598798b"
TOPICS = ("compound", "formatstrings", "specialnames", "string-methods", "types")
PLAIN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "--", "…": "...", "ß": "ss"})


# --- the text ---------------------------------------------------------------------------------------------------
def test_the_text_is_the_fixed_one() -> None:
    raw = text().encode("ascii")
    assert (len(raw), hashlib.sha256(raw).hexdigest()) == (201_480, DIGEST)
    assert DIGEST in (FOLDER / "python_topics.txt").read_text("utf-8")


@pytest.mark.skipif(sys.version_info[:3] != (3, 11, 7), reason="the text was taken from CPython 3.11.7's topics")
def test_the_text_is_made_from_pythons_topics() -> None:
    from pydoc_data.topics import topics

    made = "\n".join(topics[name] for name in TOPICS).translate(PLAIN)
    assert made == text()


def test_its_licence_lies_beside_it() -> None:
    told = (FOLDER / "python_topics.txt").read_text("utf-8")
    for words in ("PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2", "Copyright (c) 2001-2023 Python Software Foundation"):
        assert words in told
    assert all(name in told for name in TOPICS)
    assert gzip.decompress((FOLDER / "python_topics.gz").read_bytes())  # no time stamp: bytes 4 to 7 of the header
    assert (FOLDER / "python_topics.gz").read_bytes()[4:8] == bytes(4)


def test_tokens_are_the_text() -> None:
    assert len(ALPHABET) == len(set(ALPHABET)) == 96
    assert "".join(ALPHABET[t] for t in tokens("all")) == text()
    assert np.concatenate([tokens("train"), tokens("test")]).tobytes() == tokens("all").tobytes()
    assert (tokens().dtype, len(tokens("train")), len(tokens("test"))) == (np.uint8, 181_000, HELD_OUT)


def test_the_held_out_text_is_new() -> None:
    """Of its lines of 30 characters and more, the training part has fewer than one in a hundred."""
    read = ["".join(ALPHABET[t] for t in tokens(split)).splitlines() for split in ("train", "test")]
    known, new = ({line.strip() for line in lines if len(line.strip()) >= 30} for lines in read)
    assert len(new) > 250
    assert len(known & new) < len(new) / 100


# --- batches ----------------------------------------------------------------------------------------------------
def same(one: tasks.Batch, two: tasks.Batch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("task", tasks.TASKS, ids=lambda t: t.name)
def test_batches_are_the_same_from_any_step(task: Task) -> None:
    whole = list(task.batches(3, 30))
    assert len(whole) == 30
    for start in (1, 11, 22, 29):
        later = list(task.batches(3, 30, start))
        assert len(later) == 30 - start
        assert all(same(a, b) for a, b in zip(whole[start:], later, strict=True))
    assert not same(whole[0], next(task.batches(4, 1)))
    assert not same(whole[0], whole[1])
    assert len(whole[0].inputs) == task.batch


def test_the_digits_come_as_in_the_loop() -> None:
    want = list(training.batches(1438, Recipe(epochs=2, seed=5)))
    got = list(tasks.epochs(1438, 64, 5, len(want)))
    assert [g.tolist() for g in got] == [w.tolist() for w in want]


def test_a_window_is_answered_by_the_next_characters() -> None:
    task = characters(context=7, batch=3)
    inputs, targets = next(task.batches(0, 1))
    assert inputs.shape == targets.shape == (3, 7)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    whole = tokens("train").tobytes()
    raw = np.random.Philox(key=np.array([0, 0], np.uint64)).random_raw(3)
    for row, target, place in zip(inputs, targets, raw, strict=True):
        start = int(place) % (181_000 - 7)
        assert whole[start : start + 8] == bytes([*row.tolist(), int(target[-1])])


def test_held_out_windows_cover_the_held_out_text_once() -> None:
    read = torch.cat([batch.inputs.flatten() for batch in CHARACTERS.held_out()])
    assert read.numpy().astype(np.uint8).tobytes() == tokens("test")[: read.numel()].tobytes()
    assert HELD_OUT - read.numel() <= 64
    answers = torch.cat([batch.targets.flatten() for batch in CHARACTERS.held_out()])
    assert answers.numpy().astype(np.uint8).tobytes() == tokens("test")[1 : read.numel() + 1].tobytes()


# --- models -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("task", tasks.TASKS, ids=lambda t: t.name)
def test_a_model_is_decided_by_its_seed_and_torchs_generator_left_alone(task: Task) -> None:
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    one, two, other = task.model(1), task.model(1), task.model(2)
    assert torch.equal(torch.rand(3), wanted)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_the_sizes_are_those_that_are_told() -> None:
    assert size(DIGITS_MLP.model(0)) == 64 * 256 + 256 + 256 * 256 + 256 + 2560 + 10 == 85_002
    assert size(DIGITS.model(0)) == 25_866
    block = 2 * 128 + (64 * 192 + 192) + (64 * 64 + 64) + (64 * 256 + 256) + (256 * 64 + 64)
    assert size(CHARACTERS.model(0)) == 96 * 64 + 64 * 64 + 2 * block + 128 + 64 * 96 == 116_480
    assert size(characters(width=128, layers=4, context=128).model(0)) == 834_304
    assert characters(width=128, layers=4, context=128).key == (
        "characters, batch 16, width 128, layers 4, heads 4, context 128"
    )


def test_no_position_sees_a_later_one() -> None:
    model = transformer(0, vocabulary=11, context=9, width=8, layers=2, heads=2)
    x = torch.arange(9)[None] % 11
    changed = x.clone()
    changed[0, 5] = 10
    with torch.no_grad():
        one, two = model(x), model(changed)
    assert torch.equal(one[0, :5], two[0, :5])
    assert (one[0, 5:] != two[0, 5:]).any(dim=1).all()


def test_a_new_transformer_guesses_evenly() -> None:
    batch = next(CHARACTERS.batches(0, 1))
    assert CHARACTERS.loss(CHARACTERS.model(0), batch).item() == pytest.approx(math.log(96), abs=0.05)


def test_writing_to_the_residual_stream_starts_small() -> None:
    model = transformer(0, width=128, layers=8)
    block = model.blocks[0]
    assert block.up.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert block.down.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert block.attention.out.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert not block.up.bias.any()


def test_scores_are_counted_right() -> None:
    """Against a count in numpy, and the model's mode is what it was."""
    model = DIGITS_MLP.model(0)
    top1, loss = DIGITS_MLP.scores(model)
    images, labels = training.tensors(training.digits("test"))
    with torch.no_grad():
        z = model(images.flatten(1)).double().numpy()
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    assert top1 == (z.argmax(1) == labels.numpy()).mean() == DIGITS_MLP.evaluate(model)
    assert loss == pytest.approx(-np.log(p[np.arange(359), labels.numpy()]).mean(), rel=1e-9)
    assert model.training
    DIGITS_MLP.scores(model.eval())
    assert not model.training


LEARNED = {"digits": (60, 0.6, 1.2), "digits_mlp": (120, 0.90, 0.35), "characters": (50, 0.15, 3.1)}


@pytest.mark.parametrize("task", tasks.TASKS, ids=lambda t: t.name)
def test_a_part_of_the_baselines_steps_is_enough_to_learn(task: Task) -> None:
    steps, top1, loss = LEARNED[task.name]
    made = {"SGD": torch.optim.SGD, "AdamW": torch.optim.AdamW}[task.baseline.optimizer]
    with one_thread():
        model = task.model(0)
        optimizer = made(model.parameters(), **dict(task.baseline.settings))
        for batch in task.batches(0, steps):
            optimizer.zero_grad()
            task.loss(model, batch).backward()
            optimizer.step()
        scores = task.scores(model)
    assert scores.top1 > top1
    assert scores.loss < loss


test_impossible_tasks_are_refused = refusals.exactly(
    (lambda: tokens("trian"), "unknown split 'trian'. Allowed: train, test, all. Did you mean 'train'?"),
    (lambda: tasks.get("digts"),
     "fplab.training.tasks.get('digts'): unknown task 'digts'. Allowed: digits, digits_mlp, characters. Did you "
     "mean 'digits'?"),
    (lambda: tasks.perceptron(hidden=0), "hidden=0 is not possible; allowed: 1 to 64."),
    (lambda: characters(batch=0), "batch=0 is not possible; allowed: 1 to 65536."),
    (lambda: characters(width=30).model(0),
     "width=30 does not divide into heads=4; allowed: a width that heads divides."),
    (lambda: characters(layers=0).model(0), "layers=0 is not possible; allowed: 1 to 65536."),
)  # fmt: skip


def test_three_pixels_are_empty_in_every_digit() -> None:
    """Chapter 14 gives them weights that do nothing in FP32."""
    images = [tasks._digits(split, flat=True).inputs for split in ("train", "test")]
    assert (~torch.cat(images).bool().any(0)).nonzero().flatten().tolist() == [0, 32, 39]

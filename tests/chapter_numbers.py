"""The numbers in the chapters' prose: each is printed by the chapter, is its source's, or is held here."""

import csv
import html
import itertools
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fplab
from fplab import memory
from fplab.language import marked
from fplab.widgets import collectives

FIGURES = Path(__file__).parent.parent / "figures"
NUMBER = re.compile(r"(?<![\w.])(?:\d[\d,]*\.\d+|\d{1,3}(?:,\d{3})+|\d+)(?:\s?%)?(?!\w)")
PRINTED = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
# A line that names its source, and what is no number of a run: versions, years, powers, links, code.
SOURCED = re.compile(r"arXiv|et al\.|blog|Table \d|section \d|\*\*Published|as tried|Dettmers|MATLAB-tensor-core")
NOT_NUMBERS = re.compile(
    r"<sup>.*?</sup>|\]\([^)]*\)|`[^`]*`|IEEE 754|Llama 3\.1|saturates E4M3 since 2\.13"
    r"|\b(?:torch|PyTorch|qtorch|pychop|NumPy)(?:'s)?\s\d[\d.]*"
)


def of_run(name: str) -> list[dict[str, str]]:
    """The rows behind a figure of the gallery, which is what a chapter shows."""
    with open(FIGURES / f"{name}.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def gradients() -> int:
    return len(fplab.widgets.gradients.sample("activation"))


def differing(gpu: str) -> float:
    """The share of the first layer's outputs in the first step whose bits are not H100's."""
    from fplab.training.tasks import DIGITS_MLP

    layer, batch = DIGITS_MLP.model(0)[0], next(iter(DIGITS_MLP.batches(0, 1)))
    x, w = (fplab.quantize(t.detach().numpy(), "fp16") for t in (batch.inputs, layer.weight))
    one, other = (fplab.tensorcore.matmul(x, w.T, gpu=name) + layer.bias.detach().numpy() for name in (gpu, "H100"))
    return float((one != other).mean())


def inferred() -> int:
    """How many rows of A100's are asked."""
    return fplab.tensorcore.infer(lambda a, b, c: fplab.tensorcore.dot(a, b, c, gpu="A100")).rows


def explained() -> list[float]:
    rows = [row for row in of_run("memory_measured") if row["source"] == "torchtitan"]
    return [int(row["peak, estimated"]) / int(row["peak, measured"]) for row in rows]


def products_of_a_step(batch: int = 128, sizes: tuple[int, ...] = (64, 256, 256, 10)) -> int:
    """Elements of a training step's products: forward, gradients of the weights, of the inputs but the first."""
    pairs = list(itertools.pairwise(sizes))
    return sum(batch * n + k * n for k, n in pairs) + sum(batch * k for k, _ in pairs[1:])


def tenths(fmt: str) -> float:
    return max(abs(float(fplab.quantize(x, fmt)) / x - 1) for x in (0.1, 0.2, 0.3))


# By chapter: the number as written, and what it is.
HELD: dict[int, dict[str, Callable[[], float]]] = {
    0: {
        "409.6": lambda: 4096 * 0.1,
        "0.25": lambda: fplab.ulp(256, "fp16"),
        "0.00003": lambda: 2.0**-15,
        "16,384": gradients,
    },
    1: {"480": lambda: 1.875 * 2**8},  # all codes of the last binade numbers
    2: {"1,024": lambda: len(range(2049, 4096, 2)), "16,384": gradients},
    3: {"0.03%": lambda: 0.0003 if tenths("fp16") < 0.0003 else tenths("fp16")},
    4: {
        "4,095": lambda: 4096 - 1,
        "16,384": gradients,
        "128": lambda: fplab.sum(np.ones(128), "bf16", "blocked"),
        "0.001": lambda: 4096 * 2.0 ** (-11 * 2),
        "0.06": lambda: 4096 * 2.0 ** (-8 * 2),
    },
    5: {"16,384": lambda: max(int(r["K"]) for r in of_run("partial_products")), "0.5": lambda: 0.5},  # one to type in
    6: {"512": lambda: 4096 / 8, "4,095": lambda: 4096 - 1, "85%": lambda: 3497 / 4096},
    7: {
        "2.37": lambda: 1e8 * float(fplab.widgets.gradients.sample("activation")[2]),
        "65,520": lambda: 65520 if fplab.quantize([65519, 65520], "fp16").tolist() == [65504, np.inf] else 0,
        "1,000": lambda: 1000,  # no power of two
        "2,000": lambda: fplab.training.scalers.TORCH.growth_interval,
    },
    8: {
        "0.00006": lambda: fplab.ulp(0.1, "fp16"),
        "0.02": lambda: 1000 * 0.00002,
        "8,192": lambda: fplab.ulp(0.1, "fp16") / fplab.ulp(0.1, "fp32"),
        "44%": lambda: updates_lost("bf16", "0.125"),
        "80%": lambda: 0.8,  # the paper's, with its source in the line above
    },
    9: {
        "217,000": lambda: round(products_of_a_step(), -3),
        "0.9%": lambda: differing("V100"),
        "0.4%": lambda: differing("A100"),
    },
    10: {
        "16,384": gradients,
        "254": lambda: 2 * 127,
        "0.10000000149": lambda: float(np.float32(0.1)),
        "65,536": lambda: 256 * 256,
        "2,048": lambda: fplab.training.Adam8bit([torch.nn.Parameter(torch.ones(1))]).defaults["block"],
    },
    11: {
        "112": lambda: memory.preset("bloom-176b").heads,
        "7.5": lambda: 7_500_000_000 / 1e9,
        "68%": lambda: min(explained()),
        "89%": lambda: max(explained()),
    },
    12: {
        "4,522": lambda: int(of_run("data_parallel")[0]["parameters, held"]) / 4,
        "1.0078": lambda: float(collectives.run(collectives.State()).buffers[-1].max()),
    },
    13: {"2,449": inferred},
    14: {"16,384": gradients},
}


def cells_of(name: str, value: str, **where: str) -> list[float]:
    """A column of a figure's rows, of those rows whose other columns are as given."""
    return [float(row[value]) for row in of_run(name) if all(row[column] == text for column, text in where.items())]


def autoencoder(scale: str) -> float:
    """The score at a loss scale, of FP32's."""
    score, fp32 = (cells_of("loss_scaling", "score", task="autoencoder", loss_scale=of)[0] for of in (scale, "FP32"))
    return score / fp32


def overflows(scale: str) -> bool:
    return cells_of("loss_scaling", "skipped_steps", loss_scale=scale) == [1.0, 1.0]


def lost(accumulator: str) -> float:
    """The largest error of the longest sum of positive products."""
    return cells_of("partial_products", "largest", kind="positive", way=accumulator, K="16384")[0]


def updates_lost(weights: str, rate: str) -> float:
    return float(np.mean(cells_of("master_weights", "updates_lost", weights=weights, update="nearest", lr=rate)))


UPDATES = ("nearest", "stochastic", "kahan", "master")


def final_loss(weights: str, update: str, rate: str = "0.03125") -> float:
    """The mean over the seeds, of FP32's."""
    mine, fp32 = (np.mean(cells_of("master_weights", "training_loss", weights=w, update=u, lr=rate))
                  for w, u in ((weights, update), ("fp32", "nearest")))  # fmt: skip
    return float(mine / fp32)


def held_out(policy: str) -> list[float]:
    """The held-out loss of digits, by seed."""
    return cells_of("formats_in_training", "held_out_loss", task="digits", policy=policy)


def of_seeds() -> dict[str, list[float]]:
    """By precision how far each seed's held-out loss is from that of FP32."""
    policies = dict.fromkeys(row["policy"] for row in of_run("formats_in_training"))
    return {
        policy: [abs(x - y) for x, y in zip(held_out(policy), held_out("fp32"), strict=True)] for policy in policies
    }


def between_seeds() -> list[float]:
    return [abs(x - y) for x, y in itertools.combinations(held_out("fp32"), 2)]


def losses_apart() -> list[float]:
    """By step how far the losses of three GPUs are apart, relatively."""
    losses = [[float(row[f"loss {gpu}"]) for gpu in ("V100", "A100", "H100")] for row in of_run("trajectory")]
    return [max(each) / min(each) - 1 for each in losses]


def grows_a_hundredfold() -> bool:
    """Of each pair of GPUs, from the first step where half of the weights are apart."""
    pairs = ("V100-A100", "A100-H100", "V100-H100")
    medians = [[x for x in cells_of("trajectory", f"median distance in ulp {pair}") if x] for pair in pairs]
    return all(each[-1] > 100 * each[0] for each in medians)  # a median that is not 0: most have other bits


# What a chapter says of a figure, in words of each language, and whether the rows that it is drawn of say so.
OF_FIGURES: tuple[tuple[int, str, str, Callable[[], bool]], ...] = (
    (0, "without a scale the autoencoder learns less than a quarter of what it learns in FP32",
     "不缩放，自编码器学到的不到 FP32 的四分之一",
     lambda: autoencoder("2^0") < 0.25),
    (0, "at 2<sup>8</sup> and 2<sup>16</sup> it is as good as in FP32",
     "取 2<sup>8</sup> 和 2<sup>16</sup>，都和 FP32 一样好",
     lambda: all(abs(autoencoder(scale) - 1) < 0.01 for scale in ("2^8", "2^16"))),
    (0, "at 2<sup>24</sup> every step overflows",
     "到了 2<sup>24</sup>，每一步都上溢",
     lambda: overflows("2^24")),
    (5, "added one by one in FP16 stall, and half of their sum is lost",
     "在 FP16 里逐个累加会停滞，和丢掉一半",
     lambda: round(lost("FP16 one by one"), 1) == 0.5),
    (5, "a GPU rounds to FP16 once a block, and its sums come within 5%",
     "GPU 每个块才舍入到 FP16 一次，它的和误差在 5% 以内",
     lambda: max(lost(f"{gpu} FP16") for gpu in ("V100", "A100", "H100")) < 0.05),
    (5, "with random positive products they err more than a plain FP32 loop",
     "乘积随机而全为正时，它的误差比普通的 FP32 循环还大",
     lambda: min(lost(f"{gpu} FP32") for gpu in ("V100", "A100", "H100")) > lost("FP32 one by one")),
    (7, "With 2<sup>16</sup> it ends where FP32 does",
     "取 2<sup>16</sup> 时，它最后与 FP32 相同",
     lambda: abs(autoencoder("2^16") - 1) < 0.01),
    (7, "at 2<sup>24</sup> every step is skipped",
     "到 2<sup>24</sup>，每一步都被跳过",
     lambda: overflows("2^24")),
    (8, "In BF16 44% of the updates at the learning rate 2<sup>−3</sup>, and half at 2<sup>−5</sup>",
     "在学习率 2<sup>−3</sup> 时丢失 44% 的更新，在 2<sup>−5</sup> 时丢失一半",
     lambda: round(updates_lost("bf16", "0.125"), 2) == 0.44 and round(updates_lost("bf16", "0.03125"), 2) == 0.5),
    (8, "FP16, and each remedy, end within 3% of FP32's loss", "FP16 以及各种补救最后的损失与 FP32 相差不到 3%",
     lambda: max(abs(final_loss(w, u) - 1) for w in ("fp16", "bf16") for u in UPDATES if (w, u) != ("bf16", "nearest"))
     < 0.03),
    (9, "Seven precisions, several seeds, a pair for each", "七种精度，多个种子，两两配对",
     lambda: [len(apart) for apart in of_seeds().values()] == [3] * 7),
    (9, "below what two seeds of FP32 are apart", "小于 FP32 两个种子之间的距离",
     lambda: max(np.mean(apart) for apart in of_seeds().values()) < np.mean(between_seeds())),
    (9, "To the eye there is one curve", "用眼看，只有一条曲线", lambda: max(losses_apart()) < 0.01),
    (9, "the distance grows more than a hundredfold, until most weights have other bits",
     "距离增长一百倍以上，直到多数权重的位都不同", grows_a_hundredfold),
)  # fmt: skip
QUOTED = re.compile(r'"([^"\n]*\d[.e]\d[^"\n]*)"')


def value(text: str) -> tuple[Fraction, int]:
    """A number as written, a percentage as such, and how many decimals it has."""
    plain = re.sub(r"[,\s%]", "", text)
    return Fraction(plain), len(plain.partition(".")[2])


def texts(notebook: Any) -> list[str]:
    """The code of a notebook that has run, and what it showed."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            found.append(cell.source)
            for out in cell.outputs:
                shown = {"text/plain": out.text} if out.output_type == "stream" else out.get("data", {})
                found += [text for kind, text in shown.items() if kind == "text/plain"]
                found += [
                    re.sub(r"<[^>]+>", " ", html.unescape(text)) for kind, text in shown.items() if "html" in kind
                ]
    return found


def printed(notebook: Any) -> list[float]:
    """All numbers in the code of a notebook that has run, and in what it printed."""
    code = [re.sub(r"(?<=\d)_(?=\d)", "", text) for text in texts(notebook)]
    return [float(m.replace(",", "")) for m in PRINTED.findall("\n".join(code))]


def english(prose: str) -> str:
    """The English part of a cell, without its further reading."""
    return re.split(
        r"\*\*Further reading|## Further reading", prose.partition(marked("zh", "ZH").partition("ZH")[0])[0]
    )[0]


def said(notebook: Any) -> Iterator[str]:
    """The numbers of the English prose that claim something: three digits, decimals or a percentage, and no source."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for line in english(cell.source).splitlines():
                if not SOURCED.search(line):
                    found = NUMBER.findall(NOT_NUMBERS.sub("", line))
                    yield from (n for n in found if "%" in n or "." in n or len(re.sub(r"\D", "", n)) >= 3)


def unquoted(notebook: Any) -> list[str]:
    """What the English prose quotes with a decimal in it that no cell says or shows."""
    shown = " ".join(" ".join(texts(notebook)).split())
    prose = "\n".join(english(cell.source) for cell in notebook.cells if cell.cell_type == "markdown")
    return [
        quoted for quoted in QUOTED.findall(re.sub(r"<[^>]+>", "", NOT_NUMBERS.sub("", prose))) if quoted not in shown
    ]


def held(number: str, chapter: int) -> bool:
    """Whether a number is held above, to its digits."""
    if number not in HELD.get(chapter, {}):
        return False
    wanted, digits = value(number)
    found = HELD[chapter][number]() * (100 if number.endswith("%") else 1)
    return float(wanted) == round(found, digits)


def unheld(notebook: Any, chapter: int) -> list[str]:
    """The numbers of a chapter's prose that it does not print, rounded as written, and that nothing holds."""
    shown = printed(notebook)
    missing = []
    for number in dict.fromkeys(said(notebook)):
        wanted, digits = value(number)
        near = {round(x, digits) for x in shown} | ({round(100 * x, digits) for x in shown} if "%" in number else set())
        if float(wanted) not in near and not re.fullmatch(r"(19|20)\d\d", number) and not held(number, chapter):
            missing.append(number)
    return missing

"""The calculator against what papers and libraries printed, to the last digit they printed."""

import json
from fractions import Fraction

import pytest

from fplab.memory import activations, communication, estimate, gib, pipeline, preset, recipes, smallest
from fplab.memory.models import PRESETS, Transformer, tensors_of
from fplab.memory.units import GB, GIB, rounded, shown, truncated

PUBLISHED_COUNTS = {
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "gpt3": 174_604_259_328,  # "174,600M" in the paper's Table D.1
    "bloom-176b": 176_247_271_424,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_the_published_number_of_parameters(name: str) -> None:
    assert preset(name).parameters == PUBLISHED_COUNTS[name]
    assert preset(name.upper()) is preset(name)


@pytest.mark.parametrize("name", PRESETS)
def test_the_count_is_the_closed_formula(name: str) -> None:
    """Weights of a layer 2 h^2 (1 + kv/a) + (2 or 3) h f, beside norms, biases and embeddings."""
    c = preset(name)
    h, f, kv = c.hidden, c.width, c.kv_width
    layer = 2 * h * h + 2 * h * kv + (3 if c.gated else 2) * h * f + 2 * h
    layer += 0 if c.rms else 2 * h + 2 * h + 2 * kv + f + h
    ends = c.vocabulary * h * (1 if c.tied else 2) + h * (1 if c.rms else 2)
    ends += c.sequence * h if c.positions == "learned" else 0
    ends += 2 * h if c.embedding_norm else 0
    assert c.parameters == c.layers * layer + ends


# --- the sources' sums ------------------------------------------------------------------------------------------
def test_why_bloom_needs_8_cards_where_5_hold_the_weights() -> None:
    """5 cards of 80 GB hold 352 GB, but 5 does not divide 112 heads, and nor does 6; 7 does, and servers hold 8."""
    weights = estimate("bloom-176b", inference="bf16").fullest.device["parameters"]
    assert rounded(Fraction(weights, GB), 0) == "352"
    assert weights == 2 * PUBLISHED_COUNTS["bloom-176b"]
    assert -(-weights // (80 * GB)) == 5
    for cards in (5, 6):
        with pytest.raises(ValueError, match=rf"tensor={cards} does not divide heads=112"):
            estimate("bloom-176b", inference="bf16", gpus=cards, tensor=cards)
    assert estimate("bloom-176b", inference="bf16", gpus=4, tensor=4).total > 80 * GB
    assert estimate("bloom-176b", inference="bf16", gpus=7, tensor=7).total < 80 * GB
    eight = estimate("bloom-176b", inference="bf16", gpus=8, tensor=8)
    assert json.loads(eight.to_json())["fewest"]["80 GB"] == 7
    # what the eighth card is for: keys and values of batches, at 8 GB a sequence of 2,048 tokens
    free = 80 * GB - estimate("bloom-176b", inference="bf16", gpus=8, tensor=8, flash=True).total
    one = eight.fullest.device["kv cache"]
    assert 30 < free // one < 34


def test_why_bloom_is_tuned_on_72_cards_where_36_hold_the_states() -> None:
    """36 cards hold 16 bytes a parameter and nothing else; with one sequence each it takes 59, or 8 servers of 8.

    What else there is on every card: 6.3 GB of saved activations, 21.6 GB of gathered weights and their gradient (the
    embedding of 250,880 words is the largest piece), 4.1 GB of the logits' gradients. 72 cards are 9 servers: one
    sequence with 9 GB to spare; two sequences would take 80 cards.
    """
    states = 16 * PUBLISHED_COUNTS["bloom-176b"]
    assert -(-states // (80 * GB)) == 36
    options = {"zero": 3, "recompute": "full"}
    at36 = estimate("bloom-176b", gpus=36, **options).fullest
    assert at36.states <= 80 * GB < at36.total
    rest = at36.total - at36.states
    assert rounded(Fraction(rest, GB), 1) == "32.0"
    gathered = sum(size for name, size in at36.temporary.items() if "layer" in name)
    assert gathered == 6 * 250880 * 14336 + 6 * 2 * 14336
    parts = (at36.device["activations"], gathered, at36.temporary["gradients of the logits"])
    assert [rounded(Fraction(part, GB), 1) for part in parts] == ["6.3", "21.6", "4.1"]

    def fewest(step: int, batch: int) -> int:
        found = smallest("bloom-176b", 80 * GB, step=step, micro_batch=batch, **options)
        assert found is not None
        return found.options.gpus

    assert (fewest(1, 1), fewest(8, 1), fewest(8, 2)) == (59, 64, 80)
    at72 = estimate("bloom-176b", gpus=72, **options)
    assert rounded(Fraction(80 * GB - at72.total, GB), 1) == "8.8"


@pytest.mark.parametrize(
    ("model", "options", "kind", "gigabytes"),
    [(6 * 10**9, {"precision": "fp32", "optimizer": "sgd"}, "parameters", 24),
     (10**9, {"precision": "fp32"}, "parameters", 4),
     (10**9, {}, "parameters", 2),
     (10**9, {}, "states", 8),  # AdamW's two, in FP32
     (10**9, {"optimizer": "momentum"}, "states", 4),
     (15 * 10**8, {}, "parameters", 3),  # GPT-2 in ZeRO's paper: 24 GB where its weights need 3
     (15 * 10**8, {}, "all", 24),
     # The playbook's: FP32, or BF16 with FP32 master weights; and with gradients accumulated in FP32 besides.
     *((size * 10**9, {"precision": precision}, "all", size * (20 if "+" in precision else 16))
       for size in (1, 7, 70, 405) for precision in ("fp32", "mixed", "mixed+fp32grads"))],
)  # fmt: skip
def test_what_sources_say_in_words(model: int, options: dict[str, str], kind: str, gigabytes: int) -> None:
    rank = estimate(model, **options).fullest
    assert (rank.states if kind == "all" else rank.device[kind]) == gigabytes * GB
    assert [recipes.bytes_per_parameter(p, "adamw") for p in ("mixed", "fp32", "bf16")] == [16, 16, 8]


# --- ZeRO -------------------------------------------------------------------------------------------------------
# Rajbhandari et al. 2020, ZeRO (arXiv 1910.02054), Table 1: GB a device, by data-parallel ranks; for each model size
# the three stages. The paper rounds the first column and truncates the two others.
ZERO_SIZES = (7_500_000_000, 128_000_000_000, 1_000_000_000_000)
ZERO_TABLE_1 = {
    1: (("120", "120", "120"), ("2048", "2048", "2048"), ("16000", "16000", "16000")),
    4: (("52.5", "41.3", "30"), ("896", "704", "512"), ("7000", "5500", "4000")),
    16: (("35.6", "21.6", "7.5"), ("608", "368", "128"), ("4750", "2875", "1000")),
    64: (("31.4", "16.6", "1.88"), ("536", "284", "32"), ("4187", "2218", "250")),
    256: (("30.4", "15.4", "0.47"), ("518", "263", "8"), ("4046", "2054", "62.5")),
    1024: (("30.1", "15.1", "0.12"), ("513", "257", "2"), ("4011", "2013", "15.6")),
}


@pytest.mark.parametrize("ranks", ZERO_TABLE_1)
def test_every_cell_of_zeros_table_1(ranks: int) -> None:
    """The paper rounds the column of 7.5 billion and truncates the others."""
    for column, (size, cells) in enumerate(zip(ZERO_SIZES, ZERO_TABLE_1[ranks], strict=True)):
        for stage, cell in enumerate(cells, start=1):
            value = Fraction(estimate(size, gpus=ranks, zero=stage).fullest.states, GB)
            digits = len(cell.partition(".")[2])
            assert (truncated if column else rounded)(value, digits) == cell, (ranks, size, stage)


def test_zeros_volume_of_communication() -> None:
    """2 psi elements for stages 0 to 2 and 3 psi for stage 3; a ring sends (N - 1) / N of that, exactly."""
    n, ranks = 64 * 10**6, 64
    for stage in range(4):
        wanted = communication.zero_volume(n, stage)
        assert wanted == (3 if stage == 3 else 2) * n
        sent = sum(t.sent // t.width for t in estimate(n, gpus=ranks, zero=stage).fullest.traffic)
        assert sent * ranks == wanted * (ranks - 1)


# --- DeepSpeed's estimators -------------------------------------------------------------------------------------
# As its documentation prints them (Memory Requirements), in GiB: 2,851 million parameters on a node of 8 GPUs, created
# under zero.Init. Beside the shards of ZeRO-3 a GPU holds its largest layer, 32 million parameters, in FP32.
P, LARGEST = 2_851_000_000, 4 * 32_000_000


@pytest.mark.parametrize(
    ("zero", "offload", "printed", "further"),
    [
        (2, "optimizer", "5.31", 0),
        (2, "none", "15.93", 2 * P + 2 * P // 8),  # 4 P + 16 P / N, where the paper has 2 P + 14 P / N
        (3, "parameters", "0.12", LARGEST),
        (3, "optimizer", "0.78", LARGEST),
        (3, "none", "6.09", LARGEST + 2 * P // 8),  # 18 P / N, where the paper has 16 P / N
    ],
)
def test_what_deepspeed_prints_of_a_gpu(zero: int, offload: str, printed: str, further: int) -> None:
    """What is off-loaded agrees with the paper's accounting; gradients that stay on the GPU are counted wider."""
    states = estimate(P, gpus=8, zero=zero, offload=offload).fullest.states
    assert f"{(states + further) / GIB:.2f}" == printed


@pytest.mark.parametrize(("offload", "printed"), [("parameters", "71.69"), ("optimizer", "63.72")])
def test_what_deepspeed_prints_of_a_node(offload: str, printed: str) -> None:
    """Half as much again as is held, for buffers; gradients of 4 bytes, where the paper's have 2."""
    held = 8 * sum(estimate(P, gpus=8, zero=3, offload=offload).fullest.host.values())
    assert f"{1.5 * (held + 2 * P) / GIB:.2f}" == printed


@pytest.mark.parametrize(("offload", "printed"), [("none", 3291), ("parameters", 125), ("optimizer", 477)])
def test_what_deepspeed_prints_of_t5_large(offload: str, printed: int) -> None:
    """In MiB, on 4 GPUs: the largest layer in FP32, and wider gradients where they stay on the GPU."""
    n = 737_670_000
    states = estimate(n, gpus=4, zero=3, offload=offload).fullest.states
    assert (states + 4 * 32_900_000 + 2 * n // 4 * (offload == "none")) >> 20 == printed


# --- Korthikanti et al. -----------------------------------------------------------------------------------------

# hidden, heads, layers, micro-batch; GiB of all layers at t = 8: TP, TP+SP, TP+selective, TP+SP+selective, full
MODELS = {
    "22B": ((6144, 64, 48, 4), (59.25, 39.563, 29.25, 9.562, 4.5)),
    "175B": ((12288, 96, 96, 1), (51.75, 32.062, 29.25, 9.562, 4.5)),
    "530B": ((20480, 128, 105, 1), (86.133, 50.244, 53.32, 17.432, 8.203)),
    "1T": ((25600, 160, 128, 1), (131.25, 76.562, 81.25, 26.562, 12.5)),
}
WAYS = ((False, "none"), (True, "none"), (False, "selective"), (True, "selective"), (False, "full"))


def megatron(name: str) -> Transformer:
    (hidden, heads, layers, _), _ = MODELS[name]
    return Transformer(name, layers, hidden, heads, 51200, 2048)


@pytest.mark.parametrize("name", MODELS)
def test_korthikantis_formulas_for_the_four_models(name: str) -> None:
    (h, a, layers, b), wanted = MODELS[name]
    c = megatron(name)
    for (parallel, recompute), value in zip(WAYS, wanted, strict=True):
        printed = layers * activations.formula(2048, b, h, a, 8, parallel, recompute)
        assert abs(printed / GIB - Fraction(str(value))) <= Fraction(1, 2000)  # printed to three decimals
        terms = activations.kept(activations.layer_terms(c, b, 2048), recompute)
        assert layers * activations.total(terms, 8, parallel) == printed


@pytest.mark.parametrize("t", [1, 2, 8])
@pytest.mark.parametrize(("s", "b", "h", "a"), [(2048, 1, 12288, 96), (128, 3, 64, 8), (512, 2, 1024, 16)])
def test_the_terms_add_up_to_the_formula(s: int, b: int, h: int, a: int, t: int) -> None:
    c = Transformer("layer", 1, h, a, 1000, s)
    for recompute in activations.RECOMPUTE:
        for parallel in (False, True):
            terms = activations.kept(activations.layer_terms(c, b, s), recompute)
            assert activations.total(terms, t, parallel) == activations.formula(s, b, h, a, t, parallel, recompute)


def test_korthikantis_terms_one_by_one() -> None:
    """Attention 11 s b h + 5 a s^2 b, MLP 19 s b h, two norms 4 s b h."""
    c, s, b = megatron("175B"), 2048, 1
    terms = {t.name: t.bytes() for t in activations.layer_terms(c, b, s)}
    h, scores = s * b * c.hidden, c.heads * s * s * b
    assert sum(size for name, size in terms.items() if "softmax" in name) == 5 * scores
    attention = ("Q, K, V input", "queries", "keys", "values", "projection input", "dropout mask 1")
    assert sum(terms[name] for name in attention) == 11 * h
    assert sum(terms[n] for n in ("MLP input", "GELU input", "down input", "dropout mask 2")) == 19 * h
    assert terms["norm 1 input"] + terms["norm 2 input"] == 4 * h
    assert Fraction(5 * scores, h) == 80
    assert Fraction(5 * 128 * 2048, 20480) == 64


@pytest.mark.parametrize(("name", "saving", "rest"), [("175B", 70, 34), ("530B", 65, 34)])
def test_selective_recomputation_saves_what_the_paper_says(name: str, saving: int, rest: int) -> None:
    (h, a, _, _), _ = MODELS[name]
    full = activations.formula(2048, 1, h, a)
    kept = activations.formula(2048, 1, h, a, recompute="selective")
    assert kept == rest * 2048 * h
    assert rounded(100 * (1 - kept / full), 0) == str(saving)


def test_korthikantis_first_stage_with_all_its_extra_terms() -> None:
    """(s b h L / t) (34 + 5 a s / h) for any p, and p/L + [p = 1] (4/L) (1 + v/h) for the ends."""
    c, t, b = megatron("175B"), 8, 1
    unit = Fraction(2048 * b * c.hidden * c.layers, t)
    per = 34 + Fraction(5 * c.heads * 2048, c.hidden)
    for p in (1, 2, 8):
        e = estimate(c, gpus=t * p, tensor=t, pipeline=p, sequence_parallel=True, micro_batches=16 * p)
        extra = Fraction(p, c.layers) + (
            Fraction(4, c.layers) * (1 + Fraction(c.vocabulary, c.hidden)) if p == 1 else 0
        )
        assert e.stages[0].device["activations"] == unit * (per + extra)


def test_an_interleaved_schedule_holds_the_published_factor_more() -> None:
    c, p = megatron("175B"), 8
    for chunks in (2, 3, 4):
        assert pipeline.in_flight("interleaved", 0, p, 64, chunks) == p * (1 + Fraction(p - 1, p * chunks))
    plain = estimate(c, gpus=8, pipeline=8, micro_batches=64).stages[0]
    woven = estimate(c, gpus=8, pipeline=8, micro_batches=64, schedule="interleaved", chunks=3).stages[0]
    mask = 2048 * c.hidden  # of the embedding's dropout: first-chunk micro-batches are 2 p - 1 where 1F1B has p
    layers = Fraction(woven.device["activations"] - 15 * mask, plain.device["activations"] - 8 * mask)
    assert layers == 1 + Fraction(p - 1, p * 3)


def test_full_recomputation_keeps_two_bytes_a_value() -> None:
    e = estimate(megatron("175B"), recompute="full").fullest
    ends = 2048 * 12288 * (1 + 2 + 2) + 4 * 2048 * 51200
    assert e.device["activations"] == 96 * 2 * 2048 * 12288 + ends


# --- pipelines --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("p", "m"), [(4, 8), (8, 64), (1, 5), (16, 16)])
def test_the_bubble(p: int, m: int) -> None:
    assert pipeline.bubble(p, m) == Fraction(p - 1, m)
    assert pipeline.bubble(p, m, 4) == Fraction(p - 1, 4 * m)
    assert pipeline.idle(p, m) == Fraction(p - 1, m + p - 1)


# --- state sizes ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("block", "bytes_each"), [(256, "2.03125"), (2048, "2.00390625")])
def test_8_bit_adams_bytes_a_parameter(block: int, bytes_each: str) -> None:
    """2 + 8 / B, exactly where the blocks divide; a block begun is a block paid; small tensors stay in FP32."""
    rule, n = recipes.OPTIMIZERS["adamw8bit"], 2**20
    assert (
        Fraction(recipes.state_bytes([(n, 1)], rule, block=block), n) == Fraction(bytes_each) == 2 + Fraction(8, block)
    )
    assert recipes.state_bytes([(n + 1, 1)], rule, block=block) == 2 * (n + 1) + 8 * (n // block + 1)
    assert recipes.state_bytes([(4095, 3)], rule, block=block) == 3 * 8 * 4095
    assert recipes.state_bytes([(4096, 1)], rule, block=block) == 2 * 4096 + 8 * 4096 // block
    assert recipes.state_bytes([(n, 1)], recipes.OPTIMIZERS["momentum8bit"], block=block) == n + 4 * n // block


def test_8_bit_adam_saves_8_5_gb_of_gpt2_xl() -> None:
    """Dettmers et al., Table 1: 8.5 GB saved on 1.5 billion; the states alone give 9.3, or 8.9 without embeddings."""
    runs = estimate("gpt2-xl"), estimate("gpt2-xl", optimizer="adamw8bit", block=2048)
    counted = [run.fullest.device["states"] for run in runs]
    assert rounded(Fraction(counted[0] - counted[1], GB), 1) == "9.3"
    embeddings = sum(t.elements for t in tensors_of(preset("gpt2-xl")).embedding)
    assert rounded(Fraction(counted[0] - counted[1] - 6 * embeddings, GB), 1) == "8.8"


def test_units_are_named_apart() -> None:
    assert shown(352_494_542_848) == "352 GB"
    assert shown(0) == "0 B"
    assert f"{gib(24 * GB):.2f}" == "22.35"
    assert (rounded(Fraction(5, 4), 1), truncated(Fraction(5, 4), 1)) == ("1.3", "1.2")

"""8-bit optimizers: every bit against the definition, on odd shapes and dtypes; states, saving, refusals."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses
from torch import nn

from fplab import codebooks, num_threads, set_num_threads
from fplab.codebooks import rules
from fplab.errors import LabError
from fplab.training import Adagrad8bit, Adam8bit, AdamW8bit, Lion8bit, SGD8bit, StableEmbedding
from fplab.training.eight_bit import oracle
from fplab.training.optimizers import programs

f32 = np.float32
CLASSES = {"adam": Adam8bit, "momentum": SGD8bit, "lion": Lion8bit, "adagrad": Adagrad8bit}


# --- the published formulas, written again by hand for arrays of float32 -------------------------------------------
def adam(p: Any, g: Any, m: Any, v: Any, h: dict[str, Any]) -> tuple[Any, Any, Any]:
    m = h["beta1"] * m + (f32(1) - h["beta1"]) * g
    v = h["beta2"] * v + (f32(1) - h["beta2"]) * g * g
    return p + h["size"] * (m / (np.sqrt(v) + h["eps"])), m, v


def momentum(p: Any, g: Any, m: Any, v: Any, h: dict[str, Any]) -> tuple[Any, Any, Any]:
    m = h["beta1"] * m + g
    return p + h["size"] * m, m, v


def lion(p: Any, g: Any, m: Any, v: Any, h: dict[str, Any]) -> tuple[Any, Any, Any]:
    c = h["beta1"] * m + (f32(1) - h["beta1"]) * g
    p = np.where(c > 0, p + h["size"], np.where(c < 0, p - h["size"], p))
    return p, h["beta2"] * m + (f32(1) - h["beta2"]) * g, v


def adagrad(p: Any, g: Any, m: Any, v: Any, h: dict[str, Any]) -> tuple[Any, Any, Any]:
    v = v + g * g
    return p + h["size"] * (g / (np.sqrt(v) + h["eps"])), m, v


UPDATES = {"adam": adam, "momentum": momentum, "lion": lion, "adagrad": adagrad}


def by_formula(name: str, p: Any, g: Any, m: Any, v: Any, h: dict[str, Any]) -> list[np.ndarray]:
    """A step with weight decay where ``h["decay"]`` says, by ``h["share"]``; a bad gradient moves nothing."""
    with np.errstate(all="ignore"):
        shrink = f32(1 - h["lr"] * h["share"])
        slope = g + f32(h["share"]) * p if h["decay"] == "gradient" and h["share"] else g
        new, *states = UPDATES[name](p * shrink if h["decay"] == "before" else p, slope, m, v, h)
        new = new * shrink if h["decay"] == "after" else new
    return [np.where(np.isfinite(g), new, p), *(np.where(np.isfinite(g), x, f32(0)) for x in states)]


def by_program(name: str, p: Any, g: Any, m: Any, v: Any, h: dict[str, Any]) -> list[np.ndarray]:
    """The same by the program that the optimizer has, under its interpreter in numpy."""
    kind, lr = CLASSES[name].kind, h["lr"]
    numbers = {
        "beta1": h["beta1"], "one_minus_beta1": f32(1) - h["beta1"], "momentum": h["beta1"], "eps": h["eps"],
        "beta2": h["beta2"], "one_minus_beta2": f32(1) - h["beta2"], "minus_step_size": h["size"], "minus_lr": -lr,
        "weight_decay": h["share"], "keep": 1 - lr * h["share"],
    }  # fmt: skip
    first, second = kind.states
    arrays = {"weight": p, "gradient": g, first: m, second: v}
    after = oracle.step(programs.decayed(kind.program, h["decay"] if h["share"] else ""), arrays, numbers)
    return [after["weight"], after[first], after[second]]


class Slow:
    """One tensor under an oracle: the same options as the optimizer, the states as ranks and scales."""

    def __init__(self, name: str, p: np.ndarray, lr: float, decay: str, share: float, block: int, whole: bool,
                 sign: str, code: Any = None, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 ) -> None:  # fmt: skip
        self.name, self.p, self.block, self.whole, self.betas, self.eps = name, p, block, whole, betas, eps
        self.h: dict[str, Any] = {"lr": lr, "decay": decay, "share": share}
        self.books = code or (codebooks.dynamic(), codebooks.dynamic(signed=False))
        self.rules = (rules.SIGN if sign == "kept" else rules.EVEN, rules.EVEN)
        self.t = 0
        self.exact = [np.zeros(p.size, f32), np.zeros(p.size, f32)]
        blocks = -(-p.size // block)
        self.held = [(np.zeros(p.size, np.uint8), np.zeros(blocks, f32)) for _ in range(2)]

    def numbers(self) -> None:
        beta1, beta2 = self.betas
        self.t += 1
        lr = self.h["lr"]
        self.h |= {"beta1": f32(beta1), "beta2": f32(beta2), "size": f32(-lr), "eps": f32(self.eps)}
        if self.name == "adam":
            root = math.sqrt(1 - beta2**self.t)
            self.h |= {"size": f32(-lr * root / (1 - beta1**self.t)), "eps": f32(root * self.eps)}

    def step(self, g: np.ndarray) -> None:
        self.numbers()
        states = self.exact
        if not self.whole:
            states = [oracle.load(*h, b, self.block) for h, b in zip(self.held, self.books, strict=True)]
        interpreted = by_program(self.name, self.p, g, *states, self.h)
        self.p, *new = by_formula(self.name, self.p, g, *states, self.h)
        for state, x, y in zip(("weight", *CLASSES[self.name].kind.states), (self.p, *new), interpreted, strict=True):
            assert not state or np.array_equal(bits(x), bits(y))
        self.exact = new
        if not self.whole:
            kept = zip(new, self.books, self.rules, strict=True)
            self.held = [oracle.save(s, b, self.block, r) for s, b, r in kept]


def bits(x: Any) -> np.ndarray:
    return np.asarray(x, f32).reshape(-1).view(np.uint32)


def compare(name: str, optimizer: Any, p: torch.Tensor, slow: Slow) -> None:
    state = optimizer.state[p]
    used = {"adam": (0, 1), "momentum": (0,), "lion": (0,), "adagrad": (1,)}[name]
    for number in used:
        held = state[f"state{number + 1}"].numpy().reshape(-1)
        if slow.whole:
            np.testing.assert_array_equal(bits(held), bits(slow.exact[number]))
        else:
            np.testing.assert_array_equal(held, slow.held[number][0].reshape(-1))
            np.testing.assert_array_equal(bits(state[f"absmax{number + 1}"].numpy()), bits(slow.held[number][1]))


def gradients(rng: np.random.Generator, shape: tuple[int, ...], t: int) -> np.ndarray:
    """Gradients over many decades, with zeros, and now and then one that is not finite."""
    n = math.prod(shape)
    flat = rng.standard_normal(n) * 10.0 ** rng.integers(-6, 1, n)
    flat[rng.random(n) < 0.1] = 0
    if t % 3 == 1 and flat.size > 3:
        flat[:3] = [np.nan, np.inf, -np.inf]
    return flat.reshape(shape).astype(f32)


OPTIONS = [
    ("adam", {"lr": 1e-3, "betas": (0.9, 0.999)}, {}),
    ("adam", {"lr": 1e-2, "betas": (0.8, 0.95), "weight_decay": 0.1, "decay": "gradient", "eps": 1e-6}, {}),
    ("adam", {"lr": 1e-2, "weight_decay": 0.3, "decay": "before", "sign": "nearest"}, {}),
    ("adam", {"lr": 1e-2, "weight_decay": 0.3, "decay": "after", "block": 100}, {}),
    ("adam", {"lr": 1e-2, "code": "linear", "block": None}, {}),
    ("momentum", {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2}, {}),
    ("lion", {"lr": 1e-3, "weight_decay": 0.1}, {}),
    ("adagrad", {"lr": 1e-2, "weight_decay": 0.0}, {}),
]


def slow_for(name: str, p: np.ndarray, options: dict[str, Any], whole: bool) -> Slow:
    decay = options.get("decay", "before" if name == "lion" else "gradient")
    code = (codebooks.linear(), codebooks.linear(signed=False)) if options.get("code") == "linear" else None
    betas = {"momentum": (options.get("momentum", 0.0), 0.0), "lion": (0.9, 0.99)}.get(name, (0.9, 0.999))
    eps = 1e-10 if name == "adagrad" else 1e-8
    block = options.get("block", 64) or p.size
    return Slow(name, p, options["lr"], decay, options.get("weight_decay", 0.0), block, whole,
                options.get("sign", "kept"), code, options.get("betas", betas), options.get("eps", eps))  # fmt: skip


@pytest.mark.parametrize("whole", [False, True], ids=["8-bit", "32-bit"])
@pytest.mark.parametrize(("name", "options", "_"), OPTIONS, ids=lambda v: str(v)[:60])
def test_every_bit_over_many_steps_is_the_definitions(name, options, _, whole) -> None:  # type: ignore[no-untyped-def]
    """149 elements in blocks of 64: the last block is partial; one block's gradients are all zero."""
    rng = np.random.default_rng(1)
    start = rng.standard_normal(149).astype(f32)
    p = nn.Parameter(torch.from_numpy(start.copy()))
    given = {"block": 64, **options, "min_8bit_size": 1000 if whole else 0}
    optimizer = CLASSES[name]([p], **given)
    slow = slow_for(name, start, options, whole)
    for t in range(8):
        g = gradients(rng, (149,), t)
        g[64:128] = 0 if t < 3 else g[64:128]
        p.grad = torch.from_numpy(g)
        optimizer.step()
        slow.step(g)
        np.testing.assert_array_equal(bits(p.detach().numpy()), bits(slow.p), err_msg=f"step {t}")
        compare(name, optimizer, p, slow)
    assert not np.array_equal(start, slow.p)


@pytest.mark.parametrize("shape", [(1,), (), (0,), (64,), (65,), (3, 5, 7)])
def test_odd_shapes(shape) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(2)
    start = rng.standard_normal(shape).astype(f32)
    p = nn.Parameter(torch.from_numpy(np.array(start)))
    optimizer = Adam8bit([p], block=64, min_8bit_size=0)
    slow = Slow("adam", start.reshape(-1), 1e-3, "gradient", 0.0, 64, False, "kept")
    for t in range(3):
        g = gradients(rng, shape, 0 * t)
        p.grad = torch.from_numpy(np.array(g))
        optimizer.step()
        if start.size:
            slow.step(g.reshape(-1))
    np.testing.assert_array_equal(bits(p.detach().numpy()), bits(slow.p))
    assert optimizer.state[p]["state1"].shape == p.shape


def test_a_parameter_that_is_not_contiguous_is_updated_in_its_own_order() -> None:
    rng = np.random.default_rng(3)
    base = torch.from_numpy(rng.standard_normal((20, 30)).astype(f32))
    p = nn.Parameter(base.t())
    assert not p.is_contiguous()
    same = nn.Parameter(base.t().contiguous())
    g = torch.from_numpy(rng.standard_normal((30, 20)).astype(f32))
    for q in (p, same):
        optimizer = Adam8bit([q], block=64, min_8bit_size=0)
        for _ in range(3):
            q.grad = g
            optimizer.step()
    np.testing.assert_array_equal(p.detach().numpy(), same.detach().numpy())
    np.testing.assert_array_equal(p.detach().numpy(), base.t().numpy())  # in place, in the storage that was there


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_16_bit_parameter_is_updated_in_float32_and_rounded_once(dtype) -> None:  # type: ignore[no-untyped-def]
    import fplab

    rng = np.random.default_rng(4)
    fmt = {torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
    p = nn.Parameter(torch.from_numpy(rng.standard_normal(100).astype(f32)).to(dtype))
    slow = Slow("adam", p.detach().float().numpy().copy(), 1e-2, "gradient", 0.0, 64, False, "kept")
    optimizer = Adam8bit([p], lr=1e-2, block=64, min_8bit_size=0)
    for _ in range(4):
        p.grad = torch.from_numpy(rng.standard_normal(100).astype(f32)).to(dtype)
        optimizer.step()
        slow.step(p.grad.float().numpy())
        slow.p = fplab.quantize(slow.p, fmt)
        np.testing.assert_array_equal(bits(p.detach().float().numpy()), bits(slow.p))
        compare("adam", optimizer, p, slow)


def test_stochastic_states_use_words_of_their_own_and_the_definition() -> None:
    from fplab.codebooks import oracle as books
    from fplab.kernels.rounding import element_word

    rng = np.random.default_rng(5)
    p = nn.Parameter(torch.zeros(100))
    optimizer = Adam8bit([p], block=64, min_8bit_size=0, rounding="stochastic", seed=9)
    p.grad = torch.from_numpy(rng.standard_normal(100).astype(f32))
    optimizer.step()
    g = p.grad.numpy()
    one = f32(1)
    new = ((one - f32(0.9)) * g, (one - f32(0.999)) * g * g)
    for array, (state, book) in enumerate(zip(new, optimizer.codes, strict=True)):
        seed = np.random.Philox(key=np.array([9, 1 << 24], np.uint64), counter=[0, array, 0, 0]).random_raw()
        words = [int(element_word(i, np.uint64(seed))) for i in range(100)]
        want = books.stochastic(state, book, 64, words)
        np.testing.assert_array_equal(optimizer.state[p][f"state{array + 1}"].numpy(), want)


def test_searched_codebooks_give_the_definitions_bits_too() -> None:
    """256 values so close together that two thresholds share every bucket: the kernel bisects."""
    tiny = np.linspace(0.5, 0.5001, 120)
    close = codebooks.Codebook("close", np.concatenate([-tiny[::-1], [0], tiny, [1]]))
    rng = np.random.default_rng(6)
    start = rng.standard_normal(200).astype(f32)
    p = nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = SGD8bit([p], 0.1, 0.9, block=64, min_8bit_size=0, code=(close, codebooks.dynamic(False)))
    slow = Slow("momentum", start, 0.1, "gradient", 0.0, 64, False, "kept", (close, codebooks.dynamic(False)),
                (0.9, 0.0))  # fmt: skip
    for t in range(4):
        g = gradients(rng, (200,), t)
        p.grad = torch.from_numpy(g)
        optimizer.step()
        slow.step(g)
    np.testing.assert_array_equal(bits(p.detach().numpy()), bits(slow.p))
    compare("momentum", optimizer, p, slow)


def test_results_do_not_depend_on_the_thread_count() -> None:
    found = []
    before = num_threads()
    for threads in (1, 2, 3):
        set_num_threads(threads)
        torch.manual_seed(0)
        p = nn.Parameter(torch.randn(200_001))
        optimizer = AdamW8bit([p], rounding="stochastic")
        for _ in range(2):
            p.grad = torch.sin(p.detach() * 37)
            optimizer.step()
        found.append((p.detach().numpy().copy(), optimizer.state[p]["state2"].numpy().copy()))
    set_num_threads(before)
    for got in found[1:]:
        for a, b in zip(got, found[0], strict=True):
            np.testing.assert_array_equal(a, b)


# --- near torch's own --------------------------------------------------------------------------------------------
def test_with_32_bit_states_it_is_torchs_adam_up_to_rounding() -> None:
    torch.manual_seed(0)
    a, b = (nn.Parameter(torch.linspace(-1, 1, 500)) for _ in range(2))
    mine, theirs = AdamW8bit([a], state_bits=32, weight_decay=0.1), torch.optim.AdamW([b], weight_decay=0.1)
    for _ in range(20):
        a.grad = b.grad = torch.randn(500)
        mine.step()
        theirs.step()
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


# --- states ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("n", "block"), [(4096, 2048), (4097, 2048), (10_000, 256), (4096, 1), (5000, None)])
def test_state_bytes_are_two_a_parameter_and_eight_a_block(n, block) -> None:  # type: ignore[no-untyped-def]
    p = nn.Parameter(torch.zeros(n))
    p.grad = torch.ones(n)
    optimizer = Adam8bit([p], block=block)
    optimizer.step()
    assert optimizer.state_bytes() == 2 * n + 8 * -(-n // (block or n))


def test_small_tensors_keep_eight_bytes_a_parameter() -> None:
    p, q = nn.Parameter(torch.zeros(4095)), nn.Parameter(torch.zeros(4096))
    p.grad, q.grad = torch.ones(4095), torch.ones(4096)
    optimizer = Adam8bit([p, q])
    optimizer.step()
    assert optimizer.state[p]["state1"].dtype == torch.float32
    assert optimizer.state_bytes() == 8 * 4095 + 2 * 4096 + 8 * 2


def test_one_state_takes_one_byte() -> None:
    p = nn.Parameter(torch.zeros(4096))
    p.grad = torch.ones(4096)
    for make in (lambda: SGD8bit([p], 0.1, 0.9), lambda: Lion8bit([p]), lambda: Adagrad8bit([p])):
        optimizer = make()
        optimizer.step()
        assert optimizer.state_bytes() == 4096 + 4 * 2


def test_it_lives_in_an_ordinary_loop() -> None:
    """A closure, a scheduler, groups with their own settings, and parameters without a gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
    model[0].bias.requires_grad_(False)
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[2].parameters()), "state_bits": 32}]
    optimizer = AdamW8bit(groups, lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
    x = torch.randn(256, 64)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        return loss

    losses = []
    for _ in range(30):
        losses.append(optimizer.step(closure).item())
        schedule.step()
    assert losses[-1] < 0.6 * losses[0]
    assert optimizer.state[model[0].weight]["state1"].dtype == torch.uint8
    assert optimizer.state[model[2].weight]["state1"].dtype == torch.float32
    assert model[0].bias not in optimizer.state


# --- what each published variant does -----------------------------------------------------------------------------
def test_the_sign_rule_keeps_small_negative_states_from_becoming_zero() -> None:
    g = torch.zeros(64)
    g[0], g[1], g[2] = 1.0, -1e-9, 1e-9
    found = {}
    for sign in ("kept", "nearest"):
        p = nn.Parameter(torch.zeros(64))
        optimizer = Adam8bit([p], min_8bit_size=0, sign=sign)
        p.grad = g.clone()
        optimizer.step()
        found[sign] = optimizer.state[p]["state1"].numpy()[:3].tolist()
    assert found == {"kept": [255, 126, 127], "nearest": [255, 127, 127]}


def test_a_bad_gradient_is_skipped_or_an_error() -> None:
    p = nn.Parameter(torch.ones(4))
    optimizer = Adam8bit([p], min_8bit_size=0)
    p.grad = torch.tensor([1.0, math.nan, math.inf, 1.0])
    optimizer.step()
    assert p[1] == p[2] == 1
    assert p[0] == p[3] < 1
    strict = Adam8bit([p], bad_gradients="error")
    refuses(lambda: strict.step(), r"element 1 of the gradient of parameter 0 is nan\.")
    assert p not in strict.state


# --- odd use -----------------------------------------------------------------------------------------------------
def parameter(n: int = 5000) -> nn.Parameter:
    p = nn.Parameter(torch.linspace(-1, 1, n))
    p.grad = torch.linspace(1, -1, n)
    return p


def stepped(optimizer: Any) -> Any:
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(("code", "text"),
                         [("dynamc", r"unknown code 'dynamc'\. Allowed: dynamic, linear\. Did you mean"),
                          (codebooks.nf4(), r"code is two Codebooks"),
                          ((codebooks.dynamic(False),) * 2,
                           r"dynamic unsigned 8-bit has no negative values")])  # fmt: skip
def test_a_code_is_two_codebooks_the_first_with_a_sign(code: Any, text: str) -> None:
    refuses(lambda: Adam8bit([parameter()], code=code), text)


def test_a_group_has_blocks_of_its_own_and_no_codebook_of_its_own() -> None:
    p, q, r = parameter(), parameter(), parameter()
    optimizer = stepped(Adam8bit([{"params": [p], "block": 64}, {"params": [q], "block": None}, {"params": [r]}]))
    assert [optimizer.state[x]["absmax1"].numel() for x in (p, q, r)] == [79, 1, 3]
    with pytest.raises(LabError, match="code is the whole optimizer's, not a group's; make another optimizer"):
        Adam8bit([{"params": [parameter()], "code": "linear"}])
    linear = Adam8bit([parameter()], code="linear")
    refuses(lambda: Adam8bit(linear.param_groups), "code is the whole optimizer's")
    assert Adam8bit(optimizer.param_groups).param_groups[1]["block"] is None


# --- states that do not fit: the kernels trust their sizes --------------------------------------------------------
def test_a_state_of_another_dtype_is_an_error() -> None:
    p = parameter()
    optimizer = stepped(Adam8bit([p]))
    optimizer.state[p]["state2"] = optimizer.state[p]["state2"].half()
    refuses(lambda: optimizer.step(), r"state 2 of parameter 0 is torch\.float16; it is torch\.uint8 or torch\.float32")


def test_a_loaded_state_lies_in_its_own_order() -> None:
    """One that was saved transposed must not be updated through a copy that is thrown away."""
    runs = []
    for turned in (False, True):
        p = nn.Parameter(torch.linspace(-1, 1, 6400).reshape(80, 80))
        p.grad = torch.linspace(1, -1, 6400).reshape(80, 80)
        saved = stepped(Adam8bit([p])).state_dict()
        for state in saved["state"].values():
            for name in ("state1", "state2") if turned else ():
                state[name] = state[name].t().contiguous().t()
        optimizer = Adam8bit([p])
        optimizer.load_state_dict(saved)
        for _ in range(3):
            p.grad = p.grad.t().contiguous()  # the shape of the states changes from step to step
            optimizer.step()
        runs.append(p.detach().clone())
    assert torch.equal(*runs)


@pytest.mark.parametrize("n", [4999, 6000, 30])
def test_a_resized_parameter_is_an_error(n: int) -> None:
    p = parameter()
    optimizer = stepped(Adam8bit([p]))
    p.data, p.grad = torch.zeros(n), torch.ones(n)
    want = rf"state 1 of parameter 0 has shape \(5000,\), the parameter \({n},\); a parameter that was resized needs"
    refuses(lambda: optimizer.step(), want)
    assert not p.any()


def test_the_block_size_cannot_change_between_steps() -> None:
    p = parameter()
    optimizer = stepped(Adam8bit([p]))
    optimizer.param_groups[0]["block"] = 64
    refuses(lambda: optimizer.step(), r"state 1 of parameter 0 has 3 scales, and blocks of 64 need 79; the block size")


def test_adam_and_adamw_read_each_others_states() -> None:
    optimizer = AdamW8bit([parameter()])
    optimizer.load_state_dict(stepped(Adam8bit([parameter()])).state_dict())
    optimizer.step()


# --- the stable embedding's mark ----------------------------------------------------------------------------------
def test_a_replaced_or_tied_weight_keeps_32_bit_states() -> None:
    head = nn.Linear(64, 128, bias=False)
    table = StableEmbedding(128, 64)
    table.weight = head.weight
    loaded = StableEmbedding(128, 64)
    loaded.load_state_dict(StableEmbedding(128, 64).state_dict(), assign=True)
    materialised = StableEmbedding(128, 64, device="meta")
    assert materialised.norm.weight.is_meta
    materialised = materialised.to_empty(device="cpu")
    for one in (table, loaded, materialised):
        nn.init.ones_(one.weight)
        optimizer = Adam8bit(one.parameters())
        one(torch.arange(128)).sum().backward()
        optimizer.step()
        assert optimizer.state[one.weight]["state1"].dtype == torch.float32

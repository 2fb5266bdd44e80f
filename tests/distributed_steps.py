"""Three steps of a small network under a strategy of torch.distributed, as :mod:`ranks` starts it.

Each rank takes its part of every batch, and for each of :data:`WHATS` trains a network anew; :func:`main` gives what it
has. :func:`alone` is the same in one process, which takes the ranks' parts one after the other and adds their gradients
in the order in which gloo adds them.
"""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint as recomputing

from fplab.errors import LabError
from fplab.nn import emulate, explain, formats, recipes, shadow, survey, watch
from fplab.parallel import gloo
from fplab.training import Adam8bit, AdamW, AmaxScaling

STEPS, BATCH, WIDTH, MICRO = 3, 16, 32, 4
RECIPES = {  # a stage of a pipeline would keep the last of its own layers high
    "mxfp8": ("B200", recipes.mxfp8(scope="all")), "nvfp4": ("B200", recipes.nvfp4(scope="all")),
    "nearest": ("B200", recipes.nvfp4(scope="all", disable_stochastic_rounding=True)),
    "delayed": ("H100", recipes.fp8_delayed(amax_history_len=2, scope="all")),
}  # fmt: skip
WHATS = ("plain", "emulate", "scaled", "watch", "formats", "optimizer", "8-bit", *RECIPES)
Found = dict[str, Any]


def network() -> nn.Sequential:
    """Two layers, of whose widths 2 and 4 ranks have equal parts."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))


def stages() -> list[nn.Sequential]:
    """Twice that network, cut into four: each rank of a pipeline has one, or two of two."""
    layers = [*network(), *network()]
    return [nn.Sequential(*layers[at : at + 1 + (at % 3 == 0)]) for at in (0, 2, 3, 5)]


def batches() -> torch.Tensor:
    return torch.randn(STEPS, BATCH, WIDTH, generator=torch.Generator().manual_seed(1))


def part(batch: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    return batch[rank * BATCH // ranks : (rank + 1) * BATCH // ranks]


def optimizer_of(what: str, net: nn.Module) -> Any:
    if what == "optimizer":
        return AdamW(net.parameters(), 1e-2)
    if what == "8-bit":
        return Adam8bit(net.parameters(), 1e-2, min_8bit_size=0, block=8)
    return torch.optim.SGD(net.parameters(), 0.125)


def scales_of(what: str, shared: bool = True) -> Any:
    """What a run remembers from step to step: the emulation itself of a recipe. ``shared``: over the ranks."""
    if what not in RECIPES:
        return AmaxScaling()
    gpu, recipe = RECIPES[what]
    return emulate(gpu, recipe=replace(recipe, reduce_amax=shared))


def block(what: str, net: nn.Module, scales: Any) -> Any:
    """The lab's part of a step; without "plain" and "watch" every step is in a GPU's bits too."""
    if what in RECIPES:
        return scales
    if what == "formats":
        return formats(net, weights="e4m3", activations="bf16")
    if what == "scaled":
        return emulate("H100", "e4m3", gradients="e5m2", scaling=scales)
    return nullcontext() if what in ("plain", "watch") else emulate("H100", "fp16")


def step(net: nn.Module, what: str, scales: Any, x: torch.Tensor) -> torch.Tensor:
    with block(what, net, scales):
        if hasattr(net, "schedule"):
            return in_a_stage(net.schedule, x)
        loss = net(x).square().mean()
        torch.autograd.backward(loss)  # after loss.backward() a recipe begins its next step, before ranks are together
    return loss.detach()


def in_a_stage(schedule: ScheduleGPipe, x: torch.Tensor) -> torch.Tensor:
    """A stage's part of a step, MICRO parts of the batch one after the other; the loss where the last stage is."""
    losses: list[torch.Tensor] = []
    first, last = dist.get_rank() == 0, dist.get_rank() == dist.get_world_size() - 1
    schedule.step(*[x][:first], **({"target": x, "losses": losses} if last else {}))
    return torch.stack(losses).detach().mean() if losses else torch.zeros(())


def train(net: nn.Module, what: str, own: Callable[[torch.Tensor], torch.Tensor]) -> Found:
    staged = hasattr(net, "schedule")  # the ranks have layers of their own, and no scales in common
    optimizer, scales, losses, said = optimizer_of(what, net), scales_of(what, not staged), [], ""
    with watch(net, optimizer) if what == "watch" else nullcontext() as session:
        for batch in batches():
            losses.append(step(net, what, scales, own(batch)))
            if what == "scaled" and not staged:
                scales.synchronize()
            optimizer.step()
            optimizer.zero_grad()
    if session is not None:
        said = str(session.report())
    held = [p.to_local() if isinstance(p, DTensor) else p for p in net.parameters()]
    return {
        "losses": torch.stack(losses), "said": said, "resizable": [t.untyped_storage().resizable() for t in held],
        "weights": [(p.full_tensor() if isinstance(p, DTensor) else p).detach().clone() for p in net.parameters()],
    }  # fmt: skip


# --- one process ----------------------------------------------------------------------------------------------------
def alone(strategy: str, what: str, ranks: int) -> Found:
    """What rank 0 has after the steps, computed in one process."""
    net = network()
    optimizer, losses = optimizer_of(what, net), []
    scales = [scales_of(what) for _ in range(ranks)]
    for batch in batches():
        each = []
        for rank in range(ranks):
            with warnings.catch_warnings():  # that one network has several emulations, here one a rank
                warnings.filterwarnings("ignore", ".*begins delayed scaling without a history")
                losses.append(step(net, what, scales[rank], part(batch, rank, ranks)))
            each.append([p.grad.clone() / ranks for p in net.parameters()])
            net.zero_grad()
        together(scales)
        total = in_shards(each) if strategy == "fsdp2" else in_one_buffer(each, len(losses) > ranks)
        for p, gradient in zip(net.parameters(), total, strict=True):
            p.grad = gradient
        optimizer.step()
        optimizer.zero_grad()
    return {"losses": torch.stack(losses[::ranks]), "weights": [p.detach() for p in net.parameters()]}


def beforehand() -> None:
    """Every kernel of the steps is loaded, in the process that forks the ranks."""
    for what in WHATS:
        alone("ddp", what, 2)


def together(scales: list[Any]) -> None:
    """As ``synchronize`` does it, and a recipe's next step."""
    if isinstance(scales[0], AmaxScaling):
        for role in scales[0]._seen:
            largest = max(one._seen[role][-1] for one in scales)
            for one in scales:
                one._seen[role][-1] = largest
        return
    pending = [one.amaxes._pending for one in scales]
    for role in pending[0]:
        largest = max(one[role] for one in pending)
        for one in pending:
            one[role] = largest


def in_one_buffer(each: list[list[torch.Tensor]], rebuilt: bool) -> list[torch.Tensor]:
    """DDP's bucket, the gradients one after the other, in gloo's order for each chunk of it.

    In the first step they lie in the order of the parameters, later in that in which they were ready, from the last.
    """
    way = -1 if rebuilt else 1
    flat = np.stack([torch.cat([g.reshape(-1) for g in grads[::way]]).numpy() for grads in each])
    parts = torch.from_numpy(gloo.all_reduce(flat)).split([g.numel() for g in each[0][::way]])
    return [t.reshape(g.shape) for t, g in zip(parts[::way], each[0], strict=True)]


def in_shards(each: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    """FSDP2's reduce-scatter: the rows that a rank keeps are added in gloo's order for its chunk."""
    ranks, result = len(each), []
    for grads in zip(*each, strict=True):
        shards = []
        for rank in range(ranks):
            rows = [(*g.chunk(ranks), *[g[:0]] * ranks)[rank] for g in grads]  # of one row, rank 0 has it
            first, *others = gloo.order(rank, ranks)
            total = rows[first].clone()
            for other in others:
                total += rows[other]
            shards.append(total)
        result.append(torch.cat(shards))
    return result


class _Summed(torch.autograd.Function):
    """The ranks' parts of a layer's output, added as gloo adds them."""

    @staticmethod
    def forward(ctx: Any, *parts: torch.Tensor) -> torch.Tensor:
        ctx.n, flat = len(parts), np.stack([p.detach().numpy().ravel() for p in parts])
        return torch.from_numpy(gloo.all_reduce(flat)).view(parts[0].shape)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return gradients * ctx.n


def in_slices(what: str, ranks: int) -> Found:
    """Tensor parallel in one process: each rank's columns, then rows; k of the second layer is cut into the ranks'."""
    net = network()
    first, bias, second, last = (p.detach() for p in net.parameters())
    slices = [[t.clone().requires_grad_() for t in (first.chunk(ranks)[r], bias.chunk(ranks)[r],
               second.chunk(ranks, 1)[r].contiguous())] for r in range(ranks)]  # fmt: skip
    end = last.clone().requires_grad_()
    holder = nn.ParameterList([nn.Parameter(t) for part in slices for t in part] + [nn.Parameter(end)])
    optimizer, losses, scales = optimizer_of(what, holder), [], [scales_of(what) for _ in range(ranks)]
    for x in batches():
        parts = []
        for r in range(ranks):
            a, b, c = (holder[3 * r + i] for i in range(3))
            with block(what, net, scales[r]):
                hidden = nn.functional.gelu(nn.functional.linear(x, a, b))
                parts.append(torch.addmm(holder[3 * ranks] / ranks, hidden, c.T))  # DTensor gives each rank its share
        loss = _Summed.apply(*parts).square().mean()
        loss.backward()
        together(scales)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    each = [torch.cat([holder[3 * r + i] for r in range(ranks)], int(i == 2)).detach() for i in range(3)]
    return {"losses": torch.stack(losses), "weights": [*each, holder[3 * ranks].detach()]}


def in_parts(what: str) -> Found:
    """A pipeline in one process: the parts of a batch go forward one after the other, then backward."""
    net = nn.Sequential(*(layer for stage in stages() for layer in stage))
    optimizer, scales, losses = optimizer_of(what, net), scales_of(what), []
    for batch in batches():
        with block(what, net, scales):
            each = [net(x).square().mean() for x in batch.chunk(MICRO)]
            for loss in each:
                torch.autograd.backward(loss)
        for p in net.parameters():
            p.grad.div_(MICRO)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(torch.stack(each).detach().mean())
    return {"losses": torch.stack(losses), "weights": [p.detach() for p in net.parameters()]}


# --- a process of several -------------------------------------------------------------------------------------------
def spread(strategy: str, ranks: int) -> nn.Module:
    if strategy == "pipeline":
        return stage(ranks)
    net = network()
    mesh = init_device_mesh("cpu", (ranks,))
    if strategy == "ddp":
        return DistributedDataParallel(net)
    if strategy == "tensor":
        return parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for layer in (net[0], net[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)  # type: ignore[return-value]


def stage(ranks: int) -> nn.Module:
    """This rank's layers of a pipeline.

    Shapes are given: else the first step tries the layers on a part of the batch, whose amaxes a scaling would note.
    """
    rank, four = dist.get_rank(), stages()
    net = nn.Sequential(*(layer for one in four[rank * 4 // ranks : (rank + 1) * 4 // ranks] for layer in one))
    ends = (net[0].in_features, rank > 0), (net[::2][-1].out_features, True)
    shapes = (torch.empty(BATCH // MICRO, n, device="meta", requires_grad=grad) for n, grad in ends)
    part = PipelineStage(net, rank, ranks, torch.device("cpu"), *shapes)
    net.schedule = ScheduleGPipe(part, MICRO, loss_fn=lambda y, target: y.square().mean())
    return net


def of_stages(found: dict[str, Found]) -> dict[str, Found]:
    """What all ranks of a pipeline have."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, found)
    lists = ("weights", "resizable")
    return {
        what: last | {name: [x for one in every for x in one[what][name]] for name in lists}
        for what, last in every[-1].items()
    }


def resumed(ranks: int, folder: str) -> dict[str, Any]:
    """Weights and scales of a run of FSDP2, of one that is saved after a step and loaded anew, and without the scales.

    The backward pass comes after the block, so that what is saved also holds the amaxes of a step that is not over.
    """
    rank, found = dist.get_rank(), {}

    def begin(what: str) -> tuple[nn.Module, Any, Any]:
        scaling = AmaxScaling(history=2) if what == "scaling" else None
        recipe = recipes.fp8_delayed(amax_history_len=2, scope="all") if what == "recipe" else None
        run = emulate("H100", "e4m3" if scaling else None, recipe=recipe, scaling=scaling)
        return spread("fsdp2", ranks), run, run if recipe else scaling

    def go(net: nn.Module, run: Any, data: torch.Tensor) -> list[torch.Tensor]:
        optimizer = torch.optim.SGD(net.parameters(), 0.125)
        for batch in data:
            with run:
                loss = net(part(batch * 4, rank, ranks)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return [p.full_tensor().detach().clone() for p in net.parameters()]

    for what in ("recipe", "scaling"):
        net, run, held = begin(what)
        whole = go(net, run, batches()), held.state_dict()
        net, run, held = begin(what)
        go(net, run, batches()[:1])
        checkpoint.save({"model": net.state_dict(), f"scales {rank}": held}, checkpoint_id=f"{folder}/{what}")
        after = []
        for name in (f"scales {rank}", None):
            net, run, held = begin(what)
            state = {"model": net.state_dict()} | ({name: held} if name else {})
            checkpoint.load(state, checkpoint_id=f"{folder}/{what}")
            net.load_state_dict(state["model"])
            after.append((go(net, run, batches()[1:]), held.state_dict()))
        found[what] = (whole, *after)
    scaling = AmaxScaling()
    scaling.scale(f"layer {rank}", torch.ones(1))
    try:
        scaling.synchronize()
    except LabError as error:
        found["refused"] = str(error)
    return found


CHECKPOINTS = {"whole": None, "reentrant": True, "not reentrant": False}


def named() -> Found:
    """Of tensor parallel by checkpoint, the backward pass in the block or after it: the products, and all gradients."""
    found: Found = {}
    for kind, reentrant in CHECKPOINTS.items():
        for inside in (True, False):
            net, x = spread("tensor", dist.get_world_size()), batches()[0].requires_grad_()
            with emulate("B200", inputs="bf16", layers={"0": "mxfp8"}) as run:
                y = net(x) if reentrant is None else recomputing(net, x, use_reentrant=reentrant)
                loss = y.square().mean()
                if inside:
                    loss.backward()
            if not inside:
                loss.backward()
            rows = [(row.layer, row.phase, row.unit, row.count) for row in run.report().rows]
            found[f"{kind}, {'inside' if inside else 'after'}"] = rows, [x.grad, *grads_of(net)]
    return found


def grads_of(net: nn.Module) -> list[torch.Tensor]:
    return [p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for p in net.parameters()]


def diagnosed(strategy: str) -> Found:
    """What the diagnoses say of a network that is spread over the ranks: what they name, or why they take none."""
    found, x = {}, batches()[0]

    def said(what: str, call: Callable[[nn.Module], Any]) -> None:
        try:
            found[what] = call(spread(strategy, dist.get_world_size()))
        except LabError as error:
            found[what] = str(error)

    def watched(net: nn.Module, reentrant: bool | None) -> Found:
        with watch(net, optimizer := torch.optim.SGD(net.parameters(), 0.125), recipes=["mxfp8"]) as session:
            given = x.clone().requires_grad_()
            y = net(given) if reentrant is None else recomputing(net, given, use_reentrant=reentrant)
            y.square().mean().backward()
            optimizer.step()
        report = session.report()
        return {
            "rows": sorted({(row.layer, row.kind) for row in report.rows}),
            "products": sorted((row.layer, *row.errors) for row in report.products),
        }

    def shadowed(net: nn.Module) -> Found:
        with emulate("H100", inputs="bf16"), shadow() as session:
            net(x).square().mean().backward()
        report = session.report()
        products = [(row.layer, row.phase) for row in report.rows if row.operation in ("addmm", "mm")]
        return {"products": products, "whole": report.whole, "rest": report.rest}

    for kind, reentrant in CHECKPOINTS.items():
        said(f"watch, {kind}", lambda net, reentrant=reentrant: watched(net, reentrant))
    said("shadow", shadowed)
    said("survey", lambda net: str(survey(net, x, lambda net, x: net(x).square().mean(), ["bf16"], progress=str)))
    ways = [{"gpu": gpu, "inputs": "fp16"} for gpu in ("H100", "A100")]
    said("explain", lambda net: str(explain(net, x, *ways, progress=str)))
    return found


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda p: Adam8bit(p, 1e-2, min_8bit_size=0, block=8),
    "ragged": lambda p: Adam8bit(p, 1e-2, min_8bit_size=0, block=48),  # no part is whole blocks
    "formats": lambda p: AdamW(p, 1e-2, weights="bf16", update="kahan"),
    "master": lambda p: AdamW(p, 1e-2, weights="bf16", update="master"),
}


def loaded(net: nn.Module, optimizer: Any, where: str) -> Found:
    """A network and its optimizer with what a checkpoint holds."""
    state = {"model": net.state_dict(), "optimizer": get_optimizer_state_dict(net, optimizer)}
    checkpoint.load(state, checkpoint_id=where)
    net.load_state_dict(state["model"])
    set_optimizer_state_dict(net, optimizer, state["optimizer"])
    return states_of(optimizer)


def states_of(optimizer: Any) -> Found:
    """The parameters and states, whole."""
    held = {str(i): p for i, p in enumerate(optimizer.param_groups[0]["params"])}
    held |= {f"{i} {name}": x for i, one in optimizer.state_dict()["state"].items() for name, x in one.items()}
    whole = {name: x.full_tensor() if isinstance(x, DTensor) else torch.as_tensor(x) for name, x in held.items()}
    return {name: x.detach().clone() for name, x in whole.items()}


def kept(ranks: int, folder: str) -> Found:
    """Optimizers' states through checkpoints: two ranks save and load, four load what two saved."""
    found: Found = {}
    for name, make in OPTIMIZERS.items():

        def begin(make: Any = make) -> tuple[nn.Module, Any]:
            net = spread("fsdp2", ranks)
            return net, make(net.parameters())

        def go(net: nn.Module, optimizer: Any, batch: torch.Tensor) -> Found:
            net(part(batch, dist.get_rank(), ranks)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            return states_of(optimizer)

        where = f"{folder}/{name}"
        if ranks == 2:
            run = begin()
            found[name] = go(*run, batches()[0])
            state = {"model": run[0].state_dict(), "optimizer": get_optimizer_state_dict(*run)}
            checkpoint.save(state, checkpoint_id=where)
            found[f"{name}, on"] = go(*run, batches()[1])
            run = begin()
            found[f"{name}, loaded"] = loaded(*run, where)
            found[f"{name}, loaded, on"] = go(*run, batches()[1])
        else:
            try:
                found[name] = loaded(*begin(), where)
            except checkpoint.CheckpointException as error:
                found[name] = str(error)
    return found


def main(folder: str, strategy: str) -> dict[str, Any]:
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def own(batch: torch.Tensor) -> torch.Tensor:
        return batch if strategy in ("tensor", "pipeline") else part(batch, rank, ranks)

    if strategy == "checkpoint":
        return resumed(ranks, f"{folder}/{ranks}")
    if strategy == "names":
        return named()
    if strategy == "diagnoses":
        return {how: diagnosed(how) for how in ("tensor", "fsdp2")}
    if strategy == "states":
        return kept(ranks, f"{folder}/states")
    found: dict[str, Any] = {what: train(spread(strategy, ranks), what, own) for what in WHATS}
    return of_stages(found) if strategy == "pipeline" else found

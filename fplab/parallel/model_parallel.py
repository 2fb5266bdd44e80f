"""Every rank has a part of the network and sees the whole batch: tensor parallel, and pipelines of stages."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .message_log import LoggedCollectives, MessageLog, adamw
from .settings import RankResult
from .task import Network

COLUMN, ROW = ("0", "4"), ("2", "6")  # layers that are divided by outputs, and by inputs (over k)


def tensor(log: MessageLog, network: Network) -> RankResult:
    """Megatron's pairs on ``torch.distributed.tensor``: a layer by its outputs, the next by its inputs, an all-reduce.

    Dividing the outputs leaves every dot product whole; dividing the inputs (k) makes each a sum of ``ranks`` partial
    sums, which changes its bits.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(log.device.type, (log.ranks,))
    plan: Any = dict.fromkeys(COLUMN, ColwiseParallel()) | dict.fromkeys(ROW, RowwiseParallel())
    model = parallelize_module(network.model(), mesh, plan)
    weights = list(model.parameters())
    optimizer = adamw(weights, log.setting.lr)
    with LoggedCollectives(log):
        for batch in network.batches():
            loss = cross_entropy(model(batch.inputs), batch.targets)
            loss.backward()
            log.losses.append(float(loss.detach()))
            log.step(weights, optimizer)
    whole: Any = {name: p.full_tensor() for name, p in model.named_parameters()}  # type: ignore[attr-defined]
    return log.result(whole)


class _Counting(nn.Sequential):
    """A stage that counts the micro-batches of which it holds activations: from its forward pass to its backward."""

    held = peak = 0

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(x)
        if not out.requires_grad:  # torch before 2.13 learns the shapes of a stage without gradients
            return out
        _Counting.held += 1
        _Counting.peak = max(_Counting.peak, _Counting.held)
        out.register_hook(_Counting.done)
        return out

    @staticmethod
    def done(gradient: Tensor) -> None:
        """The backward pass has come."""
        _Counting.held -= 1


def pipeline(log: MessageLog, network: Network, schedule: str) -> RankResult:
    """A schedule of ``torch.distributed.pipelining``: layers in stages, a batch in micro-batches.

    With "interleaved", a rank has two stages, ``ranks`` apart.
    """
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

    each = 2 if schedule == "interleaved" else 1
    count = each * log.ranks
    layers = list(network.model().named_children())
    cut = len([1 for _, layer in layers if isinstance(layer, nn.Linear)]) // count * 2  # a Linear and its ReLU
    mine = [log.rank + i * log.ranks for i in range(each)]
    modules = {}
    for index in mine:
        modules[index] = _Counting()
        for name, layer in layers[index * cut : (index + 1) * cut]:
            modules[index].add_module(name, layer)
    stages = [PipelineStage(module, index, count, log.device) for index, module in modules.items()]
    m = log.setting.micro_batches
    runner: Any
    if schedule == "interleaved":
        runner = ScheduleInterleaved1F1B(stages, m, cross_entropy)  # type: ignore[arg-type]
    else:
        runner = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[schedule](stages[0], m, cross_entropy)
    named = {name: p for module in modules.values() for name, p in module.named_parameters()}
    weights = list(named.values())
    optimizer = adamw(weights, log.setting.lr)
    last = count - 1 in modules
    for batch in network.batches():
        _Counting.held = _Counting.peak = 0  # the first step also runs a stage once to learn its shapes
        losses: list[Tensor] = []
        given = (batch.inputs,) if 0 in modules else ()
        with LoggedCollectives(log):
            runner.step(*given, **({"target": batch.targets, "losses": losses} if last else {}))
        if last:
            log.losses.append(float(torch.stack(losses).mean()))
        log.step(weights, optimizer)
    log.notes["in_flight"] = _Counting.peak
    return log.result(named)

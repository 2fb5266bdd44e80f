"""Every rank has the whole network and a share of the batch: with a parameter server, with DDP, with sharded states."""

from functools import reduce
from operator import add
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .message_log import LoggedCollectives, MessageLog, adamw, nbytes, state_bytes
from .settings import RankResult
from .task import Network


def parameter_server(log: MessageLog, network: Network) -> RankResult:
    """Workers send gradients to a server, which adds them, updates the weights and sends them out.

    Rank 0 is the server, and a worker too. It adds in the order of the ranks; it alone has optimizer states.
    """
    model, server = network.model(), log.rank == 0
    weights = list(model.parameters())
    optimizer = adamw(weights, log.setting.lr) if server else None
    for batch in network.batches():
        log.losses.append(network.backward(model, log, batch))
        for p in weights:
            assert p.grad is not None
            arrived = [torch.empty_like(p) for _ in range(log.ranks)] if server else None
            log.count("gather", p)
            dist.gather(p.grad.div_(log.ranks), arrived, dst=0)
            if arrived is not None:
                p.grad = reduce(add, arrived)
        if optimizer is not None:
            optimizer.step()
        log.hold(nbytes(weights), nbytes(p.grad for p in weights), state_bytes(optimizer) if optimizer else 0)
        for p in weights:
            log.count("broadcast", p)
            dist.broadcast(p.data, 0)
        model.zero_grad()
    return log.result(dict(model.named_parameters()))


def ddp(log: MessageLog, network: Network, redundancy: bool = False) -> RankResult:
    """torch's DistributedDataParallel: buckets of gradients are averaged while the backward pass goes on.

    The communication hook does what DDP does without one (divide, then all-reduce) and writes down the buckets.
    ``redundancy``: torch's ZeroRedundancyOptimizer gives every rank the states of some whole tensors.
    """
    model = network.model()
    names = {id(p): name for name, p in model.named_parameters()}
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    buckets: list[list[str]] = []

    def hook(bucket: Any) -> torch.futures.Future[Tensor]:
        buckets.append([names[id(p)] for p in bucket.parameters()])
        log.count("all-reduce", bucket.buffer())
        work = dist.all_reduce(bucket.buffer().div_(log.ranks), async_op=True)
        done: torch.futures.Future[Tensor] = work.get_future().then(lambda future: future.value()[0])
        return done

    wrapped.register_comm_hook(None, lambda state, bucket: hook(bucket))  # torch takes no annotation that is text
    weights = list(model.parameters())
    if redundancy:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer: Any = ZeroRedundancyOptimizer(weights, torch.optim.AdamW, lr=log.setting.lr, foreach=False)
    else:
        optimizer = adamw(weights, log.setting.lr)
    for batch in network.batches():
        log.losses.append(network.backward(wrapped, log, batch))
        log.step(weights, optimizer)
    log.notes["buckets"] = buckets
    return log.result(dict(model.named_parameters()))


def zero_redundancy(log: MessageLog, network: Network) -> RankResult:
    """DDP with torch's ZeroRedundancyOptimizer."""
    return ddp(log, network, redundancy=True)


def fully_shard(log: MessageLog, network: Network) -> RankResult:
    """torch's ``fully_shard``: every tensor divided by rows, gathered layer by layer where it is used.

    Gradients are divided by the number of ranks after they are added; DDP, and the others here, divide before.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard as shard

    mesh = init_device_mesh(log.device.type, (log.ranks,))
    model = network.model()
    for layer in model:
        if isinstance(layer, nn.Linear):
            shard(layer, mesh=mesh)
    shard(model, mesh=mesh)
    weights = list(model.parameters())
    optimizer = adamw(weights, log.setting.lr)
    for batch in network.batches():
        with LoggedCollectives(log):
            log.losses.append(network.backward(model, log, batch))
        log.step(weights, optimizer)
    whole: Any = {name: p.full_tensor() for name, p in model.named_parameters()}  # type: ignore[attr-defined]
    return log.result(whole)

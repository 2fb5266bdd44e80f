"""Three steps of models of transformers, timm and torchvision with FSDP2: as :mod:`ranks` starts them.

Rank 0 writes, for each family whose library is there, what it has and what one process computes that takes the ranks'
parts one after the other.
"""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
from distributed_steps import BATCH, STEPS, in_shards
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from fplab.nn import emulate

Loss = Callable[[nn.Module, slice], torch.Tensor]
RANKS, CLASSES, WORDS = 2, 10, 96
SMALL: dict[str, Any] = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
                         "intermediate_size": 64, "max_position_embeddings": 32}  # fmt: skip


def _texts(name: str, config: str, **settings: Any) -> nn.Module:
    import transformers

    return getattr(transformers, name)(getattr(transformers, config)(**settings))


def gpt2() -> nn.Module:
    return _texts("GPT2LMHeadModel", "GPT2Config", vocab_size=WORDS, n_embd=32, n_layer=2, n_head=2, n_positions=32,
                  resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)  # fmt: skip


def llama() -> nn.Module:
    return _texts("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=1, **SMALL)


def bert() -> nn.Module:
    return _texts("BertForMaskedLM", "BertConfig", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **SMALL)


def vit() -> nn.Module:
    import timm

    return timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, embed_dim=48, num_heads=2,
                             num_classes=CLASSES)  # fmt: skip


def resnet() -> nn.Module:
    import torchvision

    return torchvision.models.resnet18(num_classes=CLASSES)


FAMILIES = {"gpt2": (gpt2, "transformers"), "llama": (llama, "transformers"), "bert": (bert, "transformers"),
            "vit": (vit, "timm"), "resnet": (resnet, "torchvision")}  # fmt: skip


def batches(name: str) -> Iterator[Any]:
    """Of every step the loss of some rows of its batch, as a function of the network."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        if FAMILIES[name][1] == "transformers":
            ids = torch.randint(WORDS, (BATCH, 12), generator=generator)
            yield lambda net, rows, ids=ids: net(input_ids=ids[rows], labels=ids[rows]).loss
        else:
            x = torch.randn(BATCH, 3, 32, 32, generator=generator)
            y = torch.randint(CLASSES, (BATCH,), generator=generator)
            yield lambda net, rows, x=x, y=y: nn.functional.cross_entropy(net(x[rows]), y[rows])


def passed(net: nn.Module, loss_of: Loss, rank: int) -> torch.Tensor:
    with emulate("H100"):
        loss = loss_of(net, slice(rank * BATCH // RANKS, (rank + 1) * BATCH // RANKS))
        loss.backward()
    return loss.detach()


def train(name: str, rank: int | None) -> dict[str, Any]:
    """As a rank of FSDP2, or, None, in one process."""
    torch.manual_seed(0)
    net, losses = FAMILIES[name][0]().train(), []
    if rank is not None:
        fully_shard(net, mesh=init_device_mesh("cpu", (RANKS,)))
    optimizer = torch.optim.SGD(net.parameters(), 0.125)
    for loss_of in batches(name):
        if rank is not None:
            losses.append(passed(net, loss_of, rank))
        else:
            each = []
            for one in range(RANKS):
                losses.append(passed(net, loss_of, one))
                each.append([p.grad / RANKS for p in net.parameters()])
                net.zero_grad()
            for p, gradient in zip(net.parameters(), in_shards(each), strict=True):
                p.grad = gradient
        optimizer.step()
        optimizer.zero_grad()
    weights = [(p.full_tensor() if isinstance(p, DTensor) else p).detach().clone() for p in net.parameters()]
    return {"losses": torch.stack(losses if rank is not None else losses[::RANKS]), "weights": weights}


def main() -> dict[str, Any]:
    """What every family has whose library is there, by this rank and, for rank 0, by one process."""
    found = {}
    for name, (_, library) in FAMILIES.items():
        if find_spec(library):
            got = train(name, dist.get_rank())
            found[name] = (got, train(name, None)) if dist.get_rank() == 0 else ()
    return found

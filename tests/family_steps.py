"""Three steps of models of transformers, timm and torchvision with FSDP2: as :mod:`ranks` starts them.

Rank 0 writes, for each family, what it has and what one process computes that takes the ranks' parts one after the
other. Models are small, made of their configurations.
"""

import importlib
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
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
NAMELESS = torch.library.Library("torchvision", "FRAGMENT")


@cache
def library(name: str) -> Any:
    """A library; torchvision first, which others import, also where its operators cannot be loaded.

    They cannot beside a build of torch without CUDA where its own has it. No model here needs them, but its import
    wants their names.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs, and those of the libraries that they try
        while True:
            try:
                importlib.import_module("torchvision")
                return importlib.import_module(name)
            except RuntimeError as error:
                missing = re.search(r"operator torchvision::(\w+) does not exist", str(error))
                if missing is None:
                    raise
                NAMELESS.define(f"{missing[1]}(Tensor x) -> Tensor")


def _texts(name: str, config: str, **settings: Any) -> nn.Module:
    transformers = library("transformers")
    made: nn.Module = getattr(transformers, name)(getattr(transformers, config)(**settings))
    return made


def gpt2(**settings: Any) -> nn.Module:
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    sizes = SMALL | {"bos_token_id": 0, "eos_token_id": 0} | settings
    return _texts("GPT2LMHeadModel", "GPT2Config", **no_dropout, **sizes, n_inner=sizes.pop("intermediate_size"))


def llama(**settings: Any) -> nn.Module:
    return _texts("LlamaForCausalLM", "LlamaConfig", **SMALL | {"num_key_value_heads": 1} | settings)


def bert(**settings: Any) -> nn.Module:
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return _texts("BertForMaskedLM", "BertConfig", **no_dropout, **SMALL | settings)


def mixture(**settings: Any) -> nn.Module:
    return _texts(
        "MixtralForCausalLM", "MixtralConfig", **SMALL | {"num_key_value_heads": 1, "num_local_experts": 4} | settings
    )


def vit(**settings: Any) -> nn.Module:
    sizes = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 48, "num_heads": 2, "num_classes": CLASSES}
    made: nn.Module = library("timm").create_model("vit_tiny_patch16_224", **sizes | settings)
    return made


def with_lora(net: nn.Module, layers: list[str], rank: int = 4) -> nn.Module:
    """peft's LoRA on some layers of a model, and all else frozen."""
    peft = library("peft")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tied layers, transposed weights, and what it asks a model for
        made: nn.Module = peft.get_peft_model(net, peft.LoraConfig(r=rank, target_modules=layers))
    return made


def adapted() -> nn.Module:
    return with_lora(gpt2(), ["c_attn", "c_fc"])


def resnet(layers: Sequence[int] = (1, 1, 1, 1), bottleneck: bool = False) -> nn.Module:
    models = library("torchvision").models.resnet
    made: nn.Module = models.ResNet(models.Bottleneck if bottleneck else models.BasicBlock, layers, CLASSES)
    return made


TEXTS = {"gpt2": gpt2, "llama": llama, "bert": bert, "mixture": mixture, "adapted": adapted}
FAMILIES: dict[str, Callable[..., nn.Module]] = {**TEXTS, "vit": vit, "resnet": resnet}
TRAINED = tuple(name for name in FAMILIES if name != "mixture")


def batches(name: str) -> Iterator[Any]:
    """Of every step the loss of some rows of its batch, as a function of the network."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        if name in TEXTS:
            ids = torch.randint(WORDS, (BATCH, 12), generator=generator)
            yield lambda net, rows, ids=ids: net(input_ids=ids[rows], labels=ids[rows]).loss
        else:
            x = torch.randn(BATCH, 3, 32, 32, generator=generator)
            y = torch.randint(CLASSES, (BATCH,), generator=generator)
            yield lambda net, rows, x=x, y=y: nn.functional.cross_entropy(net(x[rows]), y[rows])


def passed(net: nn.Module, loss_of: Loss, rank: int) -> torch.Tensor:
    with emulate("H100", "fp16"):
        loss = loss_of(net, slice(rank * BATCH // RANKS, (rank + 1) * BATCH // RANKS))
        loss.backward()
    return loss.detach()


def train(name: str, rank: int | None) -> dict[str, Any]:
    """As a rank of FSDP2, or, None, in one process."""
    torch.manual_seed(0)
    net, losses = FAMILIES[name]().train(), []
    if rank is not None:
        fully_shard(net, mesh=init_device_mesh("cpu", (RANKS,)))
    trained = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, 0.125)
    for loss_of in batches(name):
        if rank is not None:
            losses.append(passed(net, loss_of, rank))
        else:
            each = []
            for one in range(RANKS):
                losses.append(passed(net, loss_of, one))
                each.append([p.grad / RANKS for p in trained])
                net.zero_grad()
            for p, gradient in zip(trained, in_shards(each), strict=True):
                p.grad = gradient
        optimizer.step()
        optimizer.zero_grad()
    weights = [(p.full_tensor() if isinstance(p, DTensor) else p).detach().clone() for p in net.parameters()]
    return {"losses": torch.stack(losses if rank is not None else losses[::RANKS]), "weights": weights}


def main(what: str, *arguments: Any) -> dict[str, Any]:
    """What every family has by this rank and, for rank 0, by one process; or how two counts of products agree."""
    if what == "counts":
        import drawn_models

        return drawn_models.on_a_rank(*arguments)
    found = {}
    for name in TRAINED:
        got = train(name, dist.get_rank())
        found[name] = (got, train(name, None)) if dist.get_rank() == 0 else ()
    return found


def beforehand() -> None:
    """All libraries are imported, in the process that forks the ranks."""
    for name in ("transformers", "timm", "peft"):
        library(name)

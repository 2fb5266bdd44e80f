"""A step of a model under ``fplab.nn.shadow``, beside the same without it and the same in FP64."""

import copy
from typing import Any

import torch
from torch import nn

from fplab.nn import shadow


def followed(net: nn.Module, wide: nn.Module, x: torch.Tensor, gradients: bool = True) -> Any:
    """The report of a step that keeps its bits, and whose companions are ``wide``'s loss and, unless not, gradients."""
    plain = copy.deepcopy(net)
    with shadow() as s:
        loss = net(x).square().mean()
        loss.backward()
    other, exact = plain(x).square().mean(), wide(x.double()).square().mean()
    other.backward(), exact.backward()
    assert torch.equal(loss, other)
    assert torch.equal(s.exact(loss), exact.detach())
    for p, q, r in zip(*(model.parameters() for model in (net, plain, wide)), strict=True):
        assert (p.grad is None) == (q.grad is None)
        assert not gradients or (p.grad is None) == (r.grad is None)
        if p.grad is not None:
            assert torch.equal(p.grad, q.grad)
            assert not gradients or torch.equal(s.exact(p.grad), r.grad)
    return s.report()

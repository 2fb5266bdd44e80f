"""What all strategies train: a small perceptron that reads digits, from the same weights, on the same batches."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ..training.tasks import Batch, Task, perceptron
from .message_log import MessageLog
from .settings import HIDDEN, WIDTH, Setting

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Network:
    """The network and the data of a setting, on a device."""

    setting: Setting
    device: torch.device = CPU

    @property
    def task(self) -> Task:
        """The digits, ``setting.batch`` of them in a step."""
        return perceptron(width=WIDTH, hidden=HIDDEN, batch=self.setting.batch)

    def model(self) -> nn.Sequential:
        """The network with its first weights: Linear at 0, 2, 4 and 6, ReLU between."""
        model = self.task.model(self.setting.seed)
        assert isinstance(model, nn.Sequential)
        return model.to(self.device)

    def batches(self) -> Iterator[Batch]:
        """The whole batch of every step."""
        for batch in self.task.batches(self.setting.seed, self.setting.steps):
            yield Batch(batch.inputs.to(self.device), batch.targets.to(self.device))

    def backward(self, model: nn.Module, log: MessageLog, batch: Batch) -> float:
        """Forward and backward pass over this rank's share of a batch; the share's mean loss."""
        loss = cross_entropy(model(log.part(batch.inputs)), log.part(batch.targets))
        loss.backward()
        return float(loss.detach())

"""Training real networks on real data, so that claims about precision rest on numbers that occurred.

``digits`` needs numpy alone; what needs torch is imported when it is asked for.
"""

from typing import TYPE_CHECKING

from ..lazily import index

if TYPE_CHECKING:
    from .data import Digits, digits
    from .eight_bit import Adagrad8bit, Adam8bit, AdamW8bit, Lion8bit, SGD8bit, StableEmbedding
    from .loop import Momentum, OutputGradients, Recipe, Run, Snapshot, batches, train
    from .network import accuracy, digits_net, layers, tensors
    from .nonfinite import StoppedError
    from .optimizers import SGD, Adam, AdamW
    from .policies import Policy
    from .runs import Fit, fit
    from .scalers import AmaxScaling, ApexScaler, DynamicScaler, KerasScaler, StaticScaler
    from .tasks import CHARACTERS, DIGITS, DIGITS_MLP, Task, characters

__all__ = [
    "CHARACTERS", "DIGITS", "DIGITS_MLP", "SGD", "Adagrad8bit", "Adam", "Adam8bit", "AdamW", "AdamW8bit", "AmaxScaling",
    "ApexScaler", "Digits", "DynamicScaler", "Fit", "KerasScaler", "Lion8bit", "Momentum", "OutputGradients", "Policy",
    "Recipe", "Run", "SGD8bit", "Snapshot", "StableEmbedding", "StaticScaler", "StoppedError", "Task", "accuracy",
    "batches", "characters", "digits", "digits_net", "fit", "layers", "tensors", "train",
]  # fmt: skip

index(__name__)

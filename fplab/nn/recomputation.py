"""What ``torch.utils.checkpoint`` computes again in the backward pass, computed in the contexts of the forward pass.

Checkpointing calls a function twice, the second time from ``backward()``, when the ``with`` block around the forward
pass has usually ended. torch restores its own autocast and random state then and knows of no other. A module that
has a state of its own registers it here with :func:`carry`.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NamedTuple

import torch.utils.checkpoint as checkpointing

from ..errors import LabError

Entering = Callable[[], AbstractContextManager[Any]]


class Carried(NamedTuple):
    """One state: ``within`` is entered around the function, both times; ``without`` while torch notes its own state."""

    within: Entering
    without: Entering


_captures: list[Callable[[], Carried | None]] = []


def carry(capture: Callable[[], Carried | None]) -> None:
    """From now on, let every checkpoint ask ``capture()``, at its forward pass, for a state to enter again (or None).

    Raises :class:`LabError` where torch's checkpointing is not of the shape that this module knows.
    """
    if not _captures:
        _install()
    if capture not in _captures:
        _captures.append(capture)


def _captured() -> list[Carried]:
    return [state for capture in _captures if (state := capture()) is not None]


def _entering(function: Callable[..., Any], states: list[Carried]) -> Callable[..., Any]:
    """The function inside its states."""

    @functools.wraps(function, updated=())
    def entered(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for state in states:
                stack.enter_context(state.within())
            return function(*args, **kwargs)

    return entered


def _without(states: list[Carried]) -> ExitStack:
    """Outside of all states, so that torch does not note what of them it can see: it would restore a part of them."""
    stack = ExitStack()
    for state in reversed(states):
        stack.enter_context(state.without())
    return stack


def _install() -> None:
    """Put the two ways of checkpointing, with and without reentrant autograd, behind :func:`_captured`."""
    name = "_checkpoint_without_reentrant_generator"
    if hasattr(checkpointing, f"{name}_impl"):  # from torch 2.15 on; the other calls it
        name += "_impl"
    try:
        generator = getattr(checkpointing, name)
        reentrant = checkpointing.CheckpointFunction
    except AttributeError as error:
        raise LabError(
            f"this torch checkpoints in another way than 2.10 to 2.15 ({error}); the lab needs one of these."
        ) from None

    @functools.wraps(generator)
    def without_reentrant(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[None]:
        states = _captured()
        steps = generator(_entering(function, states) if states else function, *args, **kwargs)
        with _without(states):
            next(steps)  # notes the state; the forward pass follows, and then the rest of the generator
        try:
            yield
        except BaseException as error:
            steps.throw(error)
        yield from steps

    class Reentrant(reentrant):  # type: ignore[misc, valid-type]
        """torch's function; the forward pass itself runs in ``apply``, inside the states that the function enters."""

        @classmethod
        def apply(cls, function: Callable[..., Any], *args: Any) -> Any:
            states = _captured()
            with _without(states):
                return reentrant.apply(_entering(function, states) if states else function, *args)

    # What checkpoint() itself looks up, so that it does not matter from where a caller has imported checkpoint.
    vars(checkpointing).update({name: without_reentrant, "CheckpointFunction": Reentrant})

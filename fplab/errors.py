"""The one error class of the lab, and the wording every message shares.

A message quotes the call the user wrote, says what is allowed, and suggests the nearest name. Inner functions
raise :class:`LabError` with the rule that was broken; the outermost public function, decorated with
:func:`quotes_call`, adds the call.

What no rule was written for fails somewhere inside, in words that no user can act on. Public functions and records are
doors (:func:`door`, and :func:`quotes_call` too): there such an error becomes a LabError that names the first argument
which is not of the annotated type. Where all arguments are, the error is the lab's own fault, and stays as it is.
"""

import builtins
import contextlib
import difflib
import functools
import importlib.util
import inspect
import numbers
import operator
import re
import sys
import traceback
import types
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sized
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from . import float_environment
from .columns import harmless
from .float_environment import LEAST, ONE, SOME
from .words import Message, say
from .words.patterns import refused

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
D = TypeVar("D", bound=Callable[..., Any])


LONG = 60  # characters of a value that a message quotes
MOST = 2_000  # characters of a message, of which the middle is left out where it has more


class LabError(ValueError):
    """A request that the lab cannot honour; the text says what is allowed.

    ``is_misuse``: whether the call is at fault and is therefore quoted, and not what a run met on its way.
    """

    call: str | None = None
    is_misuse = True

    def __init__(self, *args: object) -> None:
        super().__init__(*map(refused, args))

    def __str__(self) -> str:
        text = super().__str__()
        text = text if len(text) <= MOST else f"{text[: MOST - 600]} ... {text[-500:]}"
        return harmless(text)  # it may quote a stranger's file


# What an extra of the package installs, by the name under which it is imported.
EXTRAS = {
    **dict.fromkeys(("jinja2", "matplotlib", "ml_dtypes", "scipy", "torch", "xarray"), "torch"),
    **dict.fromkeys(("cloudpickle", "hypothesis", "IPython", "ipywidgets", "jupyterlab"), "lab"),
    **dict.fromkeys(("furo", "myst_nb", "nbclient", "nbformat", "psutil", "sphinx"), "lab"),
    **dict.fromkeys(("babel",), "test"),
}


class MissingPartError(LabError, ImportError):
    """A part of the lab needs a library that only an extra installs; ``name``: the library's."""

    is_misuse = False


def missing(name: str | None) -> MissingPartError | None:
    """What to say where a library cannot be found; None for one that no extra installs.

    >>> str(missing("torch"))
    'torch is not installed, which this needs: pip install "fplab[torch]", or pip install torch alone.'
    """
    if name not in EXTRAS:
        return None
    rule = say("{name} is not installed, which this needs: {extra}, or pip install {name} alone.", name=name)
    error = MissingPartError(rule.fill(extra=f'pip install "fplab[{EXTRAS[name]}]"'))
    error.name = name
    return error


def demand(*names: str) -> None:
    """Raise :class:`MissingPartError` for the first library of an extra that is not there; none is imported."""
    for name in names:
        if importlib.util.find_spec(name) is None and (error := missing(name)):
            raise error


def need(name: str) -> Any:
    """A library that an extra installs; :class:`MissingPartError` where it is not there."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise missing(error.name) or error from None


def reason(error: Exception) -> str:
    """What another error says, as part of a sentence: its first line."""
    text = str(error) if isinstance(error, LabError) else f"{type(error).__name__}: {error}"
    return text.partition("\n")[0].rstrip(" .:")


def unknown(
    kind: str, given: object, allowed: Iterable[str], aliases: Iterable[str] = (), called: str | None = None
) -> LabError:
    """The error for a name that is not in a table, with the nearest name that is; ``aliases`` are names too.

    ``called``: the name of what was given, where that is no string.
    """
    names = list(allowed)
    rule = say("unknown {kind} {given}. Allowed: {allowed}.", kind=Message(kind), given=_cited(given))
    text = str(rule.fill(allowed=", ".join(names)))
    known = {name.lower(): name for name in [*aliases, *names]}
    name = given if isinstance(given, str) else called
    return LabError(text if name is None else text + did_you_mean(name.lower(), known))


def one_of(kind: str, given: T, allowed: Collection[str]) -> T:
    """What was given, if it is one of the names that are allowed; else the error of :func:`unknown`."""
    if given not in allowed:
        raise unknown(kind, given, allowed)
    return given


def did_you_mean(given: str, known: Mapping[str, str]) -> str:
    """The question that ends a message, after what is nearest: ``known`` has names as they are compared and as said.

    >>> did_you_mean("gpu", {"gpus": "--gpus", "zero": "--zero"}), did_you_mean("x", {"gpus": "--gpus"})
    (" Did you mean '--gpus'?", '')
    """
    near = str(say(" or ")).join(repr(known[name]) for name in _nearest(given, list(known)))
    return near and str(say(" Did you mean {names}?", names=near))


def chosen(kind: str, given: object, table: Mapping[str, T], record: type[T]) -> T:
    """The record of a name in a table, without regard to case; a record is given back."""
    return given if isinstance(given, record) else table[name_of(kind, given, table)]


def name_of(kind: str, given: object, allowed: Iterable[str]) -> str:
    """One of the names that are allowed, as it is spelt there, from what was given without regard to case."""
    names = {name.lower(): name for name in allowed}
    if not isinstance(given, str) or given.lower() not in names:
        raise unknown(kind, given, names.values())
    return names[given.lower()]


def _nearest(given: str, known: list[str]) -> list[str]:
    """The names of a family ("fp8_e4m3", "fp8_e5m2" for "fp8"), or the nearest name whose number is not another one.

    >>> _nearest("fp8", ["fp4", "fp64", "fp8_e4m3", "fp8_e5m2"]), _nearest("4090", ["v100"]), _nearest("fp61", ["fp16"])
    (['fp8_e4m3', 'fp8_e5m2'], [], ['fp16'])
    >>> _nearest("fp12", ["fp32", "fp16"])
    ['fp16']
    """
    if len(given) > LONG:  # no name with a slip, and long to compare
        return []
    if given[-1:].isdigit() and (family := [name for name in known if name.startswith(f"{given}_")]):
        return family
    alike = [name for name in known if _numbers_alike(given, name)]
    near = difflib.get_close_matches(given, alike, n=9, cutoff=0.51)
    numbers = {name: [int(digits) for digits in re.findall(r"\d{1,9}", name)] for name in (given, *near)}

    def distance(name: str) -> tuple[float, int]:
        apart = (abs(a - b) for a, b in zip(numbers[given], numbers[name], strict=False))
        return -difflib.SequenceMatcher(None, name, given).ratio(), sum(apart)

    return sorted(near, key=distance)[:1]


def _numbers_alike(given: str, name: str) -> bool:
    """Whether a number of a name could be one of those given with a slip: half of its digits, zeros aside, agree."""
    numbers = re.findall(r"\d+", given)
    for number in numbers:
        for other in re.findall(r"\d+", name):
            digits = [Counter(text.replace("0", "")) for text in (number, other)]
            most = max(map(Counter.total, digits))
            if abs(len(number) - len(other)) <= 1 and 2 * (digits[0] & digits[1]).total() >= most:
                return True
    return not numbers


def summary(value: object) -> str:
    """How an argument is quoted in a message: scalars as written, arrays as ``float32[3, 4]``, functions by name."""
    shape, dtype = _shape_of(value), getattr(value, "dtype", None)
    if isinstance(value, type | types.FunctionType):
        return value.__name__
    if isinstance(shape, tuple) and shape and dtype is not None:
        return f"{str(dtype).removeprefix('torch.')}[{', '.join(map(str, shape))}]"
    name = getattr(value, "name", None)
    text = quoted(name if isinstance(name, str) else value)
    if "\n" in text:  # a torch module's, for one
        return f"<{type(value).__name__}>"
    return text if len(text) <= LONG else text[: LONG - 3] + "..."


def _shape_of(value: object) -> object:
    try:
        return getattr(value, "shape", None)
    except Exception:  # a nested tensor has none, and says so in its own way
        return None


def abbreviated(text: str, values: Iterable[object]) -> str:
    """A text in which long values that it quotes as Python writes them are quoted as :func:`summary` does.

    >>> abbreviated(f"lr={[1.0] * 99} is not a number.", [[1.0] * 99])
    'lr=[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1... is not a number.'
    """
    for value in values if len(text) > LONG else ():
        with contextlib.suppress(Exception):  # objects whose own code fails
            if len(whole := repr(value)) > LONG or "..." in whole or "\n" in whole:
                text = text.replace(whole, summary(value))
    return text


def quoted(value: object) -> str:
    """An argument as it is written, cut where it is long: a message is to be read."""
    try:
        text = repr(value)
    except Exception:  # integers of more than 4,300 digits, and objects whose own code fails
        return f"<{type(value).__name__}>"
    return text if len(text) <= 400 else text[:397] + "..."


def _cited(given: object) -> str:
    """What was given where a name was asked for: a name or a class at length, all else in short."""
    return quoted(given) if isinstance(given, str | type) else summary(given)


def _public(module: str, name: str) -> str:
    """The outermost package that lists a name; else the module's own package if it has it, or the module."""
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        path = ".".join(parts[:length])
        package = sys.modules.get(path)
        if name in getattr(package, "__all__", ()) and getattr(getattr(package, name), "__module__", "") == module:
            return path
    above = module.rpartition(".")[0]
    return above if above in sys.modules and hasattr(sys.modules[above], name) else module


def warn(text: str) -> None:
    """Warn at the user's own line, the first outside this package and torch."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in (__package__, "torch"))
    inside = tuple(str(Path(file).parent) for file in files if file)
    frames = [frame for frame, _ in traceback.walk_stack(sys._getframe(1))]
    level = next((i for i, f in enumerate(frames) if not f.f_code.co_filename.startswith(inside)), 0)
    warnings.warn(refused(text), stacklevel=level + 2)


def quotes_call(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function so that a :class:`LabError` from inside begins with the user's own call."""
    *owner, name = function.__qualname__.rpartition("<locals>.")[2].split(".")

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if LEAST + LEAST == 0 or ONE + SOME == ONE or -ONE - SOME == -ONE:  # as is_default, without a call
            with default_environment():
                return wrapper(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        except Exception as raised:
            error = _refusal(function, args, kwargs, raised)
            if error is None or (error is raised and not error.is_misuse):
                raise
            if not error.is_misuse:
                raise error from raised
            path, module = [*owner, name], function.__module__
            if owner and owner[-1] in (c.__name__ for c in type(args[0]).__mro__):  # the class may be a subclass
                path, module = [type(args[0]).__name__, name], type(args[0]).__module__
            path = path[:-1] if name == "__init__" else path
            parts = [summary(a) for a in args[len(owner) :]] + [f"{k}={summary(v)}" for k, v in kwargs.items()]
            call = f"{_public(module, path[0])}.{'.'.join(path)}({', '.join(parts)})"
            rule = str(error).removeprefix(f"{error.call}: ")  # a public function called on the way quoted its own call
            error.args, error.call = (f"{call}: {rule}",), call  # the same error, with whatever else it carries
            raise error from None

    return wrapper


@contextlib.contextmanager
def default_environment() -> Iterator[None]:
    """Compute as IEEE 754 does by default, whatever this thread was told; refuse where that cannot be changed."""
    with float_environment.default():
        if not float_environment.is_default():
            raise LabError(
                "this thread flushes subnormals or rounds otherwise than to nearest, which the lab cannot change here; "
                "torch.set_flush_denormal(False) does where torch did it."
            )
        yield


def quotes_class(cls: type[T]) -> type[T]:
    """Decorate a class so that its constructor quotes the call; for subclasses, call it in ``__init_subclass__``."""
    if "__init__" in vars(cls):
        cls.__init__ = quotes_call(door(cls).__init__)  # type: ignore[method-assign]
    return cls


def door(public: D) -> D:
    """Decorate a public function or class: an error inside that an argument of another type caused names the argument.

    A class refuses such arguments at once, also where nothing would have failed before it is used.
    """
    function = vars(public)["__init__"] if isinstance(public, type) else public

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            refusal = _refusal(function, args, kwargs, error)
            if refusal is None or refusal is error:
                raise
            raise refusal from error
        if function is not public and (refusal := misfit(function, args, kwargs)) is not None:
            raise refusal
        return result

    if function is public:
        return wrapper  # type: ignore[return-value]
    setattr(public, "__init__", wrapper)  # noqa: B010  # which type checkers forbid
    return public


def _too_large(error: Exception) -> LabError | None:
    """The refusal of what memory does not hold, in numpy's or torch's own figures; None for other errors."""
    if not isinstance(error, MemoryError) and "can't allocate memory" not in str(error):
        return None
    asked = re.search(r"(?:tried to|Unable to) allocate ([\d.]+ \w+)", str(error))
    size = asked[1] if asked else say("that size")
    return LabError(say("there is not enough memory for an array of {size}.", size=size))


def _refusal(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception
) -> LabError | None:
    """What whoever called a function is told of an error inside: itself, its texts short; what is missing; the argument
    of another type. None: nothing but the error."""
    if isinstance(error, LabError):
        given = (*args, *kwargs.values())
        error.args = tuple(abbreviated(text, given) if isinstance(text, str) else text for text in error.args)
        return error
    lacks = missing(error.name) if isinstance(error, ModuleNotFoundError) else None
    return lacks or misfit(function, args, kwargs) or _too_large(error)


def misfit(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> LabError | None:
    """The refusal of the first argument that is not of its annotated type; None where all are, or none is bound."""
    signature, kinds = _annotated(function)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return None
    return _of_another_type(given, kinds)


def demand_types(record: object, *but: str) -> None:
    """Raise the refusal of a record's first field that is not of its annotated type; ``but``: what is still read."""
    _, kinds = _annotated(type(record).__init__)
    if refusal := _of_another_type({name: getattr(record, name) for name in kinds if name not in but}, kinds):
        raise refusal


def _of_another_type(given: Mapping[str, Any], kinds: Mapping[str, Any]) -> LabError | None:
    for name, value in given.items():
        if name in kinds and not fits(value, kinds[name]):
            rule = say("{name}={value} is not possible; allowed: {allowed}.", name=name, value=summary(value))
            return LabError(rule.fill(allowed=words(kinds[name])))
    return None


@functools.cache
def _annotated(function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    """A function's signature, and the types of its parameters."""
    signature = inspect.signature(function)
    space = sys.modules[function.__module__].__dict__
    names = _Names(space | vars(builtins))
    kinds: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        written = parameter.annotation
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) and written is not parameter.empty:
            try:
                kinds[name] = eval(written, {}, names) if isinstance(written, str) else written
            except (AttributeError, TypeError):
                kinds[name] = Unknown
    return signature, kinds


class Unknown:
    """A type that is imported for type checkers alone."""


class _Names(dict[str, Any]):
    def __missing__(self, name: str) -> type[Unknown]:
        return Unknown


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of an annotated type, as users mean it: NumPy's numbers, lists for tuples, no True for 1."""
    if type(value) is kind and kind is not Fraction:  # most of what is asked: no search for what the type is made of
        return True
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in inside)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in inside)
    if kind in (None, types.NoneType):
        return value is None
    if kind is bool:
        return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")  # NumPy's
    if kind in (int, float, Fraction):
        return _is_number(value, kind)
    if origin is tuple:
        each = inside[:1] * len(value) if isinstance(value, list | tuple) and inside[-1:] == (...,) else inside
        return isinstance(value, list | tuple) and len(value) == len(each) and all(map(fits, value, each))
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, Mapping)
    if origin is Callable or kind is Callable:
        return callable(value)
    if origin is not None and issubclass(origin, Iterable) and not hasattr(origin, "__array__"):
        return (hasattr(value, "__len__") or not issubclass(origin, Sized)) and _is_iterable(value, inside[0])
    if origin is not None and hasattr(origin, "__array__"):
        return _is_array(value)
    if origin is type:
        return isinstance(value, type)
    if not isinstance(kind, type) or kind in (Unknown, object, Any):
        return True
    if getattr(kind, "_is_protocol", False) and not getattr(kind, "_is_runtime_protocol", False):
        return True
    return isinstance(value, kind)


def _is_number(value: Any, kind: Any) -> bool:
    try:
        operator.index(value) if kind is int else float(value)
    except Exception:
        return False
    real = numbers.Rational if kind is Fraction else numbers.Real
    alone = (
        kind is float and hasattr(value, "requires_grad") and value.ndim == 0
    )  # a tensor, as torch's optimizers take
    return not isinstance(value, bool) and (kind is int or alone or isinstance(value, real))


def _is_iterable(value: Any, each: Any) -> bool:
    try:
        values = iter(value)
    except Exception:
        return False
    if not hasattr(value, "__len__"):  # it would be used up
        return True
    kind = getattr(value, "dtype", "object")
    alike = isinstance(value, range) or str(kind) != "object"  # such a value may have 10**12 elements
    return all(fits(item, each) for item in islice(values, 1 if alike else None))


def _is_array(value: Any) -> bool:
    kind = getattr(getattr(value, "dtype", None), "kind", "f")
    return kind in "biuf" and (hasattr(value, "__array__") or isinstance(value, list | tuple | numbers.Real))


NAMES = {bool: say("True or False"), int: say("an integer"), float: say("a number"), str: say("a string")}


def words(kind: Any) -> str:
    """A type in words."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return str(say(" or ")).join(dict.fromkeys(map(words, inside)))
    if origin is Literal:
        return ", ".join(map(repr, inside))
    if origin is tuple and inside[-1:] != (...,):
        return f"({', '.join(map(words, inside))})"
    if origin is Callable or kind is Callable:
        return str(say("a function"))
    if origin is type or getattr(kind, "__name__", "") == "Dtype":
        return str(say("a dtype"))
    if origin is not None and hasattr(origin, "__array__"):
        return str(say("an array of numbers"))
    if origin is not None:
        is_mapping = issubclass(origin, Mapping)
        return str(say("a mapping") if is_mapping else say("a sequence, each {kind}", kind=words(inside[0])))
    if kind in (None, types.NoneType):
        return "None"
    return str(NAMES.get(kind) or say("a {kind}", kind=getattr(kind, "__name__", "value")))


def integer(name: str, value: Any, low: int, high: int, why: str = "") -> int:
    """``value`` as an int between ``low`` and ``high``, or an error that names the field.

    Whoever asks goes on with what comes back: numpy's small integers overflow in silence where Python's do not.
    """
    if not fits(value, int):
        rule = say("{name}={value} is not an integer; allowed: {low} to {high}.", name=name, value=summary(value))
        raise LabError(rule.fill(low=low, high=high))
    number = operator.index(value)
    if not low <= number <= high:
        rule = say("{name}={value} is not possible; allowed: {low} to {high}{why}.", name=name, value=summary(number))
        raise LabError(rule.fill(low=low, high=high, why=refused(why)))
    return number


def own_integers(record: object, **bounds: tuple[int, int]) -> None:
    """:func:`own_integer` for several fields: the least and the largest value of each."""
    for name, (low, high) in bounds.items():
        own_integer(record, name, low, high)


def own_integer(record: object, name: str, low: int, high: int, why: str = "") -> None:
    """Make a frozen record's field the plain integer that it stands for (numpy's, say), or raise the rule."""
    object.__setattr__(record, name, integer(name, getattr(record, name), low, high, why))


# --- what a script shows ------------------------------------------------------------------------------------------
def _shown(before: Callable[..., Any]) -> Callable[..., Any]:
    """What shows an error that ends a program: of a refusal the caller's own lines and the sentence."""

    def show(kind: type[BaseException], error: BaseException, inside: Any) -> None:
        if isinstance(error, LabError):
            error.__traceback__ = inside = callers_lines(inside)
        before(kind, error, inside)

    return show


def callers_lines(inside: Any) -> Any:
    """A traceback without the frames below the call into this package; None where it begins here."""
    frames = []
    while inside is not None and not inside.tb_frame.f_code.co_filename.startswith(HOME):
        frames.append(inside)
        inside = inside.tb_next
    below = None
    for frame in reversed(frames):
        below = types.TracebackType(below, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return below


HOME = str(Path(__file__).parent)
sys.excepthook = _shown(sys.excepthook)

"""``@frozen`` and ``@value``: slotted classes that are cheap to define and to make.

To a type checker both are frozen dataclasses. `dataclasses` itself compiles six methods for each
class, which is most of what importing semel would cost, and its frozen instances take long to make.

What users get is ``@frozen``: nobody can change it. What is made several times in every request and
seen by nobody else (operations, replies, records) is a ``@value``: the type checkers see to it that
nobody changes one, and making it takes a third of the time.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeVar, dataclass_transform

T = TypeVar("T")

_DERIVED: Final[Any] = object()


def derived(*, init: Literal[False] = False) -> Any:
    """A field that ``__post_init__`` sets: no argument, and no part of equality or of the print."""
    return _DERIVED


@dataclass_transform(frozen_default=True, field_specifiers=(derived,))
def frozen(cls: type[T]) -> type[T]:
    """Turn annotated fields into slots with an ``__init__``; equality is by type and fields.

    Fields are not inherited, so a class may not be derived from one that has some.
    """
    made, names, defaults = _slotted(cls, _SHARED | _SEALED)
    made.__init__ = _initialiser(made, names, defaults, _SLOT_SETTER)
    finished: type[T] = made
    return finished


@dataclass_transform(frozen_default=True, field_specifiers=(derived,))
def value(cls: type[T]) -> type[T]:
    """The same, for what is made often: at run time nothing keeps it from being changed.

    Its ``__init__`` is compiled when the first one is made: a process needs few of them.
    """
    made, names, defaults = _slotted(cls, _SHARED)

    def compile_first(self: Any, *given: Any, **named: Any) -> None:
        made.__init__ = _initialiser(made, names, defaults, "self.{0} = {0}")
        made.__init__(self, *given, **named)

    made.__init__ = compile_first
    finished: type[T] = made
    return finished


def _slotted(cls: type[Any], shared: dict[str, Any]) -> tuple[Any, tuple[str, ...], dict[str, Any]]:
    """The class with slots for its fields, their names, and the defaults of some."""
    if any(getattr(base, "__match_args__", ()) for base in cls.__bases__):
        raise TypeError(f"{cls.__name__}: a frozen class inherits no fields")
    annotations: dict[str, object] = cls.__annotations__
    slots = tuple([name for name, kind in annotations.items() if "ClassVar" not in str(kind)])
    given = {name: cls.__dict__[name] for name in slots if name in cls.__dict__}
    names = tuple([name for name in slots if given.get(name) is not _DERIVED])
    defaults = {name: default for name, default in given.items() if default is not _DERIVED}
    body = {
        name: member
        for name, member in cls.__dict__.items()
        if name not in given and name not in ("__dict__", "__weakref__")
    }
    body.update(shared, __slots__=slots, __match_args__=names)
    made: Any = type(cls.__name__, cls.__bases__, body)
    return made, names, defaults


def replace(original: T, **changes: Any) -> T:
    """A copy with some fields changed."""
    source: Any = original
    given = changes
    for name in source.__match_args__:
        if name not in changes:
            given[name] = getattr(source, name)
    return type(original)(**given)


_SLOT_SETTER: Final = "set_{0}(self, {0})"
"""The slot's own setter, since ``__setattr__`` refuses."""


def _initialiser(cls: Any, names: tuple[str, ...], defaults: dict[str, Any], setter: str) -> Any:
    """``__init__``, compiled; ``setter`` is the source that sets one field."""
    scope = {f"set_{name}": cls.__dict__[name].__set__ for name in names}
    scope |= {f"default_{name}": default for name, default in defaults.items()}
    takes = "".join(
        f", {name}=default_{name}" if name in defaults else f", {name}" for name in names
    )
    sets = "; ".join(map(setter.format, names)) or "pass"
    if hasattr(cls, "__post_init__"):
        sets += "; self.__post_init__()"
    exec(f"def __init__(self{takes}): {sets}", scope)  # noqa: S102 - names of our own fields
    return scope["__init__"]


def _values(self: Any) -> tuple[Any, ...]:
    return tuple([getattr(self, name) for name in self.__match_args__])


def _eq(self: Any, other: object) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    return _values(self) == _values(other)


def _hash(self: Any) -> int:
    return hash(_values(self))


_HIDDEN = frozenset({"key", "tenant", "session", "digest", "fingerprint"})
"""Fields that no log line and no traceback may show."""


def _repr(self: Any) -> str:
    shown = ", ".join([f"{name}={_shown(self, name)}" for name in self.__match_args__])
    return f"{type(self).__name__}({shown})"


def _shown(self: Any, name: str) -> str:
    """Bodies, headers and keys are told by their size: what is printed may end up anywhere."""
    held = getattr(self, name)
    if name in _HIDDEN and held is not None:
        return "..."
    if isinstance(held, bytes | tuple | dict | list):
        return f"<{type(held).__name__} of {len(held)}>"  # pyright: ignore[reportUnknownArgumentType]
    return repr(held)


def _refuse(self: Any, name: str, *_: object) -> None:
    raise AttributeError(f"{type(self).__name__} is frozen: {name!r} cannot be changed")


def _reduce(self: object) -> tuple[Any, ...]:
    return type(self), _values(self)


_SHARED = {
    "__eq__": _eq,
    "__hash__": _hash,
    "__repr__": _repr,
    "__reduce__": _reduce,
}
_SEALED = {"__setattr__": _refuse, "__delattr__": _refuse}


def is_async(given: object) -> bool:
    """Whether it is a coroutine function, whose result would pass for true; or called like one."""
    if not callable(given):
        return False
    from inspect import iscoroutinefunction  # not loaded for those who give none

    return iscoroutinefunction(given) or iscoroutinefunction(type(given).__call__)

"""Parameters by type: a JSON value becomes what the annotation says, or a clear refusal.

Owns which annotations can be read from JSON and the words for what does not fit. Refuses an
annotation it cannot read when the handler is registered, not when the first job comes.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import sys
import types
import typing
from datetime import datetime
from typing import Any, Callable, Dict, Literal, Tuple, Union, get_type_hints

from .errors import InvalidParams
from .instant import Instant

#: Reads a value; the second argument is where it is, for the message.
Reader = Callable[[Any, str], Any]

_UNIONS = (Union,) if sys.version_info < (3, 10) else (Union, types.UnionType)
_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable)
_MAPPINGS = (dict, collections.abc.Mapping)
_NAMES: Dict[Any, str] = {
    str: "a string", bool: "true or false", int: "a whole number", float: "a number",
    type(None): "null", list: "a list", dict: "an object",
}  # fmt: skip


def reader_of(annotation: Any) -> Reader:
    """What reads a value of this annotation. Raises `TypeError` where nothing can."""
    if annotation in (Any, object):
        return lambda value, path: value
    if annotation is None or annotation in _NAMES:
        return _plain(type(None) if annotation is None else annotation)
    if annotation is datetime:
        return _instant
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _one_of({member.value: member for member in annotation})
    if is_record(annotation):
        return _record(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return _one_of({value: value for value in arguments})
    if origin in _UNIONS:
        return _any_of([reader_of(argument) for argument in arguments])
    if origin in _LISTS and len(arguments) == 1:
        return _list(reader_of(arguments[0]))
    if origin in _MAPPINGS and arguments[:1] == (str,):
        return _mapping(reader_of(arguments[1]))
    raise TypeError(f"{annotation!r} cannot be read from JSON")


def is_record(annotation: Any) -> bool:
    """Whether it is a dataclass or a TypedDict."""
    if not isinstance(annotation, type):
        return False
    return dataclasses.is_dataclass(annotation) or _is_typed_dict(annotation)


def read_members(
    given: Dict[str, Any], readers: Dict[str, Reader], needed: Any, path: str, rest: bool = False
) -> Dict[str, Any]:
    """Reads the members of an object, each by its own reader; with `rest`, unknown ones too."""
    for name in needed:
        if name not in given:
            raise InvalidParams(f"{path}.{name} is missing")
    read = {}
    for name, value in given.items():
        if name not in readers and not rest:
            known = ", ".join(sorted(readers)) or "nothing"
            raise InvalidParams(f"{path}.{name} is not known; there is {known}")
        read[name] = readers[name](value, f"{path}.{name}") if name in readers else value
    return read


def _is_typed_dict(annotation: type) -> bool:
    return issubclass(annotation, dict) and hasattr(annotation, "__required_keys__")


def _plain(wanted: type) -> Reader:
    def read(value: Any, path: str) -> Any:
        fits = type(value) is wanted
        if wanted is float and type(value) is int:
            # 3 is as good a number as 3.0, whoever wrote it; one of 400 digits is none.
            fits = abs(value) < 10**300
            value = float(value) if fits else value
        if not fits:
            raise InvalidParams(f"{path} must be {_NAMES[wanted]}, not {_name_of(value)}")
        return value

    return read


def _instant(value: Any, path: str) -> datetime:
    read = Instant.read(value) if isinstance(value, str) else None
    if read is None:
        raise InvalidParams(f"{path} must be an RFC 3339 time with its offset")
    return read.datetime


def _one_of(values: Dict[Any, Any]) -> Reader:
    # By type too: to Python, true is 1.
    known = {(type(value), value): meaning for value, meaning in values.items()}
    words = ", ".join(repr(value) for value in values)

    def read(value: Any, path: str) -> Any:
        key = (type(value), value)
        if isinstance(value, (list, dict)) or key not in known:
            raise InvalidParams(f"{path} must be one of {words}")
        return known[key]

    return read


def _any_of(readers: typing.List[Reader]) -> Reader:
    def read(value: Any, path: str) -> Any:
        refusals = []
        for reader in readers:
            try:
                return reader(value, path)
            except InvalidParams as refused:
                refusals.append(str(refused))
        raise InvalidParams("; or ".join(refusals))

    return read


def _list(item: Reader) -> Reader:
    def read(value: Any, path: str) -> Any:
        if not isinstance(value, list):
            raise InvalidParams(f"{path} must be a list, not {_name_of(value)}")
        return [item(each, f"{path}[{index}]") for index, each in enumerate(value)]

    return read


def _mapping(item: Reader) -> Reader:
    def read(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise InvalidParams(f"{path} must be an object, not {_name_of(value)}")
        return {name: item(each, f"{path}.{name}") for name, each in value.items()}

    return read


def _record(record: Any) -> Reader:
    readers, needed = _members_of(record)

    def read(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise InvalidParams(f"{path} must be an object, not {_name_of(value)}")
        members = read_members(value, readers, needed, path)
        try:
            return record(**members)
        except (TypeError, ValueError) as wrong:
            # What the dataclass itself checks when it is made.
            raise InvalidParams(f"{path}: {wrong}") from wrong

    return read


def _members_of(record: Any) -> Tuple[Dict[str, Reader], Any]:
    hints = get_type_hints(record)
    if _is_typed_dict(record):
        return {name: reader_of(hints[name]) for name in hints}, sorted(record.__required_keys__)
    fields = [field for field in dataclasses.fields(record) if field.init]
    absent = dataclasses.MISSING
    needed = [f.name for f in fields if f.default is absent and f.default_factory is absent]
    return {field.name: reader_of(hints[field.name]) for field in fields}, needed


def _name_of(value: Any) -> str:
    return _NAMES.get(type(value), type(value).__name__)

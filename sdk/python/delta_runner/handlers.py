"""Handlers by name, and how one is called.

Owns the registry and the reading of a handler's signature. Refuses a name that is taken and a
signature that no parameters could fill, both when it is registered.
"""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, Optional, TypeVar, Union, get_type_hints, overload

from .context import Context
from .params import Reader, is_record, read_members, reader_of

Function = TypeVar("Function", bound=Callable[..., Any])

_KEYWORDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class App:
    """The handlers of one runner."""

    def __init__(self) -> None:
        self._handlers: Dict[str, Handler] = {}

    @overload
    def handler(self, function: Function) -> Function: ...

    @overload
    def handler(self, function: Optional[str] = None) -> Callable[[Function], Function]: ...

    def handler(self, function: Union[Callable[..., Any], str, None] = None) -> Any:
        """Registers a function, by its own name or by the one given: `@app.handler` or
        `@app.handler("mail.send")`."""
        if callable(function):
            self.add(function)
            return function

        def register(given: Function) -> Function:
            self.add(given, function)
            return given

        return register

    def add(self, function: Callable[..., Any], name: Optional[str] = None) -> None:
        """The same without a decorator."""
        name = function.__name__ if name is None else name
        if name in self._handlers:
            raise ValueError(f"a handler named {name!r} is registered already")
        self._handlers[name] = Handler(function)

    def find(self, name: str) -> Optional[Handler]:
        return self._handlers.get(name)

    def names(self) -> list[str]:
        return sorted(self._handlers)


class Handler:
    """One function and what its parameters are."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        call = getattr(function, "__call__", function)
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
        #: The parameter that takes the context, if there is one.
        self._context: Optional[str] = None
        #: The one that takes all of the parameters as a record, if there is one.
        self._record: Optional[str] = None
        self._readers: Dict[str, Reader] = {}
        self._needed: list[str] = []
        self._rest = False
        self._read_signature()

    @property
    def takes_context(self) -> bool:
        return self._context is not None

    def arguments(self, params: Dict[str, Any], context: Optional[Context]) -> Dict[str, Any]:
        """What the function is called with. Raises `InvalidParams`."""
        if self._record is not None:
            arguments = {self._record: self._readers[self._record](params, "params")}
        else:
            needed, readers = self._needed, self._readers
            arguments = read_members(params, readers, needed, "params", self._rest)
        if self._context is not None:
            # A parameter of that name that came over the wire never stands in for it.
            arguments[self._context] = context
        return arguments

    def _read_signature(self) -> None:
        where = f"handler {getattr(self.function, '__name__', self.function)!r}"
        annotated = self.function
        if not inspect.isroutine(annotated) and not isinstance(annotated, type):
            annotated = getattr(annotated, "__call__")
        try:
            hints = get_type_hints(annotated)
        except Exception as wrong:
            raise TypeError(f"{where}: its annotations cannot be read: {wrong}") from wrong
        records = []
        for name, parameter in inspect.signature(self.function).parameters.items():
            annotation = hints.get(name, Any)
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                self._rest = True
            elif parameter.kind not in _KEYWORDS:
                raise TypeError(f"{where}: {name!r} cannot be given by name")
            elif annotation is Context or (name == "context" and annotation is Any):
                self._context = name
            else:
                self._add(where, name, annotation, parameter)
                records.append(is_record(annotation))
        if records == [True] and not self._rest:
            self._record = next(iter(self._readers))

    def _add(self, where: str, name: str, annotation: Any, parameter: inspect.Parameter) -> None:
        try:
            self._readers[name] = reader_of(annotation)
        except TypeError as wrong:
            raise TypeError(f"{where}: parameter {name!r}: {wrong}") from None
        if parameter.default is inspect.Parameter.empty:
            self._needed.append(name)

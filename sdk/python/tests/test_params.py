"""Handlers and their parameters: what is refused when registered, and when called."""

from __future__ import annotations

import enum
import unittest
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, Dict, List, Literal, Mapping, Optional, TypedDict, Union

from delta_runner import App, Context, InvalidParams, Retry
from delta_runner.address import Address, NoAddress
from delta_runner.handlers import Handler
from delta_runner.instant import Instant
from delta_runner.params import reader_of
from delta_runner.request import ExecutionRequest, RequestContext


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass
class Item:
    name: str
    size: Size = Size.SMALL

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("an item has a name")


class Page(TypedDict):
    url: str
    items: List[Item]


class Options(TypedDict, total=False):
    depth: int


def context() -> Context:
    at = Instant.read("2026-01-04T08:00:00Z")
    assert at is not None
    return Context(ExecutionRequest("r", "j", "f", {}, RequestContext("j", 1, at, "q")))


def arguments(function: Callable[..., Any], params: Dict[str, Any]) -> Dict[str, Any]:
    return Handler(function).arguments(params, context())


class Params(unittest.TestCase):
    def test_values_are_read_by_their_annotation(self) -> None:
        at = datetime(2026, 1, 4, 8, tzinfo=timezone.utc)
        for annotation, value, wanted in (
            (Any, [1], [1]),
            (float, 3, 3.0),
            (Optional[int], None, None),
            (Union[int, str], "a", "a"),
            (List[Optional[bool]], [True, None], [True, None]),
            (Mapping[str, int], {"a": 1}, {"a": 1}),
            (Literal["a", 1], 1, 1),
            (Size, "l", Size.LARGE),
            (datetime, "2026-01-04T09:00:00+01:00", at),
            (Item, {"name": "a", "size": "l"}, Item("a", Size.LARGE)),
            (Page, {"url": "u", "items": [{"name": "a"}]}, {"url": "u", "items": [Item("a")]}),
            (Options, {}, {}),
            (dict, {"a": 1}, {"a": 1}),
        ):
            with self.subTest(annotation):
                self.assertEqual(reader_of(annotation)(value, "x"), wanted)

    def test_what_does_not_fit_is_refused_with_its_place(self) -> None:
        for annotation, value, words in (
            (int, True, "x must be a whole number, not true or false"),
            (int, 1.0, "x must be a whole number, not a number"),
            (float, 10**400, "x must be a number, not a whole number"),
            (str, None, "x must be a string, not null"),
            (Union[int, bool], None,
             "x must be a whole number, not null; or x must be true or false, not null"),
            (List[int], [1, "a"], "x[1] must be a whole number, not a string"),
            (Dict[str, int], {"a": "b"}, "x.a must be a whole number, not a string"),
            (Literal["a", 1], True, "x must be one of 'a', 1"),
            (Size, ["l"], "x must be one of 's', 'l'"),
            (datetime, "2026-01-04T09:00:00", "x must be an RFC 3339 time with its offset"),
            (Item, {"name": ""}, "x: an item has a name"),
            (Page, {"url": "u", "items": [{}]}, "x.items[0].name is missing"),
            (Options, {"deep": 1}, "x.deep is not known; there is depth"),
        ):  # fmt: skip
            with self.subTest(annotation), self.assertRaises(InvalidParams) as caught:
                reader_of(annotation)(value, "x")
            self.assertEqual(str(caught.exception), words)

    def test_parameters_come_by_name_or_as_one_record(self) -> None:
        def by_name(a: int, b: str = "b") -> None: ...
        def record(page: Page, context: Context) -> None: ...
        def two_records(one: Item, two: Item) -> None: ...

        self.assertEqual(arguments(by_name, {"a": 1}), {"a": 1})
        self.assertEqual(set(arguments(record, {"url": "", "items": []})), {"page", "context"})
        items = {"one": {"name": "a"}, "two": {"name": "b"}}
        self.assertEqual(arguments(two_records, items), {"one": Item("a"), "two": Item("b")})
        with self.assertRaisesRegex(InvalidParams, "params.c is not known; there is a, b"):
            arguments(by_name, {"a": 1, "c": 1})

    def test_no_parameter_stands_in_for_the_context(self) -> None:
        def rest(where: Context, **others: Any) -> None: ...

        def strict(context: Context) -> None: ...

        found = arguments(rest, {"where": "mine", "other": 1})
        self.assertIsInstance(found["where"], Context)
        self.assertEqual(found["other"], 1)
        with self.assertRaisesRegex(InvalidParams, "params.context is not known"):
            arguments(strict, {"context": "mine"})


class Registering(unittest.TestCase):
    def test_a_name_is_registered_once(self) -> None:
        app = App()

        @app.handler
        def one() -> None: ...

        @app.handler("other")
        async def two() -> None: ...

        self.assertEqual(app.names(), ["one", "other"])
        with self.assertRaisesRegex(ValueError, "'one' is registered already"):
            app.add(one)
        plain, other = app.find("one"), app.find("other")
        assert plain is not None and other is not None
        self.assertEqual((plain.is_async, other.is_async), (False, True))

    def test_a_signature_that_cannot_be_filled_is_refused_at_once(self) -> None:
        def by_place(a: int, /) -> None: ...
        def many(*a: int) -> None: ...
        def unreadable(a: complex) -> None: ...
        def keys(a: Dict[int, str]) -> None: ...
        def unknown(a: "Nowhere") -> None: ...  # type: ignore[name-defined] # noqa: F821

        for function in (by_place, many, unreadable, keys, unknown):
            with self.subTest(function.__name__), self.assertRaisesRegex(
                TypeError, f"handler '{function.__name__}'"
            ):
                App().add(function)

    def test_a_retry_has_a_delay_that_json_can_say(self) -> None:
        self.assertEqual(Retry(after=timedelta(minutes=1)).after, 60.0)
        self.assertIsNone(Retry().after)
        for after in (float("nan"), float("inf")):
            with self.assertRaises(ValueError):
                Retry(after=after)


class Addresses(unittest.TestCase):
    # RQ-8
    def test_only_loopback_addresses_are_listened_on(self) -> None:
        for text, wanted in (
            ("127.0.0.1:9000", "127.0.0.1:9000"),
            ("127.1.2.3:1", "127.1.2.3:1"),
            ("localhost:9000", "127.0.0.1:9000"),
            ("[::1]:9000", "[::1]:9000"),
            ("::1:9000", "[::1]:9000"),
        ):
            self.assertEqual(str(Address.read(text)), wanted)
        for text in (
            "", "9000", ":9000", "127.0.0.1", "127.0.0.1:", "127.0.0.1:+1", "127.0.0.1:65536",
            "127.0.0.1:٩", "0.0.0.0:9000", "[::]:9000", "192.168.1.1:9000", "example.org:9000",
            "127.1:9000", "localhost.example.org:9000", "[::1%eth0]:9000",
        ):  # fmt: skip
            with self.subTest(text), self.assertRaises(NoAddress):
                Address.read(text)

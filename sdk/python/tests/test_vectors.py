"""The vectors that every language shares, and what is written is read back."""

from __future__ import annotations

import json
import unittest
from pathlib import Path
from typing import Any, Dict, List

from delta_runner import protocol
from delta_runner.protocol import Empty, Frames, Instant, TooLarge, Unreadable

VECTORS = Path(__file__).resolve().parents[3] / "protocol/runner/v2/vectors.json"


def vectors(of: str) -> List[Dict[str, Any]]:
    found: List[Dict[str, Any]] = json.loads(VECTORS.read_text())[of]
    assert found
    return found


def given(**members: Any) -> Dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


def meaning(data: str) -> Dict[str, Any]:
    """What a message means, in the words of the vectors."""
    try:
        message = protocol.read(data.encode())
    except Unreadable as wrong:
        return {"unreadable": wrong.reason}
    if isinstance(message, protocol.ExecutionRequest):
        return {"request": of_request(message)}
    if isinstance(message, protocol.RefusedRequest):
        return {"refused": vars(message)}
    if isinstance(message, protocol.Response):
        if isinstance(message.outcome, str):
            return {"wrong": {"request_id": message.request_id, "why": message.outcome}}
        return {"response": of_outcome(message.outcome)}
    if isinstance(message, protocol.Cancel):
        return {"cancel": message.request and given(**vars(message.request))}
    return {"unknown": message.type}


def of_request(request: protocol.ExecutionRequest) -> Dict[str, Any]:
    context = vars(request.context)
    times = {name: str(at) for name, at in context.items() if isinstance(at, Instant)}
    return given(
        **{
            **context,
            **times,
            "request_id": request.request_id,
            "job_id": request.job_id,
            "function_name": request.function_name,
            "params": request.params,
        }
    )


def of_outcome(outcome: protocol.Outcome) -> Dict[str, Any]:
    after = outcome.retry_after()
    return given(
        request_id=outcome.request_id,
        job_id=outcome.job_id,
        status=outcome.status,
        result=outcome.result,
        error=outcome.error and given(**vars(outcome.error)),
        retry_after=after and vars(after),
        handler_not_found=outcome.is_handler_not_found() or None,
    )


class Vectors(unittest.TestCase):
    # RQ-10, A52
    def test_frames_are_cut_as_the_vectors_say(self) -> None:
        for vector in vectors("frames"):
            data = bytes.fromhex(vector["hex"])
            for step in (1, 3, len(data)):
                with self.subTest(vector["name"], step=step):
                    frames, error = Frames(), None
                    found: List[str] = []
                    try:
                        for begin in range(0, len(data), step):
                            frames.push(data[begin : begin + step])
                            found.extend(json.decode() for json in frames)
                    except Empty:
                        error = "empty"
                    except TooLarge:
                        error = "too_large"
                    self.assertEqual(found, vector.get("frames", []))
                    self.assertEqual(error, vector.get("error"))

    # RQ-1, RQ-4, RQ-5, RQ-6, RQ-11, RQ-12, RQ-18 … RQ-29, RQ-31, RQ-34 … RQ-39, A47, A48
    def test_messages_mean_what_the_vectors_say(self) -> None:
        for vector in vectors("messages"):
            with self.subTest(vector["name"]):
                means, wanted = meaning(vector["json"]), vector["means"]
                for kind in ("refused", "wrong"):
                    if kind in wanted and kind in means:
                        why = wanted[kind]["why"]
                        self.assertEqual(means[kind]["why"][: len(why)], why)
                        means[kind] = {**means[kind], "why": why}
                self.assertEqual(means, wanted)

    # RQ-18, RQ-29, RQ-30, RQ-39
    def test_what_is_written_is_read_back(self) -> None:
        at = Instant.read("2026-01-04T08:00:00.5Z")
        assert at is not None
        context = protocol.RequestContext("j", 3, at, "q", at, {"traceparent": "x"}, "w", 1 << 33)
        error = protocol.ErrorInfo("m", "t", "c", {"a": [1]})
        for written in (
            protocol.ExecutionRequest("r", "j", "f", {"a": 1.5, "é": "\u00e9"}, context),
            protocol.Outcome("r", "j", "retry", [1], error, 1.5),
            protocol.CancelRequest("j", None, True),
        ):
            frames = Frames()
            frames.push(protocol.frame(written))
            read = [protocol.read(json) for json in frames]
            if isinstance(written, protocol.Outcome):
                self.assertEqual(read, [protocol.Response("r", written)])
            elif isinstance(written, protocol.CancelRequest):
                self.assertEqual(read, [protocol.Cancel(written)])
            else:
                self.assertEqual(read, [written])

    # A52
    def test_what_no_frame_can_hold_is_not_written(self) -> None:
        with self.assertRaises(TooLarge):
            protocol.frame(protocol.Outcome("r", "j", "success", "x" * protocol.MAX_FRAME_BYTES))
        for result in (float("nan"), float("inf"), object(), "\ud800", {1: object()}):
            with self.assertRaises(protocol.NotJson):
                protocol.frame(protocol.Outcome("r", "j", "success", result))


class Nonsense(unittest.TestCase):
    # RQ-4
    def test_what_is_no_json_is_unreadable(self) -> None:
        for data in (
            b"\xff\xfe", b'\xef\xbb\xbf{"type":"x","payload":1}', '{"type"'.encode("utf-16"),
            b'{"type":"x","payload":NaN}', b'{"type":"x","payload":-Infinity}', b"", b"null",
            b'{"type":"x","payload":' + b"[" * 100_000,
        ):  # fmt: skip
            with self.subTest(data[:40]), self.assertRaises(Unreadable) as caught:
                protocol.read(data)
            self.assertEqual(caught.exception.reason, "no_object")

    def test_of_two_members_of_one_name_the_last_counts(self) -> None:
        twice = b'{"type":"cancel","type":"hello","payload":{}}'
        self.assertEqual(protocol.read(twice), protocol.Unknown("hello"))

    def test_a_request_that_python_cannot_read_is_refused_by_its_ids(self) -> None:
        deep = "[" * 100_000 + "]" * 100_000
        for value in (deep, "9" * 100_000):
            payload = f'{{"params":{{"x":{value}}},"request_id":"r]\\"","job_id":"j","n":[1]}}'
            with self.subTest(value[:10]):
                read = protocol.read(f'{{"type":"request","payload":{payload}}}'.encode())
                if isinstance(read, protocol.RefusedRequest):
                    self.assertEqual((read.request_id, read.job_id), ('r]"', "j"))
                    self.assertIn("nested too deep", read.why)
                else:
                    self.fail(f"{read}"[:200])

    # RQ-21
    def test_a_text_that_utf8_cannot_hold_is_none(self) -> None:
        payload = '{"protocol_version":"2","request_id":"\\ud800","job_id":"j"}'
        read = protocol.read(f'{{"type":"request","payload":{payload}}}'.encode())
        assert isinstance(read, protocol.RefusedRequest)
        self.assertEqual((read.request_id, read.job_id), (None, "j"))

    # RQ-45
    def test_a_function_names_its_runner_before_the_first_hash(self) -> None:
        self.assertEqual(protocol.split_function("a#b#c"), ("a", "b#c"))
        self.assertEqual(protocol.split_function("b"), (None, "b"))
        self.assertEqual(protocol.split_function("#b"), ("", "b"))

    # RQ-5
    def test_instants_have_an_offset_and_nanoseconds(self) -> None:
        for text, wanted in (
            ("2026-01-04T08:00:00Z", "2026-01-04T08:00:00Z"),
            ("2026-01-04T08:00:00.000000001+02:00", "2026-01-04T06:00:00.000000001Z"),
            ("2026-01-04T08:00:00-00:30", "2026-01-04T08:30:00Z"),
            ("2016-12-31T23:59:60Z", "2016-12-31T23:59:59Z"),
            ("1969-12-31T23:59:59.5Z", "1969-12-31T23:59:59.5Z"),
        ):
            self.assertEqual(str(Instant.read(text)), wanted)
        for text in (
            "", "now", "2026-01-04T08:00:00", "2026-02-30T08:00:00Z", "2026-01-04T24:00:00Z",
            "2026-01-04T08:00:00+2:00", "2026-01-04T08:00:00Z ", "2026-01-04T08:00:00+24:00",
            "٢٠٢٦-01-04T08:00:00Z", "0000-01-01T00:00:00Z",
            "0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59-00:01",
        ):  # fmt: skip
            self.assertIsNone(Instant.read(text), text)

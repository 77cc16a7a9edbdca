"""Spans, with a stand-in for OpenTelemetry: the package itself depends on nothing.

The stand-in has the few calls that the runner makes, and writes down what they were given.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List

from .harness import RunnerCase, deadline_in, request

STAND_IN = '''
import contextlib, contextvars, json, os

current = contextvars.ContextVar("current", default=None)

class propagate:
    @staticmethod
    def extract(carrier):
        if "broken" in carrier:
            raise ValueError("a propagator that fails")
        return dict(carrier)

class trace:
    class SpanKind:
        CONSUMER = "consumer"
    class StatusCode:
        ERROR = "ERROR"
    class Status:
        def __init__(self, code, description):
            self.words = f"{code} {description}"
    class Span:
        def __init__(self, **given):
            self.given = given
        def set_attribute(self, name, value):
            self.given["attributes"][name] = value
        def set_status(self, status):
            self.given["status"] = status.words
    @staticmethod
    def get_tracer(name):
        return trace
    @staticmethod
    def get_current_span():
        return current.get()
    @staticmethod
    @contextlib.contextmanager
    def start_as_current_span(name, context, kind, attributes):
        span = trace.Span(name=name, parent=context, kind=kind, attributes=attributes)
        token = current.set(span)
        try:
            yield span
        finally:
            current.reset(token)
            with open(os.environ["SPANS"], "a") as file:
                file.write(json.dumps(span.given) + "\\n")
'''


class Tracing(RunnerCase):
    def spans(self) -> List[Dict[str, Any]]:
        return [json.loads(line) for line in self.mark("spans").read_text().splitlines()]

    # RQ-28
    def test_a_span_continues_the_trace_of_its_job(self) -> None:
        (self.folder / "opentelemetry").mkdir()
        (self.folder / "opentelemetry" / "__init__.py").write_text(STAND_IN)
        runner = self.start(
            "--tcp-socket=127.0.0.1:0", env={"SPANS": str(self.mark("spans"))}, paths=[self.folder]
        )
        caller, carrier = self.caller(runner), {"traceparent": "00-a-b-01", "n": 1}
        results = []
        for function in ("span_name", "plain_span_name", "boom"):
            caller.send("request", request(function, trace_context=carrier, lease_epoch=7))
            results.append(caller.receive().get("result"))
        self.assertEqual(results, ["rrq.runner", "rrq.runner", None], "it is the current one")
        late = {"seconds": 60}
        caller.send("request", request("sleep", late, deadline=deadline_in(3)))
        caller.receive()
        caller.send("request", request("echo", trace_context={"broken": "x"}))
        self.assertEqual(caller.receive()["status"], "success", "a call without a span")
        spans = self.spans()
        self.assertEqual({span["name"] for span in spans}, {"rrq.runner"})
        parents = [span["parent"] for span in spans]
        self.assertEqual(parents, [{"traceparent": "00-a-b-01"}] * 3 + [{}])
        statuses = [span.get("status") for span in spans]
        self.assertEqual(statuses, [None, None, "ERROR error", "ERROR timeout"])
        attributes = spans[0]["attributes"]
        self.assertEqual(attributes["rrq.job_id"], "job-1")
        self.assertEqual(attributes["rrq.function_name"], "span_name")
        self.assertEqual(attributes["delta.lease_epoch"], 7)

    def test_nothing_of_the_package_needs_more_than_python(self) -> None:
        project = Path(__file__).resolve().parent.parent / "pyproject.toml"
        self.assertIn("\ndependencies = []\n", project.read_text())

"""One process's logs, metrics and spans go where they were told, and stop when told."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import urllib.request

import grpc
import pytest
import structlog
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.sdk.trace import TracerProvider

from forerun.errors import FailedPrecondition
from forerun.v1 import drafter_pb2
from forerun.wire import telemetry


@pytest.fixture
def restored():
    """Logging as it was before the test."""
    root = logging.getLogger()
    level = root.level
    yield
    structlog.reset_defaults()
    root.setLevel(level)


def test_logs_are_json_lines_on_stderr_and_stdout_stays_empty(capsys, restored):
    running = telemetry.setup("verifier")
    structlog.get_logger("forerun.x").info("loaded", seconds=3)
    logging.getLogger("some.library").warning("old %s", "style")
    try:
        int("inside")
    except ValueError:
        structlog.get_logger("forerun.x").exception("failed")
    running.close()
    out, err = capsys.readouterr()
    assert out == ""
    ours, theirs, failure = (json.loads(line) for line in err.splitlines())
    assert (ours["event"], ours["seconds"], ours["service"], ours["level"]) == (
        "loaded",
        3,
        "verifier",
        "info",
    )
    assert (theirs["event"], theirs["logger"]) == ("old style", "some.library")
    assert "ValueError: invalid literal" in failure["exception"]


def test_metrics_are_served_until_closed(restored):
    running = telemetry.setup("drafter", metrics_port=0)
    url = f"http://127.0.0.1:{running.metrics_port}/metrics"
    with urllib.request.urlopen(url) as reply:
        assert b"python_info" in reply.read()
    _, thread = running._metrics
    running.close()
    assert not thread.is_alive()
    running.close()
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", running.metrics_port)):
        pass


def test_a_taken_metrics_port_is_a_clear_error(restored):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(FailedPrecondition, match="metrics"):
            telemetry.setup("drafter", metrics_port=taken.getsockname()[1])


async def test_the_trace_of_the_caller_is_the_trace_of_the_called(start, dial):
    running = await start()
    contexts = []
    running.servicer.unary = lambda context: contexts.append(telemetry.extract(context))
    stub = running.stub(dial(running.address))
    provider = TracerProvider()
    with provider.get_tracer("test").start_as_current_span("outer") as span:
        metadata = telemetry.inject((("x-other", "kept"),))
        await stub.GetModel(drafter_pb2.DrafterServiceGetModelRequest(), metadata=metadata)
    await stub.GetModel(drafter_pb2.DrafterServiceGetModelRequest())
    provider.shutdown()
    traced, untraced = (trace.get_current_span(context).get_span_context() for context in contexts)
    assert (traced.trace_id, traced.span_id) == (
        span.get_span_context().trace_id,
        span.get_span_context().span_id,
    )
    assert traced.is_remote
    assert not untraced.is_valid
    assert ("x-other", "kept") in metadata


def test_without_a_span_nothing_is_injected():
    assert telemetry.inject() == ()


async def test_spans_reach_the_endpoint_by_the_time_of_close(restored, monkeypatch):
    exported = asyncio.Queue()
    server = grpc.aio.server()

    class Collector(TraceServiceServicer):
        async def Export(self, request, context):
            await exported.put(request)
            return ExportTraceServiceResponse()

    add_TraceServiceServicer_to_server(Collector(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    providers = []
    # A process has one provider for good; this test keeps its own.
    monkeypatch.setattr(telemetry.trace, "set_tracer_provider", providers.append)
    running = telemetry.setup("gateway", otlp_endpoint=f"http://127.0.0.1:{port}")
    with providers[0].get_tracer("test").start_as_current_span("pass"):
        pass
    await asyncio.to_thread(running.close)
    request = exported.get_nowait()
    await server.stop(None)
    resource = request.resource_spans[0]
    assert resource.scope_spans[0].spans[0].name == "pass"
    names = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
    assert names["service.name"] == "forerun-gateway"


def test_an_endpoint_that_is_not_there_is_no_error(restored, monkeypatch):
    monkeypatch.setattr(telemetry.trace, "set_tracer_provider", lambda provider: None)
    telemetry.setup("gateway", otlp_endpoint="http://127.0.0.1:1").close()

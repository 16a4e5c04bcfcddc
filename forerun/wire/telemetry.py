"""Logs, traces and metrics of one process, and trace context in gRPC metadata.

The trace context travels by our own two functions: the OpenTelemetry interceptor for grpc.aio servers keeps
one span open per stream and breaks handlers, where a span per pass is wanted.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from wsgiref.simple_server import WSGIServer

import grpc
import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import start_http_server

from forerun.errors import FailedPrecondition

_PROPAGATOR = TraceContextTextMapPropagator()
_EXPORT_TIMEOUT_S = 2

Metadata = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Telemetry:
    """What `setup` started; `close` flushes and stops it, and may be called twice."""

    metrics_port: int | None = None
    _metrics: tuple[WSGIServer, threading.Thread] | None = None
    _provider: TracerProvider | None = None
    _handler: logging.Handler | None = field(default=None, repr=False)

    def close(self) -> None:
        if self._metrics is not None:
            server, thread = self._metrics
            server.shutdown()
            thread.join()
            server.server_close()
            self._metrics = None
        if self._provider is not None:
            self._provider.shutdown()
            self._provider = None
        if self._handler is not None:
            logging.getLogger().removeHandler(self._handler)
            self._handler = None


def setup(
    service: str,
    *,
    otlp_endpoint: str | None = None,
    metrics_port: int | None = None,
    metrics_host: str = "127.0.0.1",
    level: int = logging.INFO,
) -> Telemetry:
    """Logs go to stderr, spans to `otlp_endpoint` and Prometheus metrics to `metrics_port`, if given.

    Logs (ours and those of libraries) are one JSON object a line, or coloured text where stderr is a
    terminal; stdout is left alone. The endpoint is a gRPC one ("http://host:4317"; "https://" for TLS).
    Port 0 takes a free one. Raises FailedPrecondition when the metrics port is taken.
    """
    metrics = None if metrics_port is None else _serve_metrics(metrics_host, metrics_port)
    return Telemetry(
        metrics_port=None if metrics is None else metrics[0].server_port,
        _metrics=metrics,
        _provider=_export_spans(service, otlp_endpoint) if otlp_endpoint else None,
        _handler=_log_to_stderr(service, level),
    )


def tracer() -> trace.Tracer:
    """The tracer of this process; spans go nowhere until `setup` was given an endpoint."""
    return trace.get_tracer("forerun")


def inject(metadata: Sequence[tuple[str, str]] = (), context: Context | None = None) -> Metadata:
    """`metadata` and the W3C trace context of the current span (or of `context`), for an outgoing call."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context)
    return (*metadata, *carrier.items())


def extract(context: grpc.aio.ServicerContext[Any, Any]) -> Context:
    """The trace context that the caller of this call sent; an empty one if it sent none."""
    carrier = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    return _PROPAGATOR.extract(carrier, Context())


def _serve_metrics(host: str, port: int) -> tuple[WSGIServer, threading.Thread]:
    try:
        return start_http_server(port, addr=host)
    except OSError as error:
        raise FailedPrecondition(
            f"cannot serve metrics on {host}:{port}: {error.strerror or error}; choose another with --metrics-port",
            reason="CANNOT_BIND",
            field="metrics-port",
        ) from error


def _export_spans(service: str, endpoint: str) -> TracerProvider:
    # Imported only where spans are exported: it costs a start-up a third of a second.
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    provider = TracerProvider(
        resource=Resource.create({"service.name": f"forerun-{service}"}), shutdown_on_exit=False
    )
    exporter = OTLPSpanExporter(
        endpoint=endpoint, insecure=not endpoint.startswith("https://"), timeout=_EXPORT_TIMEOUT_S
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return provider


def _log_to_stderr(service: str, level: int) -> logging.Handler:
    def named(_logger: object, _method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
        event["service"] = service
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            event["trace_id"] = trace.format_trace_id(span.trace_id)
        return event

    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        named,
    ]
    terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    rendering: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer()]
        if terminal
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
            foreign_pre_chain=shared,
        )
    )
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level)
    return handler

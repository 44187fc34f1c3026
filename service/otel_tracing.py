"""Spans by OpenTelemetry, sent by OTLP over HTTP behind the requests' backs; the only file that imports it.

The provider is our own and never the process's global one: libraries that trace by themselves stay silent, and two
services can live in one process. An exception leaves its type on a span and nothing else, because messages quote what
clients sent. A collector that is down or hung costs spans, not requests: the queue is bounded, a stop waits a moment.
"""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from urllib.parse import unquote

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from service.settings import Settings
from service.tracing import NO_SPAN, Attribute, Span

CLOSING_SECONDS = 3.0


class OtelSpan:
    """Implements `service.tracing.Span`."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def trace_id(self) -> str:
        """See `Span.trace_id`."""
        return trace.format_trace_id(self._span.get_span_context().trace_id)

    def rename(self, name: str) -> None:
        """See `Span.rename`."""
        self._span.update_name(name)

    def set(self, **attributes: Attribute) -> None:
        """See `Span.set`; names get the prefix ``groundrec.``, those of HTTP become the conventional ones."""
        for name, value in attributes.items():
            self._span.set_attribute(_CONVENTIONAL.get(name, f"groundrec.{name}"), value)
        if int(attributes.get("status", 0)) >= 500:
            self._span.set_status(trace.StatusCode.ERROR)


_CONVENTIONAL = {"method": "http.request.method", "route": "http.route", "status": "http.response.status_code"}


class OtelTracing:
    """Implements `service.tracing.Tracing` over a provider, which `close` ends."""

    def __init__(self, provider: TracerProvider, exporter: SpanExporter | None = None) -> None:
        self._provider, self._exporter = provider, exporter
        self._tracer = provider.get_tracer("groundrec")
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def request(self, headers: Mapping[str, str]) -> Iterator[Span]:
        """See `Tracing.request`."""
        parent = self._propagator.extract(headers)
        with self._started("request", trace.SpanKind.SERVER, parent) as span:
            yield span

    @contextmanager
    def span(self, name: str) -> Iterator[Span]:
        """See `Tracing.span`."""
        if not trace.get_current_span().is_recording():
            yield NO_SPAN
            return
        with self._started(name, trace.SpanKind.INTERNAL) as span:
            yield span

    @contextmanager
    def _started(self, name: str, kind: trace.SpanKind, parent: Context | None = None) -> Iterator[OtelSpan]:
        with self._tracer.start_as_current_span(
            name, parent, kind, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield OtelSpan(span)
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                if isinstance(error, Exception):  # a client that hung up is nobody's error
                    span.set_status(trace.StatusCode.ERROR)
                raise

    async def close(self) -> None:
        """Send what is left, for a moment: the SDK would wait half a minute for a hung collector."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        await asyncio.to_thread(ending.join, CLOSING_SECONDS)
        if ending.is_alive() and self._exporter is not None:
            self._exporter.shutdown()  # wakes it where it sleeps before another try


def otlp_tracing(settings: Settings) -> OtelTracing:
    """Traces that go where the settings say."""
    resource = Resource.create({SERVICE_NAME: settings.traces_service_name, SERVICE_VERSION: version("groundrec")})
    provider = TracerProvider(_sampler(settings), resource, shutdown_on_exit=False)
    endpoint = settings.traces_endpoint.get_secret_value()
    exporter = OTLPSpanExporter(endpoint, headers=_headers(settings.traces_headers.get_secret_value()))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return OtelTracing(provider, exporter)


def _sampler(settings: Settings) -> Sampler:
    kind = settings.traces_sampler
    samplers: dict[str, Sampler] = {
        "always_on": ALWAYS_ON,
        "always_off": ALWAYS_OFF,
        "traceidratio": TraceIdRatioBased(settings.traces_sampler_arg),
    }
    root = samplers[kind.removeprefix("parentbased_")]
    return ParentBased(root) if kind.startswith("parentbased_") else root


def _headers(text: str) -> dict[str, str]:
    """``name=value,name=value`` with values percent-encoded, as OTEL_EXPORTER_OTLP_HEADERS has them."""
    pairs = (entry.partition("=") for entry in text.split(",") if entry.strip())
    return {name.strip().lower(): unquote(value.strip()) for name, _, value in pairs}

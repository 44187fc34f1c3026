"""Traces leave for a collector as the settings and OpenTelemetry's variables say, and never hold anybody up."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from service.errors import SettingsError
from service.otel_tracing import otlp_tracing
from service.settings import LoadedSettings, Settings, load_settings

FOLDER = Path("checkpoint")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("GROUNDREC_", "OTEL_"))]:
        monkeypatch.delenv(name)


class Collector:
    """Takes what is exported and keeps it."""

    def __init__(self) -> None:
        self.received: list[tuple[str, dict[str, str], ExportTraceServiceRequest]] = []
        self.status = 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                collector.received.append((self.path, headers, ExportTraceServiceRequest.FromString(body)))
                self.send_response(collector.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


def given(monkeypatch: pytest.MonkeyPatch, **variables: str) -> LoadedSettings:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return load_settings({"checkpoint": FOLDER})


ON = {"GROUNDREC_TRACES": "true"}


async def test_spans_arrive_at_the_collector_with_headers_and_the_services_name(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20abc,x-team=recs",
        "OTEL_SERVICE_NAME": "shop-recs",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
    }
    tracing = otlp_tracing(given(monkeypatch, **ON, **variables).settings)
    with tracing.request({}) as request, tracing.span("engine"):
        request.set(status=200, route="/recommend")
    await tracing.close()
    (path, headers, body), *others = collector.received
    assert not others and path == "/v1/traces"
    assert (headers["authorization"], headers["x-team"]) == ("Bearer abc", "recs")
    resource = {pair.key: pair.value.string_value for pair in body.resource_spans[0].resource.attributes}
    assert (resource["service.name"], resource["deployment.environment.name"]) == ("shop-recs", "test")
    assert {span.name for span in body.resource_spans[0].scope_spans[0].spans} == {"request", "engine"}


@pytest.mark.parametrize("hung", [True, False])
async def test_a_collector_that_is_hung_or_gone_delays_nothing_but_a_moment_of_the_stop(
    hung: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.otel_tracing.CLOSING_SECONDS", 0.2)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if hung:
            listener.listen()
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/traces"
        tracing = otlp_tracing(
            Settings.model_validate({"checkpoint": FOLDER, "traces": True, "traces_endpoint": endpoint})
        )
        for _ in range(5000):
            with tracing.request({}):
                pass
        async with asyncio.timeout(60):
            await tracing.close()


async def test_a_failed_export_is_logged_without_the_secrets_it_was_sent_with(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.status = 401
    place = collector.url.replace("http://", "http://user:hunter2@")
    settings = {"traces_endpoint": f"{place}/v1/traces", "traces_headers": "authorization=hunter3"}
    tracing = otlp_tracing(Settings.model_validate({"checkpoint": FOLDER, "traces": True, **settings}))
    with tracing.request({}):
        pass
    await tracing.close()
    assert collector.received and "401" in caplog.text
    assert "hunter" not in caplog.text


@pytest.mark.parametrize(
    ("sampler", "kept"), [("always_on", 2), ("always_off", 0), ("parentbased_always_off", 1), ("traceidratio", 0)]
)
async def test_the_sampler_decides_what_is_traced(
    sampler: str, kept: int, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.url}/in", "OTEL_TRACES_SAMPLER_ARG": "0"}
    tracing = otlp_tracing(given(monkeypatch, **ON, **variables, OTEL_TRACES_SAMPLER=sampler).settings)
    for headers in ({}, {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}):
        with tracing.request(headers):
            pass
    await tracing.close()
    assert sum(len(body.resource_spans[0].scope_spans[0].spans) for _, _, body in collector.received) == kept
    assert {path for path, _, _ in collector.received} <= {"/in"}


async def test_a_platform_can_switch_the_sdk_off(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_SDK_DISABLED": "true"}
    tracing = otlp_tracing(given(monkeypatch, **ON, **variables).settings)
    with tracing.request({}) as request, tracing.span("engine"):
        request.set(status=200)
    await tracing.close()
    assert not collector.received


def test_the_variables_are_read_only_when_traces_are_on(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = given(monkeypatch, OTEL_TRACES_EXPORTER="console", OTEL_TRACES_SAMPLER="mine", OTEL_SERVICE_NAME="x")
    assert not loaded.settings.traces and loaded.settings.traces_service_name == "groundrec"


def test_our_own_setting_beats_the_standard_variable_and_the_origin_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = given(
        monkeypatch,
        **ON,
        OTEL_SERVICE_NAME="theirs",
        OTEL_EXPORTER_OTLP_ENDPOINT="http://base:4318/",
        OTEL_EXPORTER_OTLP_TRACES_HEADERS="authorization=hunter2",
        GROUNDREC_TRACES_SERVICE_NAME="ours",
    )
    lines = list(loaded.lines())
    assert "traces_service_name = ours  (environment)" in lines
    assert "traces_endpoint = http://base:4318/v1/traces  (environment OTEL_EXPORTER_OTLP_ENDPOINT)" in lines
    assert "traces_headers = ***  (environment OTEL_EXPORTER_OTLP_TRACES_HEADERS)" in lines
    assert "hunter2" not in repr(loaded) + "".join(lines)


def test_the_service_name_can_stand_among_the_resource_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = given(monkeypatch, **ON, OTEL_RESOURCE_ATTRIBUTES="a=b,service.name=shop%20recs")
    assert loaded.settings.traces_service_name == "shop recs"


@pytest.mark.parametrize(
    ("variables", "fault"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL is grpc.*http/protobuf.*4318"),
        ({"OTEL_TRACES_EXPORTER": "console"}, "OTEL_TRACES_EXPORTER is console.*GROUNDREC_TRACES=false"),
        ({"OTEL_TRACES_SAMPLER": "mine"}, r"traces_sampler \(environment OTEL_TRACES_SAMPLER\)"),
        ({"OTEL_TRACES_SAMPLER_ARG": "2"}, r"traces_sampler_arg \(environment OTEL_TRACES_SAMPLER_ARG\)"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, r"traces_endpoint .*ENDPOINT\): .*http://"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_variables_name(
    variables: dict[str, str], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match=fault):
        given(monkeypatch, **ON, **variables)


def test_the_exact_protocol_variable_beats_the_general_one(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    assert given(monkeypatch, **ON, **exact).settings.traces


def test_a_service_without_traces_does_not_import_them() -> None:
    """redis-py imports OpenTelemetry's interfaces wherever they are installed; what sends is ours alone."""
    code = "import sys, service.app; sys.exit(len({'service.otel_tracing', 'opentelemetry.exporter'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

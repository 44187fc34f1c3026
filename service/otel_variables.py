"""OpenTelemetry's own environment variables as values of our settings.

A platform sets them once for all its services, so they are read under their standard names; `settings` alone looks at
the environment and hands it in. Here are those that say where traces go and which; what is left (certificates,
compression, timeouts, OTEL_RESOURCE_ATTRIBUTES, OTEL_BSP_...) the OpenTelemetry SDK reads by itself.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from service.errors import SettingsError

EXPORTER, PROTOCOL = "OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_PROTOCOL"
# By setting: the variables that give it, the first that is set wins.
PLAIN = {
    "traces_headers": ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"),
    "traces_service_name": ("OTEL_SERVICE_NAME",),
    "traces_sampler": ("OTEL_TRACES_SAMPLER",),
    "traces_sampler_arg": ("OTEL_TRACES_SAMPLER_ARG",),
}


@dataclass(frozen=True, slots=True)
class Given:
    """A setting's value, and the variable it came from."""

    setting: str
    value: str
    variable: str


def otel_settings(environment: Mapping[str, str]) -> Iterator[Given]:
    """What the variables say.

    Raises:
        SettingsError: they ask for a way of sending that is not there.
    """
    _refuse_other_ways(environment)
    if exact := environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        yield Given("traces_endpoint", exact, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    elif base := environment.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        yield Given("traces_endpoint", base.rstrip("/") + "/v1/traces", "OTEL_EXPORTER_OTLP_ENDPOINT")
    for setting, variables in PLAIN.items():
        for variable in variables:
            if value := environment.get(variable):
                yield Given(setting, value, variable)
                break
    if not environment.get("OTEL_SERVICE_NAME") and (name := _service_name(environment)):
        yield Given("traces_service_name", name, "OTEL_RESOURCE_ATTRIBUTES")


def _refuse_other_ways(environment: Mapping[str, str]) -> None:
    off = "or turn traces off with GROUNDREC_TRACES=false"
    if (exporter := environment.get(EXPORTER, "otlp")) not in ("otlp", ""):
        raise SettingsError(f"{EXPORTER} is {exporter}; traces are sent by otlp alone: unset it, {off}")
    for variable in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", PROTOCOL):
        if protocol := environment.get(variable):
            if protocol != "http/protobuf":
                raise SettingsError(
                    f"{variable} is {protocol}; traces are sent by http/protobuf alone: set it so, with an endpoint "
                    f"that takes it (port 4318 of most collectors), {off}"
                )
            return


def _service_name(environment: Mapping[str, str]) -> str:
    pairs = (entry.partition("=") for entry in environment.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","))
    return next((unquote(value.strip()) for name, _, value in pairs if name.strip() == "service.name"), "")

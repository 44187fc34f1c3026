"""Every setting of the service, in one class, and the only reader of the process environment.

A value comes from the first of: command-line flag, environment (``GROUNDREC_<NAME>``), TOML file, for traces
OpenTelemetry's own variables (`otel_variables`; read only when traces are on), default. An unknown name is refused
with the nearest known one, because a misspelt limit that is silently ignored is found in production.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from service.api_keys import KeyEntry
from service.errors import SettingsError
from service.otel_variables import otel_settings

PREFIX = "GROUNDREC_"
# Read by others under our prefix: the configuration file's place, and the interpreter of the deploy scripts.
NOT_SETTINGS = {"config", "python"}

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Milliseconds = Annotated[int, Field(ge=1, le=600_000)]


class FurtherModel(BaseModel):
    """A checkpoint served beside the first one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    checkpoint: Path
    share: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] = 0.0
    shadow: bool = False


class Settings(BaseSettings):
    """What can be set; `load_settings` reads it."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    checkpoint: Path = Field(description="folder of the servable checkpoint")
    share: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] = Field(
        1.0, description="traffic of `checkpoint` beside the shares of `further_models`"
    )
    further_models: tuple[FurtherModel, ...] = Field(
        (), description="checkpoints served beside it: tables with checkpoint, share (0) and shadow (false)"
    )
    models_root: Path | None = Field(
        None, description="folder below which `POST /models` may open checkpoints; unset: that of `checkpoint`"
    )
    redis_url: SecretStr = Field(
        SecretStr("redis://127.0.0.1:6379/0"), description="Redis with the histories and the item log"
    )
    host: str = Field("127.0.0.1", description="address to listen on; beyond loopback, keys are needed")
    port: int = Field(8000, ge=1, le=65535, description="port to listen on")
    engine: Literal["vllm", "torch"] = Field("vllm", description="what runs the model; `torch` is the slow reference")
    engine_dtype: Literal["bfloat16", "float16", "float32"] | None = Field(
        None, description="number format of the model; unset: the checkpoint's"
    )
    max_batch_users: Count = Field(32, description="users the engine decodes together")
    kv_cache_gib: Positive = Field(1.0, description="memory for prompts that are running or cached, GiB")
    omp_threads: Count | None = Field(None, description="threads of the engine; unset: the cores this process may use")
    compile: bool = Field(False, description="compile the model at start: faster steps, a slower start, needs g++")
    compile_cache: Path = Field(
        Path("~/.cache/groundrec/compile"), description="folder that keeps what `compile` made for the next start"
    )
    tensor_parallel: Count = Field(1, description="GPUs that one model is spread over")
    max_beam_rows: Annotated[int, Field(ge=512)] = Field(
        1024, description="beams (the sum of the requests' widths) that the engine works on at once; more wait"
    )
    max_beam_tokens: Count = Field(32_768, description="prompt tokens that the engine works on at once; more wait")
    max_waiting_rows: Count = Field(
        2048, description="beams that may wait; then the newest of the widths that wait most are answered 503"
    )
    narrow_beams: bool = Field(
        False, description="halve a request's beams while others wait, never below its number of results"
    )
    beam_width: Annotated[int, Field(ge=1, le=512)] | None = Field(
        None, description="beams per request; unset: the checkpoint's"
    )
    max_inflight: Count = Field(64, description="requests at work at once; one more is answered 503 at once")
    max_connections: Count = Field(
        2048, description="connections open at once; for one more, the one that idled longest is closed, or it is 503"
    )
    request_timeout_ms: Milliseconds = Field(
        2000, description="deadline of a recommendation, queueing included; a request may ask for less"
    )
    items_timeout_ms: Milliseconds = Field(10_000, description="deadline of a POST /items")
    history_timeout_ms: Milliseconds = Field(50, description="how long a recommendation waits for Redis")
    history_max_items: Count = Field(200, description="items kept and read per user")
    history_ttl_days: Count = Field(90, description="days after which an untouched history is forgotten")
    event_weights: dict[str, Annotated[float, Field(ge=0, le=100)]] | None = Field(
        None, description="weight by kind of event; kinds of weight 0 enter no history; unset: the checkpoint's"
    )
    cold_new_share: Annotated[float, Field(ge=0, le=0.5)] = Field(
        0.1, description="share of new items among the popular ones that a user without a history gets"
    )
    feedback_max_entries: Annotated[int, Field(ge=0)] = Field(
        100_000, description="events, and served recommendations, kept in Redis for export; 0 keeps none"
    )
    auth: Literal["auto", "on", "off"] = Field(
        "auto", description="whether API keys are asked for; `auto`: if there are any, and beyond loopback always"
    )
    api_keys_file: Path | None = Field(None, description="TOML file of API keys, made by `groundrec keys create`")
    api_keys: tuple[KeyEntry, ...] = Field((), description="API keys given here, in the form of that file's tables")
    allow_volatile: bool = Field(False, description="accept a Redis that may lose acknowledged items")
    blend: bool = Field(
        True, description="rank with company and texts beside the model, if the checkpoint has weights for it"
    )
    new_item_share: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None,
        description="largest share of an answer's places that items newer than the model take; unset: the checkpoint's",
    )
    code_min_items: Annotated[int, Field(ge=2)] = Field(
        20, description="how many posted items of a kind that the codebooks do not know are worth a spare code"
    )
    open_codes_minutes: Positive | None = Field(
        None,
        description="time between looks for such kinds, each opening codes by itself; unset (best): only when told",
    )
    smoothing_boost: Positive | None = Field(
        None, description="factor on the probability that new items borrow; unset: the checkpoint's"
    )
    smoothing_temperature: Positive | None = Field(
        None, description="temperature of the cosines that new items borrow by; unset: the checkpoint's"
    )
    canary_seconds: Positive = Field(
        2.0, description="time between proofs that the engine decodes; three misses unready"
    )
    drain_seconds: Seconds = Field(5.0, description="time between SIGTERM and the closing of the port")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level that is logged")
    traces: bool = Field(False, description="send OpenTelemetry traces by OTLP; needs the extra `otel`")
    traces_endpoint: SecretStr = Field(
        SecretStr("http://127.0.0.1:4318/v1/traces"),
        description="where traces are sent (`OTEL_EXPORTER_OTLP_[TRACES_]ENDPOINT`)",
    )
    traces_headers: SecretStr = Field(
        SecretStr(""), description="what is sent along, `name=value,…` (`OTEL_EXPORTER_OTLP_[TRACES_]HEADERS`)"
    )
    traces_service_name: str = Field("groundrec", description="the service's name in traces (`OTEL_SERVICE_NAME`)")
    traces_sampler: Literal[
        "always_on",
        "always_off",
        "traceidratio",
        "parentbased_always_on",
        "parentbased_always_off",
        "parentbased_traceidratio",
    ] = Field("parentbased_always_on", description="which requests are traced (`OTEL_TRACES_SAMPLER`)")
    traces_sampler_arg: Annotated[float, Field(ge=0, le=1)] = Field(
        1.0, description="share of them, for the samplers by `traceidratio` (`OTEL_TRACES_SAMPLER_ARG`)"
    )

    @property
    def checkpoints(self) -> list[Path]:
        """All that are served from the start."""
        return [self.checkpoint, *(entry.checkpoint for entry in self.further_models)]

    @field_validator("traces_endpoint")
    @classmethod
    def _is_url(cls, value: SecretStr) -> SecretStr:
        if not value.get_secret_value().startswith(("http://", "https://")):
            raise ValueError(
                "a URL that begins with http:// or https:// is needed, e.g. http://collector:4318/v1/traces"
            )
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what is passed: `load_settings` merges the sources itself, to know where each value came from."""
        return (init_settings,)


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings and, by field, where each value came from."""

    settings: Settings
    origin: Mapping[str, str]

    def lines(self) -> Iterable[str]:
        """One ``name = value  (origin)`` per field; secrets are masked."""
        for name in Settings.model_fields:
            shown = _shown(name, getattr(self.settings, name))
            yield f"{name} = {shown}  ({self.origin.get(name, 'default')})"


def load_settings(flags: Mapping[str, Any], config: Path | None = None) -> LoadedSettings:
    """Merge flags (None means not given), environment, TOML file, OpenTelemetry's variables and defaults.

    Raises:
        SettingsError: a name is unknown, a value is wrong or the file cannot be read.
    """
    _refuse_unknown((name.removeprefix(PREFIX).lower() for name in os.environ if name.startswith(PREFIX)), PREFIX)
    path = config or (Path(os.environ[f"{PREFIX}CONFIG"]) if f"{PREFIX}CONFIG" in os.environ else None)
    try:
        environment = EnvSettingsSource(Settings)()
    except ValueError as error:  # its message names the field, its cause what is wrong with the JSON
        raise SettingsError(f"environment: {error}: {error.__cause__ or 'not JSON'}") from None
    sources = {
        f"file {path}": _read_file(path) if path else {},
        "environment": environment,
        "flag": {name: value for name, value in flags.items() if value is not None},
    }
    loaded = _merge(sources)
    if not loaded.settings.traces:
        return loaded
    given = {f"environment {one.variable}": {one.setting: one.value} for one in otel_settings(os.environ)}
    return _merge(given | sources)


def _merge(sources: Mapping[str, Mapping[str, Any]]) -> LoadedSettings:
    """The settings of several sources, the last of which wins."""
    merged = {name: value for values in sources.values() for name, value in values.items()}
    origin = {name: source for source, values in sources.items() for name in values}
    try:
        return LoadedSettings(Settings(**merged), origin)
    except ValidationError as error:
        raise SettingsError(_explain(error, origin)) from None


def _shown(name: str, value: Any) -> Any:
    """A value without its secrets: those of a URL are cut out of it, others are not shown at all."""
    if not isinstance(value, SecretStr):
        return value
    text = value.get_secret_value()
    return masked_url(text) if name.endswith(("_url", "_endpoint")) else "***" if text else ""


def masked_url(url: str) -> str:
    """``url`` with its password replaced by ``***``, be it before the host or in the query."""
    url = re.sub(r"(password=)[^&]*", r"\1***", url)
    scheme, separator, rest = url.partition("://")
    credentials, at, place = rest.rpartition("@")
    if not separator or not at:
        return url
    user, colon, _ = credentials.partition(":")
    return f"{scheme}://{user}{colon}{'***' if colon else ''}@{place}"


def _read_file(path: Path) -> dict[str, Any]:
    try:
        values = TomlConfigSettingsSource(Settings, path).toml_data if path.is_file() else None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path}: not a readable TOML file: {error}") from None
    if values is None:
        raise SettingsError(f"{path}: no such file; --config and {PREFIX}CONFIG name a TOML file")
    _refuse_unknown(values, f"{path}: ")
    return values


def _refuse_unknown(names: Iterable[str], place: str) -> None:
    known: type[BaseModel] = Settings
    for name in names:
        if name in known.model_fields or (place == PREFIX and name in NOT_SETTINGS):
            continue
        near = difflib.get_close_matches(name, known.model_fields, n=1, cutoff=0.5)
        shown = [PREFIX + each.upper() if place == PREFIX else each for each in (name, *near)]
        hint = f"; did you mean {shown[1]}?" if near else "; see service/README.md"
        raise SettingsError(f"{'' if place == PREFIX else place}{shown[0]} is not a setting{hint}")


def _explain(error: ValidationError, origin: Mapping[str, str]) -> str:
    first = error.errors(include_input=False, include_url=False)[0]
    name = str(first["loc"][0])
    if first["type"] == "missing":
        return f"{name} is not set; give --{name.replace('_', '-')} or {PREFIX}{name.upper()}"
    place = ".".join(map(str, first["loc"]))
    return f"{place} ({origin.get(name, 'default')}): {first['msg']}"

"""The compose file: known to the Compose specification, its services closed down, its Redis one the service accepts."""

import json
import re
from pathlib import Path
from typing import Any

import compose_spec
import pytest
import yaml

from service.otel_variables import otel_settings
from service.settings import Settings

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
# What `docker compose` does first: ${NAME:-default} becomes the default.
TEXT = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (DEPLOY / "compose.yaml").read_text("utf-8"))
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def validate(text: str) -> None:
    project = compose_spec.PyCompose.from_json(json.dumps(yaml.safe_load(text)))
    project.validate()
    project.to_spec()


def test_the_file_follows_the_compose_specification() -> None:
    validate(TEXT)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("restart: on-failure", "restart: sometimes"),
        ("condition: service_healthy", "condition: service_helthy"),
        ("aliases: [groundrec]", "aliases: groundrec"),
    ],
)
def test_a_mistake_in_it_would_be_noticed(right: str, wrong: str) -> None:
    assert right in TEXT
    with pytest.raises(ValueError, match=r"\w"):
        validate(TEXT.replace(right, wrong))


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_closed_down(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "network_mode", "pid", "ipc", "cap_add"} & set(service)
    assert all(str(port).startswith("127.0.0.1:") for port in service.get("ports", []))


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_is_pinned_or_built_here(name: str) -> None:
    image = SERVICES[name]["image"]
    assert "build" in SERVICES[name] or re.search(r":v?\d+\.\d+\.\d+", image), image


def test_redis_keeps_posted_items_and_is_waited_for() -> None:
    command = " ".join(SERVICES["redis"]["command"])
    assert "--appendonly yes" in command
    assert "--maxmemory-policy noeviction" in command
    assert "ports" not in SERVICES["redis"]
    for name in ("cpu", "gpu"):
        assert SERVICES[name]["depends_on"] == {"redis": {"condition": "service_healthy"}}


@pytest.mark.parametrize(("name", "target"), [("cpu", "cpu"), ("gpu", "runtime")])
def test_the_service_is_built_from_the_dockerfiles_targets(name: str, target: str) -> None:
    build = SERVICES[name]["build"]
    assert build["target"] == target
    assert re.search(rf"^FROM \S+ AS {target}$", (DEPLOY.parent / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert (DEPLOY / build["context"]).resolve() == DEPLOY.parent


def test_the_environment_holds_settings_of_the_service_only() -> None:
    names = set(SERVICES["cpu"]["environment"])
    ours = {name.removeprefix("GROUNDREC_").lower() for name in names if name.startswith("GROUNDREC_")}
    assert ours <= set(Settings.model_fields)
    assert names - {f"GROUNDREC_{name.upper()}" for name in ours} == {"OTEL_EXPORTER_OTLP_ENDPOINT"}


def test_traces_are_off_until_asked_for_and_have_somewhere_to_go() -> None:
    environment = SERVICES["cpu"]["environment"]
    given = {one.setting: one.value for one in otel_settings(environment)}
    assert environment["GROUNDREC_TRACES"] == "false"
    assert given == {"traces_endpoint": "http://jaeger:4318/v1/traces"} and "jaeger" in SERVICES


def test_the_service_is_given_the_time_its_shutdown_takes() -> None:
    fields = Settings.model_fields
    needed = fields["drain_seconds"].default + fields["items_timeout_ms"].default / 1000 + 1
    assert int(SERVICES["cpu"]["stop_grace_period"].removesuffix("s")) > needed


def test_every_named_volume_is_declared() -> None:
    mounted = [volume for service in SERVICES.values() for volume in service.get("volumes", [])]
    named = {volume.split(":")[0] for volume in mounted if isinstance(volume, str) and volume[0] not in "./"}
    assert named == set(COMPOSE["volumes"])


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_the_service_has_the_shared_memory_that_vllm_asks_for(name: str) -> None:
    assert int(SERVICES[name]["shm_size"].removesuffix("m")) >= 160


def test_every_mounted_file_lies_in_the_repository() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            if isinstance(volume, str) and volume.startswith("./"):
                assert (DEPLOY / volume.split(":")[0]).exists(), volume

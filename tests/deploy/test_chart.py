"""The Helm chart: every example renders to objects that Kubernetes knows, and a mistake in the values is refused."""

from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml

from service import otel_tracing
from service.engine import vllm_engine
from service.otel_variables import otel_settings
from service.settings import Settings
from tests.deploy.chart import (
    CHART,
    EXAMPLES,
    FULLNAME,
    environment,
    example,
    minimal,
    notes,
    of_kind,
    render,
    service_container,
)

VERSIONS = ("1.28", "1.32", "1.37")
# Kinds of other projects, for which no schema is at hand: the tests below look at each by hand.
FOREIGN_KINDS = {"ServiceMonitor", "PrometheusRule", "ScaledObject", "HTTPRoute"}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_object_of_every_example_is_valid(name: str, version: str) -> None:
    foreign = set()
    for each in render(example(name)):
        if each["kind"] in FOREIGN_KINDS:
            foreign.add(each["kind"])
            continue
        kubernetes_validate.validate(each, version, strict=True)
    assert foreign <= FOREIGN_KINDS


def test_an_object_with_a_wrong_field_would_be_noticed() -> None:
    deployment = of_kind(render(minimal()), "Deployment")[FULLNAME]
    deployment["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, VERSIONS[-1], strict=True)


def test_the_examples_together_reach_every_template() -> None:
    kinds = {each["kind"] for name in EXAMPLES for each in render(example(name))}
    assert kinds >= FOREIGN_KINDS | {"Deployment", "StatefulSet", "Service", "ServiceAccount", "PodDisruptionBudget"}
    assert kinds >= {"HorizontalPodAutoscaler", "Ingress", "NetworkPolicy", "ConfigMap", "Pod"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_chart_passes_helms_own_lint(name: str) -> None:
    report = helm_python.lint(CHART, example(name), strict=True)
    assert report["total_charts_linted"] == 1
    assert not report["errors"]
    assert [each["error"] for each in report["messages"]] == ["icon is recommended"]


def test_the_packaged_chart_carries_the_alerts_and_the_dashboard(tmp_path: Any) -> None:
    archive = helm_python.package(CHART, destination=tmp_path)
    with helm_python.Chart.load(archive) as chart:
        assert {"files/alerts.yaml", "files/dashboard.json"} <= {each["name"] for each in chart.files}
        rendered = chart.render(example("cpu"), name="r")
    assert "GroundrecEngineDown" in rendered["groundrec/templates/monitoring.yaml"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "redis: name a Secret that holds the URL in redis.existingSecret.name"),
        (minimal(replicaCuont=3), "additional properties 'replicaCuont' not allowed"),
        (minimal(replicaCount="3"), "at '/replicaCount': got string, want integer"),
        (minimal(checkpoint={"source": "pvc"}), "checkpoint: source pvc needs checkpoint.pvc.claimName"),
        (minimal(checkpoint={"source": "s3"}), "at '/checkpoint/source': value must be one of"),
        (minimal(checkpoint={"source": "objectStore"}), "source objectStore needs checkpoint.objectStore.url"),
        (minimal(checkpoint={"source": "image"}), "source image needs checkpoint.image.reference"),
        (minimal(settings={"redis_url": "redis://:secret@host"}), "invalid propertyName 'redis_url'"),
        (minimal(settings={"api_keys": "secret"}), "invalid propertyName 'api_keys'"),
        (minimal(auth={"enabled": True}), "auth: name a Secret that holds the key file"),
        (minimal(settings={"auth": "off"}), "invalid propertyName 'auth'"),
        (minimal(settings={"traces_headers": "secret"}), "invalid propertyName 'traces_headers'"),
        (minimal(traces={"enabled": True}), "traces: set traces.endpoint"),
        (minimal(traces={"enabled": True, "endpoint": "http://c:4318/v1/traces"}), "without a path"),
        (minimal(traces={"sampler": "mine"}), "at '/traces/sampler': value must be one of"),
        (minimal(settings={"Max-Inflight": 3}), "invalid propertyName 'Max-Inflight'"),
        (minimal(settings={"max_inflight": [3]}), "at '/settings/max_inflight': got array"),
        (minimal(redis={"bundled": {"enabled": True}}), "password in redis.bundled.existingSecret.name"),
        (minimal(autoscaling={"type": "vpa"}), "at '/autoscaling/type': value must be one of"),
        (minimal(autoscaling={"type": "keda"}), "type keda needs autoscaling.prometheusAddress"),
        (minimal(autoscaling={"minReplicas": 9, "maxReplicas": 2}), "minReplicas is greater than maxReplicas"),
        (minimal(image={"digest": "sha256:short"}), "at '/image/digest'"),
        (minimal(canary={"weight": 101}), "at '/canary/weight': maximum"),
        (minimal(ingress={"enabled": True}), "ingress: set ingress.host"),
        (minimal(gateway={"enabled": True}), "gateway: name your Gateway"),
        (minimal(scratch={"tmp": "2 GB"}), "at '/scratch/tmp'"),
        (minimal(shutdown={"preStopSeconds": 0}), "at '/shutdown/preStopSeconds': minimum"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_in_the_values_is_refused_with_its_place(values: dict[str, Any], words: str) -> None:
    with pytest.raises(helm_python.HelmError) as refused:
        render(values)
    assert words in str(refused.value)


def test_the_defaults_are_complete_but_for_what_only_the_installer_knows() -> None:
    assert of_kind(render(minimal()), "Deployment")[FULLNAME]["spec"]["replicas"] == 2


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_setting_named_in_an_example_is_one(name: str) -> None:
    values = example(name)
    named = {*values.get("settings", {}), *values.get("canary", {}).get("settings", {})}
    assert named <= set(Settings.model_fields)
    for deployment in of_kind(render(values), "Deployment").values():
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        variables = {key for key in environment(container) if key.startswith("GROUNDREC_")}
        assert {key.removeprefix("GROUNDREC_").lower() for key in variables} <= set(Settings.model_fields)


def test_numbers_arrive_as_the_service_reads_them() -> None:
    settings = {"items_timeout_ms": 10_000_000, "kv_cache_gib": 0.5, "allow_volatile": True, "log_level": "debug"}
    variables = environment(service_container(render(minimal(settings=settings))))
    assert variables["GROUNDREC_ITEMS_TIMEOUT_MS"] == "10000000"
    assert variables["GROUNDREC_KV_CACHE_GIB"] == "0.5"
    assert variables["GROUNDREC_ALLOW_VOLATILE"] == "true"
    assert variables["GROUNDREC_LOG_LEVEL"] == "debug"


def test_a_service_called_groundrec_does_not_become_a_setting() -> None:
    """Kubernetes would set GROUNDREC_PORT=tcp://10.0.0.1:80 in every pod of the namespace."""
    for deployment in of_kind(render(minimal(fullnameOverride="groundrec")), "Deployment").values():
        assert deployment["spec"]["template"]["spec"]["enableServiceLinks"] is False


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        (minimal(), 5 + 5 + 10 + 1 + 15),
        (
            minimal(settings={"drain_seconds": 20, "items_timeout_ms": 1000, "request_timeout_ms": 4500}),
            5 + 20 + 5 + 1 + 15,
        ),
        (
            minimal(settings={"drain_seconds": 2.5}, shutdown={"preStopSeconds": 15, "marginSeconds": 0}),
            15 + 3 + 10 + 1,
        ),
    ],
)
def test_a_pod_is_given_the_time_its_own_shutdown_takes(values: dict[str, Any], seconds: int) -> None:
    pod = of_kind(render(values), "Deployment")[FULLNAME]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == seconds


def test_the_grace_period_reckons_with_the_services_own_defaults() -> None:
    fields = Settings.model_fields
    assert fields["drain_seconds"].default == 5
    assert max(fields["items_timeout_ms"].default, fields["request_timeout_ms"].default) == 10_000
    margin = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))["shutdown"]["marginSeconds"]
    assert margin > vllm_engine.CLOSING_SECONDS + otel_tracing.CLOSING_SECONDS


def test_the_probes_ask_the_right_routes_and_bear_a_slow_start() -> None:
    container = service_container(render(minimal()))
    paths = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/health/live", "liveness": "/health/live", "readiness": "/health/ready"}
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 1.4 * 200
    assert container["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "5"]


def test_a_pod_has_the_shared_memory_that_vllm_asks_for() -> None:
    volumes = of_kind(render(minimal()), "Deployment")[FULLNAME]["spec"]["template"]["spec"]["volumes"]
    shared = next(each["emptyDir"] for each in volumes if each["name"] == "shm")
    assert shared["medium"] == "Memory"
    assert int(shared["sizeLimit"].removesuffix("Mi")) >= 160


def test_a_rollout_never_has_fewer_replicas_than_before() -> None:
    strategy = of_kind(render(minimal()), "Deployment")[FULLNAME]["spec"]["strategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


def test_an_autoscaler_and_a_replica_count_do_not_fight() -> None:
    objects = render(example("cpu"))
    assert "replicas" not in of_kind(objects, "Deployment")[FULLNAME]["spec"]
    scaler = of_kind(objects, "HorizontalPodAutoscaler")[FULLNAME]["spec"]
    assert scaler["metrics"][0]["pods"]["target"] == {"type": "AverageValue", "averageValue": "320"}


def test_keda_asks_for_the_stable_replicas_of_this_release() -> None:
    scaled = of_kind(render(example("gpu")), "ScaledObject")[FULLNAME]["spec"]
    metric = example("gpu")["autoscaling"].get("metric", "rec_beam_rows")
    query = f'sum({metric}{{namespace="prod",service="{FULLNAME}",groundrec_track="stable"}})'
    assert scaled["triggers"][0]["metadata"]["query"] == query
    assert scaled["scaleTargetRef"] == {"name": FULLNAME}
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (2, 16)


def test_a_canary_serves_its_own_checkpoint_beside_the_stable_track() -> None:
    objects = render(example("gpu"))
    deployments = of_kind(objects, "Deployment")
    assert set(deployments) == {FULLNAME, f"{FULLNAME}-canary"}
    fetched = {
        name: each["spec"]["template"]["spec"]["initContainers"][0]["args"] for name, each in deployments.items()
    }
    assert ":s3:models/groundrec/2026-01-01" in fetched[FULLNAME]
    assert ":s3:models/groundrec/2026-02-01" in fetched[f"{FULLNAME}-canary"]
    stable, canary = (each["spec"]["selector"]["matchLabels"] for each in deployments.values())
    assert stable["groundrec/track"] == "stable"
    assert canary["groundrec/track"] == "canary"
    route = of_kind(objects, "HTTPRoute")[FULLNAME]["spec"]["rules"][0]["backendRefs"]
    assert [(each["name"], each["weight"]) for each in route] == [(f"{FULLNAME}-stable", 95), (f"{FULLNAME}-canary", 5)]
    services = of_kind(objects, "Service")
    assert "groundrec/track" not in services[FULLNAME]["spec"]["selector"]
    assert services[f"{FULLNAME}-canary"]["spec"]["selector"]["groundrec/track"] == "canary"


def test_each_track_is_scraped_once() -> None:
    objects = render(example("gpu"))
    wanted = of_kind(objects, "ServiceMonitor")[FULLNAME]["spec"]["selector"]["matchLabels"].items()
    scraped = [
        name for name, each in of_kind(objects, "Service").items() if wanted <= each["metadata"]["labels"].items()
    ]
    assert scraped == [FULLNAME]


def test_metrics_and_health_are_not_exposed_by_an_ingress_or_a_route() -> None:
    rule = of_kind(render(example("trial")), "Ingress")[FULLNAME]["spec"]["rules"][0]
    matches = of_kind(render(example("gpu")), "HTTPRoute")[FULLNAME]["spec"]["rules"][0]["matches"]
    exposed = {each["path"] for each in rule["http"]["paths"]} | {each["path"]["value"] for each in matches}
    assert exposed == {"/v1", "/recommend", "/items", "/events", "/users"}


def test_the_same_checkpoint_reaches_the_same_place_from_everywhere() -> None:
    for name in EXAMPLES:
        container = service_container(render(example(name)))
        mount = next(each for each in container["volumeMounts"] if each["name"] == "checkpoint")
        assert (mount["mountPath"], mount["readOnly"]) == ("/data/checkpoint", True)
        assert environment(container)["GROUNDREC_CHECKPOINT"] == "/data/checkpoint"


def test_keys_are_asked_for_and_come_from_a_secret_as_a_file() -> None:
    container = service_container(render(example("cpu")))
    variables = environment(container)
    assert variables["GROUNDREC_AUTH"] == "on"
    assert variables["GROUNDREC_API_KEYS_FILE"] == "/etc/groundrec/keys/keys.toml"
    assert "/etc/groundrec/keys" in [mount["mountPath"] for mount in container["volumeMounts"] if mount.get("readOnly")]
    assert environment(service_container(render(minimal())))["GROUNDREC_AUTH"] == "off"


@pytest.mark.parametrize(
    ("endpoint", "port"),
    [("http://c:4318", 4318), ("http://c.ns:4318/", 4318), ("https://c.example", 443), ("http://c", 80)],
)
def test_traces_are_off_until_asked_for_and_then_reach_the_collector_alone(endpoint: str, port: int) -> None:
    assert not [
        name for name in environment(service_container(render(minimal()))) if "TRACES" in name or "OTEL" in name
    ]
    peers: list[dict[str, Any]] = [{"podSelector": {}}]
    objects = render(minimal(traces={"enabled": True, "endpoint": endpoint}, networkPolicy={"traces": peers}))
    egress = of_kind(objects, "NetworkPolicy")[FULLNAME]["spec"]["egress"]
    assert {"ports": [{"port": port, "protocol": "TCP"}], "to": peers} in egress


def test_the_variables_of_traces_are_settings_the_service_accepts() -> None:
    values = minimal(traces={"enabled": True, "endpoint": "http://c:4318", "existingSecret": {"name": "s"}})
    variables = environment(service_container(render(values)))
    plain = {name: value for name, value in variables.items() if isinstance(value, str)}
    given = {one.setting: one.value for one in otel_settings(plain)}
    settings = Settings.model_validate({"checkpoint": "x", "traces": plain["GROUNDREC_TRACES"], **given})
    assert settings.traces and settings.traces_endpoint.get_secret_value() == "http://c:4318/v1/traces"
    assert (settings.traces_service_name, settings.traces_sampler_arg) == (FULLNAME, 0.1)
    assert variables["OTEL_EXPORTER_OTLP_HEADERS"] == {"secretKeyRef": {"name": "s", "key": "headers"}}
    assert "groundrec.track=stable" in plain["OTEL_RESOURCE_ATTRIBUTES"]


def test_a_model_over_two_gpus_claims_two() -> None:
    objects = render(minimal(gpu={"enabled": True}, settings={"tensor_parallel": 2}))
    assert service_container(objects)["resources"]["limits"]["nvidia.com/gpu"] == "2"


def test_a_digest_wins_over_a_tag_and_the_canarys_tag_over_both() -> None:
    digest = "sha256:" + "a" * 64
    values = minimal(image={"repository": "r", "tag": "1", "digest": digest})
    canary = {"canary": {"enabled": True, "image": {"tag": "2"}}}
    objects = render({**values, **canary})
    assert service_container(objects)["image"] == f"r@{digest}"
    assert service_container(objects, f"{FULLNAME}-canary")["image"] == "r:2"


def test_runbooks_can_live_where_the_installer_keeps_them() -> None:
    rules = of_kind(render(example("cpu")), "PrometheusRule")[FULLNAME]["spec"]["groups"]
    urls = [rule["annotations"]["runbook_url"] for group in rules for rule in group["rules"]]
    assert urls
    assert all(url.startswith("https://wiki.example/groundrec#groundrec") for url in urls)


def test_the_notes_warn_of_what_is_missing() -> None:
    assert "No API keys are set" in notes(minimal())
    assert "No API keys" not in notes(example("cpu"))
    assert "no NetworkPolicy limits" in notes(minimal(networkPolicy={"enabled": False}))
    assert "one process without failover" in notes(example("trial"))
    assert "5 % of the route's requests" in notes(example("gpu"))

"""What the chart grants a pod: nothing it does not need, in every example."""

from typing import Any

import pytest

from tests.deploy.chart import CHART, EXAMPLES, FULLNAME, environment, example, minimal, of_kind, pods, render

CONTAINERS = [
    pytest.param(pod, container, id=f"{name}-{owner}-{container['name']}")
    for name in EXAMPLES
    for owner, pod in pods(render(example(name)))
    for container in [*pod.get("initContainers", []), *pod["containers"]]
]
each_container = pytest.mark.parametrize(("pod", "container"), CONTAINERS)
SECRET_WORDS = ("password", "secret", "token", "api_key", "redis://")


@each_container
def test_runs_as_a_numeric_user_without_privileges(pod: Any, container: Any) -> None:
    shared, own = pod["securityContext"], container["securityContext"]
    assert shared["runAsNonRoot"] is True
    assert shared["runAsUser"] >= 999
    assert shared["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own["allowPrivilegeEscalation"] is False
    assert own["privileged"] is False
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert "runAsUser" not in own


@each_container
def test_writes_only_to_volumes_made_for_that(pod: Any, container: Any) -> None:
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    kinds = {volume["name"]: set(volume) - {"name"} for volume in pod.get("volumes", [])}
    for mount in container.get("volumeMounts", []):
        if not mount.get("readOnly") and mount["name"] != "data":
            assert kinds[mount["name"]] == {"emptyDir"}
    sized = [volume["emptyDir"] for volume in pod.get("volumes", []) if "emptyDir" in volume]
    assert all("sizeLimit" in each for each in sized)


@each_container
def test_has_no_token_no_host_and_a_memory_limit(pod: Any, container: Any) -> None:
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert not [volume for volume in pod.get("volumes", []) if "hostPath" in volume]
    assert "memory" in container["resources"]["limits"]
    assert not [port for port in container.get("ports", []) if "hostPort" in port]


@each_container
def test_no_secret_stands_in_a_value_an_argument_or_a_command(pod: Any, container: Any) -> None:
    for name, value in environment(container).items() if "env" in container else ():
        if name == "GROUNDREC_API_KEYS_FILE":
            assert value.startswith("/etc/groundrec/keys/")
        elif isinstance(value, str) and any(word in (name + value).lower() for word in SECRET_WORDS):
            assert value == f"redis://:$(REDIS_PASSWORD)@{FULLNAME}-redis:6379/0"
    words = " ".join([*container.get("command", []), *container.get("args", [])])
    assert "--requirepass" not in words


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_account_gets_no_token_and_no_role(name: str) -> None:
    objects = render(example(name))
    assert all(each["automountServiceAccountToken"] is False for each in of_kind(objects, "ServiceAccount").values())
    assert not {each["kind"] for each in objects} & {
        "Role",
        "ClusterRole",
        "RoleBinding",
        "ClusterRoleBinding",
        "Secret",
    }


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_network_is_closed_but_for_what_is_named(name: str) -> None:
    policy = of_kind(render(example(name)), "NetworkPolicy")[FULLNAME]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert [rule["ports"] for rule in policy["ingress"]] == [[{"port": "http", "protocol": "TCP"}]]
    allowed = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    assert allowed <= {53, 6379, 443, 4318}


def test_the_bundled_redis_is_reached_by_the_service_alone() -> None:
    policies = of_kind(render(example("trial")), "NetworkPolicy")
    redis = policies[f"{FULLNAME}-redis"]["spec"]
    assert redis["egress"] == []
    peers = [peer["podSelector"]["matchLabels"] for rule in redis["ingress"] for peer in rule["from"]]
    assert [peer["app.kubernetes.io/component"] for peer in peers] == ["service"]


def test_the_bundled_redis_keeps_what_it_acknowledged() -> None:
    stateful = of_kind(render(example("trial")), "StatefulSet")[f"{FULLNAME}-redis"]["spec"]
    script = stateful["template"]["spec"]["containers"][0]["command"][-1]
    assert "--appendonly yes" in script
    assert "--maxmemory-policy noeviction" in script
    assert stateful["volumeClaimTemplates"][0]["metadata"]["name"] == "data"


def test_the_defaults_hold_no_secret() -> None:
    text = (CHART / "values.yaml").read_text("utf-8")
    stripped = [line.partition("#")[0] for line in text.splitlines()]
    assert not [line for line in stripped if "redis://" in line or "password:" in line]


def test_a_gpu_is_claimed_only_when_asked_for() -> None:
    with_gpu, without = render(example("gpu")), render(minimal())
    claim = [
        pod["containers"][0]["resources"]["limits"].get("nvidia.com/gpu")
        for name, pod in pods(with_gpu)
        if name == FULLNAME
    ]
    assert claim == ["1"]
    assert all("nvidia.com/gpu" not in pod["containers"][0]["resources"]["limits"] for _, pod in pods(without))

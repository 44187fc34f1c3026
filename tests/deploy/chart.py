"""Renders the Helm chart with Helm's own library, offline, into Kubernetes objects."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python
import yaml

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "groundrec"
EXAMPLES = sorted(path.stem for path in (CHART / "examples").glob("*.yaml"))
RELEASE, NAMESPACE = "shop", "prod"
FULLNAME = "shop-groundrec"

Object = dict[str, Any]


def example(name: str) -> Object:
    """The values of one example."""
    values: Object = yaml.safe_load((CHART / "examples" / f"{name}.yaml").read_text("utf-8"))
    return values


def minimal(**values: Any) -> Object:
    """The least that renders, and what a test adds to it."""
    least: Object = {
        "checkpoint": {"source": "pvc", "pvc": {"claimName": "c"}},
        "redis": {"existingSecret": {"name": "r"}},
        "auth": {"enabled": False},
    }
    return least | values


def render(values: Mapping[str, Any]) -> list[Object]:
    """Every object of the chart; hooks too, notes not."""
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(dict(values), name=RELEASE, namespace=NAMESPACE)
    texts = (text for name, text in files.items() if name.endswith(".yaml"))
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def notes(values: Mapping[str, Any]) -> str:
    """What `helm install` says at the end."""
    with helm_python.Chart.load(CHART) as chart:
        return chart.render(dict(values), name=RELEASE, namespace=NAMESPACE)["groundrec/templates/NOTES.txt"]


def of_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    """The objects of a kind, by name."""
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


def pods(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """Each pod specification and the name of what makes it."""
    for each in objects:
        if each["kind"] == "Pod":
            yield each["metadata"]["name"], each["spec"]
        elif each["kind"] in {"Deployment", "StatefulSet"}:
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]


def service_container(objects: list[Object], name: str = FULLNAME) -> Object:
    """The container that runs the service."""
    container: Object = of_kind(objects, "Deployment")[name]["spec"]["template"]["spec"]["containers"][0]
    return container


def environment(container: Object) -> dict[str, Any]:
    """Variables by name: the value, or where it comes from."""
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}

"""Dashboard and alerts speak of metrics that exist, of alerts that fire, and of runbooks that are written."""

import json
import re
import runpy
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from service.metrics import Metrics

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"] for rule in group["rules"]
}
STORIES = (DEPLOY / "prometheus" / "alerts_test.yaml").read_text("utf-8")
DASHBOARD = json.loads((DEPLOY / "grafana" / "groundrec.json").read_text("utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
# Told by Kubernetes, not by us.
FOREIGN = {"container_memory_working_set_bytes"}
METRIC = re.compile(r"\b((?:rec|process|container|vllm)_[a-z_]+)\b")


def exposed() -> set[str]:
    """Every sample name that /metrics can show, and its family's."""
    metrics = Metrics()
    for collector in list(vars(metrics).values()):
        names = getattr(collector, "_labelnames", ())
        if names and hasattr(collector, "labels"):
            collector.labels(*("x" for _ in names))
    families = list(text_string_to_metric_families(generate_latest(metrics.registry).decode()))
    return {sample.name for family in families for sample in family.samples} | {"rec_build_info"}


EXPOSED = exposed()


def queries() -> Iterator[tuple[str, str]]:
    for panel in PANELS:
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])
    yield from ((name, rule["expr"]) for name, rule in RULES.items())


@pytest.mark.parametrize(("place", "query"), list(queries()), ids=lambda text: text[:30])
def test_every_metric_asked_for_exists(place: str, query: str) -> None:
    asked = set(METRIC.findall(query))
    assert asked, f"{place} asks for no metric"
    assert asked <= EXPOSED | FOREIGN, f"{place}: the service has no {asked - EXPOSED}"


def test_a_metric_that_is_gone_would_be_noticed() -> None:
    assert "rec_requests_total" in EXPOSED
    assert "rec_request_seconds_bucket" in EXPOSED
    assert "rec_requests_totall" not in EXPOSED


def test_the_label_values_in_the_queries_are_the_services() -> None:
    text = "".join(query for _, query in queries())
    outcomes = {"ok", "invalid", "unavailable", "error", "dropped"}
    used = {value for group in re.findall(r'outcome=~?"([^"]+)"', text) for value in group.split("|")}
    assert used <= outcomes
    source = (DEPLOY.parent / "service" / "api" / "middleware.py").read_text("utf-8")
    assert all(f'"{outcome}"' in source for outcome in outcomes)


def test_the_dashboard_is_what_its_table_makes() -> None:
    made = runpy.run_path(str(DEPLOY / "grafana" / "dashboard.py"))["dashboard"]()
    assert made == DASHBOARD, "run: python deploy/grafana/dashboard.py > deploy/grafana/groundrec.json"


def test_panels_have_a_meaning_and_do_not_overlap() -> None:
    assert all(panel["description"] for panel in PANELS)
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


@pytest.fixture(scope="module")
def promtool() -> str:
    answer = subprocess.run(["bash", str(DEPLOY / "promtool.sh")], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def ask(promtool: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([promtool, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_prometheus_accepts_its_configuration_and_the_rules(promtool: str) -> None:
    for arguments in (("rules", ALERTS), ("config", "--syntax-only", DEPLOY / "prometheus" / "prometheus.yml")):
        answer = ask(promtool, "check", *arguments)
        assert answer.returncode == 0, answer.stderr


def test_every_alert_fires_in_its_story_and_in_no_other(promtool: str) -> None:
    answer = ask(promtool, "test", "rules", DEPLOY / "prometheus" / "alerts_test.yaml")
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize("alert", RULES)
def test_every_alert_is_expected_to_fire_in_some_story(alert: str) -> None:
    assert re.search(rf'alertname="{alert}"[^}}]*}}\', value: 1', STORIES)


def test_a_story_fails_when_its_alert_stays_silent(promtool: str, tmp_path: Path) -> None:
    silenced = ALERTS.read_text("utf-8").replace("min by (namespace, instance) (rec_dependency_up", "min(rec_gone")
    stories = yaml.safe_load(STORIES)
    stories["tests"] = [story for story in stories["tests"] if story["name"] == "Redis goes away"]
    for rules, code in ((ALERTS.read_text("utf-8"), 0), (silenced, 1)):
        (tmp_path / "alerts.yaml").write_text(rules)
        (tmp_path / "alerts_test.yaml").write_text(yaml.safe_dump(stories))
        assert ask(promtool, "test", "rules", tmp_path / "alerts_test.yaml").returncode == code


@pytest.mark.parametrize("alert", RULES)
def test_every_alert_says_what_happened_and_where_to_read_on(alert: str) -> None:
    rule = RULES[alert]
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["runbook_url"] == f"deploy/README.md#{alert.lower()}"


@pytest.mark.parametrize("alert", RULES)
def test_every_runbook_tells_what_it_means_what_users_see_and_three_commands(alert: str) -> None:
    text = (DEPLOY / "README.md").read_text("utf-8")
    match = re.search(rf"^#### {alert}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert match, f"deploy/README.md has no heading {alert}"
    assert "**Users see**" in match[1]
    commands = re.search(r"```bash\n(.*?)```", match[1], re.DOTALL)
    assert commands
    assert len([line for line in commands[1].splitlines() if line.strip()]) >= 3


def test_no_runbook_is_left_over() -> None:
    text = (DEPLOY / "README.md").read_text("utf-8")
    assert set(re.findall(r"^#### (Groundrec\w+)$", text, re.MULTILINE)) == set(RULES)


def test_grafana_is_provisioned_with_the_dashboards_folder_and_source() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    provider = yaml.safe_load((provisioning / "dashboards" / "groundrec.yaml").read_text("utf-8"))["providers"][0]
    source = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text("utf-8"))["datasources"][0]
    compose = (DEPLOY / "compose.yaml").read_text("utf-8")
    assert f"/groundrec.json:{provider['options']['path']}/groundrec.json" in compose
    assert source["type"] == "prometheus"
    assert source["url"] == "http://prometheus:9090"

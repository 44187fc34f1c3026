"""The Grafana dashboard as a table of rows and panels; prints groundrec.json, which is what Grafana is given.

usage: python deploy/grafana/dashboard.py > deploy/grafana/groundrec.json

A table is read and reviewed in a minute, the thousand lines of JSON are not. Standard library only; every query names
metrics that tests/deploy/test_metrics_exist.py finds in the service.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

COLUMNS, HEIGHT = 24, 7
WHERE = 'namespace=~"$namespace"'
RECOMMEND = WHERE + ',route=~"/recommend.*"'


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph or number: title, what it means, queries by legend, unit, and limits that colour it."""

    title: str
    meaning: str
    queries: Mapping[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    limits: tuple[float, ...] = ()


def rate(metric: str, where: str = WHERE, by: str = "") -> str:
    """Events a second, summed over replicas."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{where}}}[$__rate_interval]))"


def quantile(share: float, metric: str, where: str = WHERE, by: str = "le") -> str:
    """A quantile of a histogram over all replicas."""
    return f"histogram_quantile({share}, {rate(f'{metric}_bucket', where, by)})"


def quantiles(metric: str, where: str = WHERE) -> dict[str, str]:
    """The three that tell a distribution."""
    return {f"p{share * 100:g}": quantile(share, metric, where) for share in (0.5, 0.95, 0.99)}


FAILED = rate("rec_requests_total", RECOMMEND + ',outcome=~"error|unavailable"')
ASKED = rate("rec_requests_total", RECOMMEND)
POPULAR = rate("rec_fallback_total", WHERE + ',reason!="cold_user"')
MONTH_FAILED = f'sum(increase(rec_requests_total{{{RECOMMEND},outcome=~"error|unavailable"}}[30d]))'
MONTH_ASKED = f"sum(increase(rec_requests_total{{{RECOMMEND}}}[30d]))"

ROWS: Mapping[str, Sequence[Panel]] = {
    "Promises": (
        Panel(
            "Answered",
            "Share of /recommend that was answered; promised: 99.9 %.",
            {"answered": f"1 - (({FAILED} or vector(0)) / {ASKED})"},
            "percentunit",
            "stat",
            (0.99, 0.999),
        ),
        Panel(
            "Error budget left, 30 days",
            "1 is untouched, 0 is used up.",
            {"left": f"1 - ({MONTH_FAILED} or vector(0)) / (0.001 * {MONTH_ASKED})"},
            "percentunit",
            "stat",
            (0.0, 0.25),
        ),
        Panel(
            "p99 of /recommend",
            "Latency of accepted requests.",
            {"p99": quantile(0.99, "rec_request_seconds", WHERE + ',route="/recommend"')},
            "s",
            "stat",
        ),
        Panel(
            "Answered by the model",
            "The rest got popular items; cold users are not counted.",
            {"model": f"1 - ({POPULAR} or vector(0)) / {ASKED}"},
            "percentunit",
            "stat",
            (0.9, 0.95),
        ),
        Panel(
            "Illegal SIDs",
            "SIDs answered that no item has; anything but 0 is a bug.",
            {"illegal": f"sum(rec_illegal_sid_total{{{WHERE}}})"},
            kind="stat",
        ),
        Panel(
            "Replicas",
            "Replicas scraped, and those whose engine answers.",
            {
                "scraped": f"count(rec_build_info{{{WHERE}}})",
                "engine up": f'sum(rec_dependency_up{{{WHERE},dependency="engine"}})',
            },
            kind="stat",
        ),
    ),
    "Traffic": (
        Panel(
            "Requests",
            "By route and outcome; `unavailable` is 503, `error` a bug, `dropped` a client that hung up.",
            {"{{route}} {{outcome}}": rate("rec_requests_total", by="route, outcome") + " > 0"},
            "reqps",
        ),
        Panel(
            "Latency of /recommend",
            "From the first byte in to the last one out.",
            quantiles("rec_request_seconds", WHERE + ',route="/recommend"'),
            "s",
        ),
        Panel(
            "Where the time goes",
            "p95 of each stage of a request or a post.",
            {"{{stage}}": quantile(0.95, "rec_stage_seconds", by="stage, le")},
            "s",
        ),
    ),
    "Load": (
        Panel(
            "Refused",
            "Requests refused unstarted, by reason.",
            {"{{reason}}": rate("rec_shed_total", by="reason")},
            "reqps",
        ),
        Panel(
            "Beam rows",
            "Beams at the engine and waiting for it; what admission and the autoscaler count.",
            {"{{state}}": f"sum by (state) (rec_beam_rows{{{WHERE}}})"},
        ),
        Panel(
            "At work",
            "Requests at work in each replica.",
            {"{{instance}}": f"sum by (instance) (rec_inflight{{{WHERE}}})"},
        ),
        Panel(
            "Answers without the model",
            "By reason; cold users are normal.",
            {"{{reason}}": rate("rec_fallback_total", by="reason")},
            "reqps",
        ),
    ),
    "Engine and dependencies": (
        Panel("Canary", "Time of the fixed prompt every two seconds.", quantiles("rec_engine_canary_seconds"), "s"),
        Panel(
            "Up",
            "1 while it answers.",
            {"{{dependency}} {{instance}}": f"rec_dependency_up{{{WHERE}}}"},
            "bool_on_off",
        ),
        Panel(
            "Circuits",
            "1 while a dependency is left alone after failures.",
            {"{{dependency}} {{instance}}": f"rec_circuit_open{{{WHERE}}}"},
            "bool_on_off",
        ),
    ),
    "Catalogue": (
        Panel("Items", "Items that can be recommended.", {"{{instance}}": f"rec_catalog_items{{{WHERE}}}"}),
        Panel(
            "Version",
            "Entries of the item log applied; replicas of a track are equal but for a second.",
            {"{{groundrec_track}} {{instance}}": f"rec_catalog_version{{{WHERE}}}"},
        ),
        Panel("Posted items", "By result.", {"{{result}}": rate("rec_items_total", by="result")}, "cps"),
        Panel("Grounding", "Text to Semantic ID, per call.", quantiles("rec_item_grounding_seconds"), "s"),
        Panel("New-item lag", "From the log to recommendable.", quantiles("rec_item_visible_lag_seconds"), "s"),
    ),
    "Memory": (
        Panel(
            "Resident memory of the API process",
            "Its slope matters, not its level.",
            {"{{instance}}": f"process_resident_memory_bytes{{{WHERE}}} and on (instance) rec_build_info"},
            "bytes",
        ),
        Panel(
            "Memory of the container",
            "API and engine process, as the node sees them.",
            {"{{pod}}": f'sum by (pod) (container_memory_working_set_bytes{{{WHERE},container="service"}})'},
            "bytes",
        ),
        Panel(
            "Open files",
            "File descriptors of the API process; flat.",
            {"{{instance}}": f"process_open_fds{{{WHERE}}} and on (instance) rec_build_info"},
        ),
    ),
}


def dashboard() -> dict[str, object]:
    """The document that Grafana reads."""
    panels: list[dict[str, object]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append(
            {
                "type": "row",
                "title": title,
                "collapsed": False,
                "id": len(panels) + 1,
                "gridPos": place(top, 0, COLUMNS, 1),
            }
        )
        width = COLUMNS // len(row)
        for index, panel in enumerate(row):
            panels.append(
                {"id": len(panels) + 1, "gridPos": place(top + 1, index * width, width, HEIGHT), **drawn(panel)}
            )
        top += 1 + HEIGHT
    return {
        "uid": "groundrec",
        "title": "groundrec",
        "tags": ["groundrec"],
        "editable": False,
        "schemaVersion": 41,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [datasource_variable(), namespace_variable()]},
        "panels": panels,
    }


def place(top: int, left: int, width: int, height: int) -> dict[str, int]:
    """Where a panel lies on Grafana's grid of 24 columns."""
    return {"x": left, "y": top, "w": width, "h": height}


def drawn(panel: Panel) -> dict[str, object]:
    """One panel as Grafana writes it."""
    colours = ("red", "orange", "green") if panel.limits else ("green",)
    steps = [{"color": colour, "value": value} for colour, value in zip(colours, (None, *panel.limits), strict=True)]
    targets = [
        {"refId": chr(65 + index), "expr": query, "legendFormat": legend}
        for index, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.meaning,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "targets": targets,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
    }


def datasource_variable() -> dict[str, object]:
    """Which Prometheus."""
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def namespace_variable() -> dict[str, object]:
    """Which installation; outside Kubernetes there is no namespace, and All matches that too."""
    return {
        "name": "namespace",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": "label_values(rec_build_info, namespace)", "refId": "namespace"},
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=1))

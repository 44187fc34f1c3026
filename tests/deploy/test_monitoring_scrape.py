"""Dashboard and alerts against what a running service really says at /metrics, labels and all."""

import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from service.api_keys import KeyEntry, digest
from service.errors import EngineError, OverloadedError
from service.lane_assembly import Parts
from service.model.checkpoint import Checkpoint
from service.settings import Settings
from service.stores.memory import MemoryHistory
from service.stores.memory_feedback import MemoryFeedback
from service.stores.memory_items import MemoryItemLog
from tests.deploy.test_monitoring import ALERTS, FOREIGN, queries
from tests.live_service import live_service
from tests.service_doubles import FakeEncoder, FakeEngine

SELECTOR = re.compile(r"\b((?:rec|process)_[a-z_]+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
GROUPING = re.compile(r"\bby \(([^)]*)\)")
# Given to every sample by whoever scrapes it, and by recording `ALERTS`.
TARGET_LABELS = {"namespace", "instance", "pod", "container", "groundrec_track"}
REQUESTS = "rec_requests_total"
KEY, HASTY = "groundrec_all", "groundrec_hasty"
KEYS = (
    KeyEntry(name="all", scopes=("admin",), sha256=(digest(KEY),)),
    KeyEntry(name="hasty", scopes=("recommend",), sha256=(digest(HASTY),), requests_per_second=0.01, burst=1),
)


class Replica:
    """A service behind a port, and what its engine is told to do."""

    def __init__(self, url: str, engine: FakeEngine) -> None:
        self.url, self.engine = url, engine
        self._client = httpx.Client(base_url=url, timeout=60)

    def scrape(self) -> list[Sample]:
        text = self._client.get("/metrics").text
        return [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def post(self, path: str, body: object, key: str = KEY) -> int:
        return self._client.post(path, json=body, headers={"authorization": f"Bearer {key}"}).status_code

    def say_too_much(self) -> None:
        """A head that never ends."""
        place = urlsplit(self.url)
        with socket.create_connection((place.hostname, place.port)) as talk:
            talk.sendall(b"GET / HTTP/1.1\r\n" + b"x-a: 1\r\n" * 10_000)
            while talk.recv(4096):
                pass

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def replica(checkpoint: Checkpoint) -> Iterator[Replica]:
    engine = FakeEngine(checkpoint)
    parts = Parts(engine, FakeEncoder(checkpoint), MemoryItemLog(), MemoryHistory(), MemoryFeedback())
    settings = Settings.model_validate(
        {"checkpoint": checkpoint.folder, "allow_volatile": True, "api_keys": KEYS, "canary_seconds": 600}
    )
    with live_service(settings, parts) as url:
        started = Replica(url, engine)
        yield started
        started.close()


def live_through_everything(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the queries tell apart happens once."""
    assert replica.post("/recommend", {"history": ["item-3"]}) == 200
    assert replica.post("/recommend", {"user_id": "nobody"}) == 200
    assert replica.post("/recommend", {"wrong": 1}) == 422
    assert [replica.post("/recommend", {"user_id": "u"}, HASTY) for _ in range(3)][-1] == 429
    assert replica.post("/items", [{"item_id": "a", "title": "A"}, {"item_id": "b", "title": "\u200b"}]) == 200
    replica.engine.failure = EngineError("gone")
    assert replica.post("/recommend", {"history": ["item-3"]}) == 200
    replica.say_too_much()
    with monkeypatch.context() as broken:
        broken.setattr("service.recommend.Recommender._history", lambda *_: 1 / 0)
        assert replica.post("/recommend", {"history": ["item-3"]}) == 500
    with monkeypatch.context() as full:
        full.setattr("service.admission.Admission.enter", refuse)
        assert replica.post("/recommend", {"history": ["item-3"]}) == 503


def refuse(*_: object) -> None:
    raise OverloadedError("full")


def faults(query: str, samples: list[Sample]) -> Iterator[str]:
    """What a query asks for that no sample has."""
    grouped = {label.strip() for labels in GROUPING.findall(query) for label in labels.split(",")} - {"le"}
    for name, matchers in SELECTOR.findall(query):
        found = [sample for sample in samples if sample.name == name]
        if not found:
            yield f"{name} is not exposed"
        labels = {label for sample in found for label in sample.labels} | TARGET_LABELS
        yield from (f"{name} has no label {label}" for label in grouped - labels)
        for label, operator, value in MATCHER.findall(matchers):
            if label in TARGET_LABELS:
                continue
            values = {sample.labels.get(label) for sample in found}
            for one in value.split("|"):
                if not any(given is not None and re.fullmatch(one, given) for given in values):
                    yield f'{name} has never {label}{operator}"{one}"'


def test_every_metric_label_and_value_in_a_query_is_in_a_scrape(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    live_through_everything(replica, monkeypatch)
    samples = replica.scrape()
    asked = [(place, query) for place, query in queries() if not FOREIGN & set(re.findall(r"\w+", query))]
    assert len(asked) > 40
    assert [(place, fault) for place, query in asked for fault in faults(query, samples)] == []


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("rec_gone", "rec_gone is not exposed"),
        ("sum by (rout) (rec_requests_total)", "rec_requests_total has no label rout"),
        ('rec_requests_total{outcome="fine"}', 'rec_requests_total has never outcome="fine"'),
        ('rec_requests_total{outcome=~"ok|fine"}', 'rec_requests_total has never outcome=~"fine"'),
    ],
)
def test_what_is_not_there_would_be_noticed(query: str, fault: str, replica: Replica) -> None:
    assert replica.post("/recommend", {"history": ["item-3"]}) == 200
    assert list(faults(query, replica.scrape())) == [fault]


def firing(samples: list[Sample], folder: Path) -> str:
    """What promtool says when nothing moves for three hours, where no alert may fire."""
    series = [
        {
            "series": sample.name
            + "{"
            + ",".join(f'{k}="{v}"' for k, v in {**sample.labels, "namespace": "n", "instance": "a"}.items())
            + "}",
            "values": f"{sample.value:g}x180",
        }
        for sample in samples
        if sample.name.startswith(("rec_", "process_")) and sample.value < float("inf")
    ]
    expected = {"expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "eval_time": "170m", "exp_samples": []}
    story = {"name": "idle", "interval": "1m", "input_series": series, "promql_expr_test": [expected]}
    tests = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [story]}
    (folder / "tests.yaml").write_text(yaml.safe_dump(tests))
    promtool = subprocess.run(
        ["bash", str(ALERTS.parents[1] / "promtool.sh")], capture_output=True, text=True, check=True
    )
    command = [promtool.stdout.strip(), "test", "rules", str(folder / "tests.yaml")]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if answer.returncode == 0 else answer.stdout + answer.stderr


def test_a_fresh_replica_that_nobody_asks_anything_raises_no_alarm(replica: Replica, tmp_path: Path) -> None:
    assert firing(replica.scrape(), tmp_path) == ""


def test_an_alarm_would_be_noticed(replica: Replica, tmp_path: Path) -> None:
    down = Sample("rec_dependency_up", {"dependency": "redis"}, 0.0)
    assert "GroundrecStorageDown" in firing([*replica.scrape(), down], tmp_path)


def test_the_first_bug_is_an_increase(replica: Replica) -> None:
    """A series that begins with its first event never rose: it must be there, at 0, before."""
    before = {(s.labels["route"], s.labels["outcome"]): s.value for s in replica.scrape() if s.name == REQUESTS}
    for route in ("/recommend", "/recommend:batch", "/items", "/events"):
        for outcome in ("error", "unavailable"):
            assert before[route, outcome] == 0

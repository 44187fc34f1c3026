"""A benchmark without engines: answers made up, children that are objects, options that touch no disk."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtest.engine.bench import BenchOptions
from loadtest.engine.contender import Answer, Batch, Host, HostSpec
from service.model.semantic_ids import Sid


def options(**changes: Any) -> BenchOptions:
    wanted: dict[str, Any] = {"preset": "smoke", "work": Path("/nonexistent")}
    return BenchOptions(**(wanted | changes))


def spec(**changes: Any) -> HostSpec:
    wanted: dict[str, Any] = {
        "kind": "ours",
        "checkpoint": "",
        "compiled": False,
        "dtype": "float32",
        "threads": 1,
        "max_users": 8,
        "max_tokens": 128,
        "kv_gib": 0.25,
    }
    return HostSpec(**(wanted | changes))


class Parrot:
    """Answers the same SIDs to everybody; remembers what it was asked."""

    def __init__(self, sids: Sequence[Sid]) -> None:
        self._sids = tuple(sids)
        self.prepared: list[Batch] = []

    def prepare(self, batch: Batch) -> None:
        self.prepared.append(batch)

    def run(self, batch: Batch) -> list[Answer]:
        if batch.beam > 100:
            raise ValueError("too wide\nfor a parrot")
        scores = tuple(-float(rank) for rank in range(len(self._sids)))
        print("libraries print to standard output")
        return [Answer(self._sids, scores) for _ in batch.prompts]


def open_host(spec: HostSpec) -> Host:
    """What `loadtest.engine.child` builds when its table of hosts names this module."""
    if spec.checkpoint == "broken":
        raise RuntimeError("no such engine")
    return Host({"ours": Parrot([(1, 2), (3, 4)])}, {"double": lambda number: {"number": 2 * number}})

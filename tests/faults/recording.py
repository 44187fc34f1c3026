"""What /metrics of every replica said during a drill, once a second: what a Prometheus there would have seen."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.faults.stage import Replica

SCRAPE_SECONDS = 1.0
PREFIXES = ("rec_", "process_resident_memory_bytes")
# the labels that a scrape adds
TARGET = {"job": "groundrec", "namespace": "drills", "groundrec_track": "stable"}


@dataclass(slots=True)
class Recording:
    """``scrapes``: values by series as PromQL writes it, scrape by scrape; a replica that is silent adds none."""

    drill: str
    scrapes: list[dict[str, float]] = field(default_factory=list)

    def rows(self) -> list[tuple[str, list[float | None]]]:
        """Each series with its value at every scrape, None where it was not there."""
        names = dict.fromkeys(name for scrape in self.scrapes for name in scrape)
        return [(name, [scrape.get(name) for scrape in self.scrapes]) for name in names]


class Recorder:
    """An async context that fills a recording."""

    def __init__(self, recording: Recording, replicas: Sequence[Replica]) -> None:
        self._recording, self._replicas = recording, replicas

    async def __aenter__(self) -> "Recorder":
        self._work = asyncio.create_task(self._record())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)

    async def _record(self) -> None:
        async with httpx.AsyncClient(timeout=SCRAPE_SECONDS) as client:
            while True:
                pause = asyncio.create_task(asyncio.sleep(SCRAPE_SECONDS))
                found = await asyncio.gather(*(_scrape(client, replica) for replica in self._replicas))
                self._recording.scrapes.append({name: value for part in found for name, value in part.items()})
                await pause


async def _scrape(client: httpx.AsyncClient, replica: Replica) -> dict[str, float]:
    try:
        text = (await client.get(f"{replica.url}/metrics")).text
    except httpx.HTTPError:
        return {}
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    instance = replica.folder.name
    return {_series(sample, instance): sample.value for sample in samples if sample.name.startswith(PREFIXES)}


def _series(sample: Sample, instance: str) -> str:
    labels = {**sample.labels, **TARGET, "instance": instance}
    return sample.name + "{" + ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items()) + "}"

"""Does the running engine stay right and its memory flat: ``python -m loadtest.engine_soak --requests 100000``.

Random requests (widths 1..512, filters, exclusions, histories) while SIDs are added and removed underneath. Every
answer is checked against the catalogue version it was admitted under: no illegal, repeated, excluded or filtered SID,
none missing while legal ones are left. Resident memory of both processes is sampled; the slope over the second half
says whether it grows. The figures are one JSON object on the last line; the exit code is 1 if an answer was wrong.

Shapes: N trained SIDs, S slots, L levels.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from loadtest.synthetic_checkpoint import Backbone, MemorySize, SyntheticCheckpoint, build_synthetic
from service.engine.base import BeamAnswer, BeamRequest, CatalogDelta, EngineOptions, LegalSlots
from service.engine.vllm_engine import VllmEngine, start_vllm_engine
from service.model.checkpoint import Checkpoint, open_checkpoint
from service.model.semantic_ids import Sid, SidSpace

TINY = SyntheticCheckpoint(
    Backbone(
        "llama",
        128,
        {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "max_position_embeddings": 512,
            "tie_word_embeddings": True,
        },
    ),
    levels=4,
    codes=32,
    items=5000,
    max_items=30,
    memory=MemorySize(heads=2, width=16, max_rows=4096),
)


@dataclass(slots=True)
class Findings:
    """What was wrong, in SIDs; ``short`` counts answers that lack SIDs although legal ones were left."""

    answers: int = 0
    sids: int = 0
    illegal: int = 0
    repeated: int = 0
    excluded: int = 0
    filtered: int = 0
    short: int = 0
    unsorted: int = 0

    @property
    def wrong(self) -> int:
        """All of it together; must be 0."""
        return self.illegal + self.repeated + self.excluded + self.filtered + self.short + self.unsorted


@dataclass(slots=True)
class LiveSids:
    """The SIDs of the last versions, counted in slots as the engine counts them."""

    slots: list[Sid]
    alive: dict[int, NDArray[np.bool_]]
    latest: int = 0
    slot_of: dict[Sid, int] = field(default_factory=dict)

    @classmethod
    def of(cls, codes_NL: NDArray[np.integer]) -> "LiveSids":
        """Version 0."""
        slots = [tuple(sid) for sid in np.unique(codes_NL, axis=0).tolist()]
        return cls(slots, {0: np.ones(len(slots), bool)}, 0, {sid: slot for slot, sid in enumerate(slots)})

    def change(
        self, random: np.random.Generator, space: SidSpace, count: int
    ) -> tuple[CatalogDelta, NDArray[np.bool_]]:
        """A delta that removes ``count`` SIDs, brings as many back and adds as many that never were."""
        alive_S = self.alive[self.latest]
        removed = random.choice(np.flatnonzero(alive_S), count, replace=False)
        dead = np.flatnonzero(~alive_S)
        back = random.choice(dead, min(count, len(dead)), replace=False) if len(dead) else dead
        drawn = {tuple(sid) for sid in random.integers(0, space.codes, (count, space.levels)).tolist()}
        new = sorted(sid for sid in drawn if sid not in self.slot_of)
        for sid in new:
            self.slot_of[sid] = len(self.slots)
            self.slots.append(sid)
        following_S = np.concatenate([alive_S, np.ones(len(new), bool)])
        following_S[removed], following_S[back] = False, True
        added = [self.slots[slot] for slot in back] + new
        version = self.latest + int(random.integers(1, 4))
        return CatalogDelta(version, self.latest, added, [self.slots[slot] for slot in removed]), following_S

    def publish(self, version: int, alive_S: NDArray[np.bool_]) -> None:
        """Let requests name the version; older ones are forgotten as the engine forgets them."""
        self.alive[version], self.latest = alive_S, version
        for old in sorted(self.alive)[:-16]:
            del self.alive[old]


class Soak:
    """Asks, changes and checks."""

    def __init__(self, engine: VllmEngine, checkpoint: Checkpoint, sids: LiveSids, seed: int) -> None:
        self._engine = engine
        self._checkpoint = checkpoint
        self._sids = sids
        self._random = np.random.default_rng(seed)
        self._asked = 0
        self.findings = Findings()

    async def run(self, requests: int, concurrency: int, change_every: int, samples: int) -> list[tuple[int, int, int]]:
        """Ask so often; (answers, KiB of the engine, KiB of this process) in ``samples`` places."""
        memory: list[tuple[int, int, int]] = []
        step = max(requests // samples, 1)

        async def ask() -> None:
            while self._asked < requests:
                self._asked += 1
                number = self._asked
                await self._ask(number)
                if number % change_every == 0:
                    await self._change()
                if self.findings.answers % step == 0:
                    memory.append((self.findings.answers, resident_kib(self._engine.pid), resident_kib("self")))

        await asyncio.gather(*[ask() for _ in range(concurrency)])
        return memory

    async def _ask(self, number: int) -> None:
        version = self._sids.latest
        alive_S = self._sids.alive[version]
        request, allowed_S = self._request(version, alive_S)
        answer = await self._engine.recommend(str(number), request)
        self._check(request, answer, alive_S, allowed_S)

    def _request(self, version: int, alive_S: NDArray[np.bool_]) -> tuple[BeamRequest, NDArray[np.bool_]]:
        random, space = self._random, self._checkpoint.space
        history = random.integers(0, space.codes, (int(random.integers(1, 20)), space.levels)).tolist()
        width = int(round(2 ** random.uniform(0, 9)))
        slots = random.choice(np.flatnonzero(alive_S), int(random.integers(0, 40)), replace=False)
        allowed_S, legal = alive_S.copy(), None
        if random.random() < 0.4:
            mask_S = random.random(len(alive_S)) < 10 ** random.uniform(-3, 0)
            legal = LegalSlots.of(f"{version}:{random.integers(1 << 60)}", mask_S & alive_S)
            allowed_S &= mask_S
        allowed_S[slots] = False
        excluded = [self._sids.slots[slot] for slot in slots]
        prompt = self._checkpoint.prompt.build([tuple(sid) for sid in history], self._titles(len(history)))
        return BeamRequest(prompt, width, version, excluded, legal), allowed_S

    def _titles(self, items: int) -> list[list[int]]:
        """Any text tokens, as many as a prompt shows of a title or fewer; none for a checkpoint without titles."""
        most, words = self._checkpoint.prompt.title_tokens, self._checkpoint.space.first_token_id
        if not most:
            return []
        lengths = self._random.integers(0, most, items, endpoint=True)
        return [self._random.integers(0, words, length).tolist() for length in lengths]

    def _check(
        self, request: BeamRequest, answer: BeamAnswer, alive_S: NDArray[np.bool_], allowed_S: NDArray[np.bool_]
    ) -> None:
        found, slots = self.findings, [self._sids.slot_of.get(sid, -1) for sid in answer.sids]
        known = [0 <= slot < len(alive_S) and bool(alive_S[slot]) for slot in slots]
        excluded = set(request.excluded) & set(answer.sids)
        allowed = [bool(allowed_S[slot]) for slot, is_known in zip(slots, known, strict=True) if is_known]
        found.answers += 1
        found.sids += len(slots)
        found.illegal += known.count(False)
        found.repeated += len(slots) - len(set(answer.sids))
        found.excluded += len(excluded)
        found.filtered += allowed.count(False) - len(excluded)
        found.short += len(slots) < min(request.beam_width, int(allowed_S.sum()))
        found.unsorted += list(answer.scores) != sorted(answer.scores, reverse=True)

    async def _change(self) -> None:
        delta, following_S = self._sids.change(self._random, self._checkpoint.space, 20)
        await self._engine.update_catalog(delta)
        self._sids.publish(delta.version, following_S)


def main(
    requests: Annotated[int, typer.Option(min=100, help="requests in all")] = 100_000,
    concurrency: Annotated[int, typer.Option(min=1, help="requests at work at once")] = 16,
    change_every: Annotated[int, typer.Option(min=1, help="requests between two catalogue versions")] = 50,
    checkpoint: Annotated[Path | None, typer.Option(help="a checkpoint; unset: a tiny random one")] = None,
    threads: Annotated[int, typer.Option(min=1, help="threads of the engine")] = 1,
    seed: Annotated[int, typer.Option(help="of requests and changes")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here too")] = None,
) -> None:
    """Soak the engine."""
    with tempfile.TemporaryDirectory() as folder:
        opened = open_checkpoint(checkpoint) if checkpoint else build_synthetic(Path(folder) / "tiny", TINY)
        figures = asyncio.run(measure(opened, requests, concurrency, change_every, threads, seed))
    line = json.dumps(figures)
    if json_file:
        json_file.write_text(line + "\n")
    typer.echo(line)
    raise typer.Exit(int(figures["wrong"] > 0))


async def measure(
    checkpoint: Checkpoint, requests: int, concurrency: int, change_every: int, threads: int, seed: int
) -> dict[str, Any]:
    """Start an engine, soak it, stop it."""
    options = EngineOptions(checkpoint.manifest.lm.dtype, 32, 0.25, threads, 1.0, versions_kept=64)
    engine = await start_vllm_engine(checkpoint, options)
    soak = Soak(engine, checkpoint, LiveSids.of(checkpoint.catalog_tensors().codes_NL), seed)
    start = time.perf_counter()
    try:
        memory = await soak.run(requests, concurrency, change_every, samples=60)
        held = await engine.statistics()
    finally:
        await engine.close()
    return {
        "requests": requests,
        "concurrency": concurrency,
        "seconds": round(time.perf_counter() - start, 1),
        **asdict(soak.findings),
        "wrong": soak.findings.wrong,
        "unfinished": held.unfinished,
        "engine_mib": round(memory[-1][1] / 1024, 1),
        "engine_kib_per_1000_requests": slope(memory, 1),
        "service_kib_per_1000_requests": slope(memory, 2),
    }


def slope(memory: Sequence[tuple[int, int, int]], column: int) -> float:
    """KiB per 1,000 requests over the second half, by least squares."""
    late = memory[len(memory) // 2 :]
    fitted = np.polyfit([row[0] for row in late], [row[column] for row in late], 1)
    return round(float(fitted[0]) * 1000, 2)


def resident_kib(process: int | str) -> int:
    """Anonymous memory of a process, swapped out or not: files' pages come and go as the machine likes."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return sum(int(fields[name].split()[0]) for name in ("RssAnon", "VmSwap"))


if __name__ == "__main__":
    typer.run(main)

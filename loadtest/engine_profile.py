"""Where the beam's time goes, beside plain prefill in the very same engine: ``python -m loadtest.engine_profile``.

For each cell two batches take turns: ours (prompt P, beam W) and, as the hardware line, prompts of P + (L-1) W tokens,
from whose time the pooler's own is taken away. So model, mode and machine are the same and their ratio holds under
load; ``groundrec bench engine`` has the competitors and an engine without our model class. Figures are CPU time of the
engine's thread, medians over repeats. Parts are measured with a clock around our functions, in runs of their own.
The figures are one JSON object on the last line.
"""

import functools
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from loadtest.engine.grid import World
from loadtest.synthetic_checkpoint import build_synthetic
from service.engine.base import BeamRequest, EngineOptions
from service.engine.vllm_process import engine_environment
from service.model.checkpoint import Checkpoint, open_checkpoint

if TYPE_CHECKING:
    from service.engine.vllm_runner import VllmRunner

CELLS = ((1, 20), (1, 50), (8, 20), (8, 50), (16, 50))


class Parts:
    """CPU seconds inside functions of ours, by name."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def watch(self, owner: Any, attribute: str, name: str) -> None:
        """Count a function from now on."""
        function: Callable[..., Any] = getattr(owner, attribute)

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] += time.thread_time() - start

        setattr(owner, attribute, counted)

    def watch_engine(self) -> None:
        """The parts of a step that this project adds to vLLM."""
        from service.engine import vllm_attention, vllm_beam, vllm_model
        from service.engine.shared_prefix import BeamKV

        self.watch(vllm_attention, "attend_beams", "beam attention")
        self.watch(vllm_attention.PagedPrompts, "__call__", "reading prompt KV")
        self.watch(BeamKV, "advance", "reordering beam KV")
        self.watch(vllm_beam.WorkerBeamModel, "first", "head of level 1")
        self.watch(vllm_beam.WorkerBeamModel, "next", "beam steps")
        self.watch(vllm_beam, "beam_search", "beam search")
        self.watch(vllm_model.GroundedMixin, "_embed_prompt", "prefix memory of prompts")
        self.watch(vllm_model.GroundedMixin, "embed_last_code", "prefix memory of beams")
        self.watch(vllm_beam.BeamPooler, "forward", "pooler")


class Profile:
    """Batches of random histories over one engine."""

    def __init__(self, runner: "VllmRunner", checkpoint: Checkpoint, parts: Parts) -> None:
        self._runner, self._parts = runner, parts
        self._codes_NL, self._space = checkpoint.catalog_tensors().codes_NL, checkpoint.space
        self._random = np.random.default_rng(0)

    def batch(self, users: int, tokens: int, width: int) -> float:
        """CPU seconds of ``users`` requests of ``tokens`` prompt tokens each."""
        requests = [BeamRequest(self._prompt(tokens), width, 0) for _ in range(users)]
        start = time.process_time()
        self._runner.recommend(requests)
        return time.process_time() - start

    def cell(self, users: int, width: int, prompt: int, repeats: int) -> dict[str, Any]:
        """Milliseconds of CPU per user, and their parts."""
        ours: list[float] = []
        line: list[float] = []
        parts: defaultdict[str, float] = defaultdict(float)
        for _ in range(repeats):
            self._parts.seconds.clear()
            taken = self.batch(users, prompt + (self._space.levels - 1) * width, 1)
            line.append(taken - self._parts.seconds["pooler"])
            self._parts.seconds.clear()
            ours.append(self.batch(users, prompt, width))
            for name, seconds in self._parts.seconds.items():
                parts[name] += seconds
        ratios = [whole / own for whole, own in zip(line, ours, strict=True)]
        return {
            "users": users,
            "beam": width,
            "ours_cpu_ms": per_user(ours, users),
            "line_cpu_ms": per_user(line, users),
            "line_over_ours": round(statistics.median(ratios), 3),
            "parts_percent": {name: round(100 * part / sum(ours), 1) for name, part in parts.items()},
            "trie_percent": round(
                100 * (parts["beam search"] - parts["beam steps"] - parts["head of level 1"]) / sum(ours),
                2,
            ),
        }

    def returning(self, prompt: int, repeats: int) -> dict[str, float]:
        """What a cached prompt saves of the prefill: a first visit, then the same history with one more item."""
        first: list[float] = []
        again: list[float] = []
        for _ in range(repeats):
            ids = self._prompt(prompt + self._space.levels)
            for kept, taken in ((ids[: -self._space.levels], first), (ids, again)):
                self._parts.seconds.clear()
                start = time.process_time()
                self._runner.recommend([BeamRequest(kept, 1, 0)])
                taken.append(time.process_time() - start - self._parts.seconds["pooler"])
        saved = [1 - cached / cold for cold, cached in zip(first, again, strict=True)]
        return {
            "cold_cpu_ms": per_user(first, 1),
            "cached_cpu_ms": per_user(again, 1),
            "saved": statistics.median(saved),
        }

    def _prompt(self, tokens: int) -> list[int]:
        levels = self._space.levels
        rows = self._codes_NL[self._random.integers(0, len(self._codes_NL), tokens // levels + 1)]
        ids: list[int] = (
            (rows + self._space.first_token_id + np.arange(levels) * self._space.codes).reshape(-1).tolist()
        )
        return ids[:tokens]


def per_user(seconds: Sequence[float], users: int) -> float:
    """Median milliseconds per user."""
    return round(1000 * statistics.median(seconds) / users, 1)


def main(
    checkpoint: Annotated[Path | None, typer.Option(help="a checkpoint; unset: SmolLM2-135M's shape, random")] = None,
    compiled: Annotated[bool, typer.Option(help="compile the model")] = False,
    compile_cache: Annotated[Path, typer.Option(help="where compiled code is kept")] = Path("runs/compile-cache"),
    threads: Annotated[int, typer.Option(min=1, help="threads of the engine")] = 1,
    prompt: Annotated[int, typer.Option(min=8, help="prompt tokens")] = 160,
    repeats: Annotated[int, typer.Option(min=1, help="of every batch")] = 4,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here too")] = None,
) -> None:
    """Profile the engine."""
    options = EngineOptions(
        "bfloat16", 32, 1.0, threads, 1.0, compile=compiled, compile_cache=str(compile_cache.absolute())
    )
    os.environ.update(engine_environment(options))
    with tempfile.TemporaryDirectory() as folder:
        world = World("smollm2-135m", 10_000, max_prompt=800)
        opened = open_checkpoint(checkpoint) if checkpoint else build_synthetic(Path(folder) / "ck", world.checkpoint)
        line = json.dumps(measure(opened, options, prompt, repeats))
    if json_file:
        json_file.write_text(line + "\n")
    typer.echo(line)


def measure(checkpoint: Checkpoint, options: EngineOptions, prompt: int, repeats: int) -> dict[str, Any]:
    """Start, warm up, measure."""
    wall, cpu = time.perf_counter(), time.process_time()
    from service.engine.vllm_runner import VllmRunner  # vLLM reads the environment when it is imported

    runner = VllmRunner(checkpoint, options)
    started = {"wall": round(time.perf_counter() - wall, 1), "cpu": round(time.process_time() - cpu, 1)}
    parts = Parts()
    parts.watch_engine()
    profile = Profile(runner, checkpoint, parts)
    profile.batch(2, prompt, 20)
    profile.batch(8, prompt + 60, 20)
    return {
        "compiled": options.compile,
        "threads": options.omp_threads,
        "start_seconds": started,
        "cells": [profile.cell(users, width, prompt, repeats) for users, width in CELLS],
        "returning_user": profile.returning(prompt, 3 * repeats),
    }


if __name__ == "__main__":
    typer.run(main)

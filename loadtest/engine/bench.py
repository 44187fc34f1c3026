"""Runs a preset section by section, keeps every finished part, and writes what is known at the end.

A run may end early (``minutes``) and be called again: finished parts are not measured twice while the engine's code is
the same. Checkpoints are made once and kept in the work folder.
"""

import hashlib
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from loadtest.engine.contender import KIND_OF, HostSpec
from loadtest.engine.grid import PRESETS, SHAPES, Cell, Preset, World
from loadtest.engine.process import Child
from loadtest.engine.rows import Row, Rows, engine_digest
from loadtest.engine.sections import (
    Arena,
    StartChild,
    measure_agreement,
    measure_cell,
    measure_constraint,
    measure_costs,
    measure_served,
    open_arena,
)
from loadtest.engine.table import markdown
from loadtest.engine.targets import Verdict, judge
from loadtest.synthetic_checkpoint import build_synthetic
from service.errors import StartupError
from service.model.checkpoint import Checkpoint, open_checkpoint

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = ("agreement", "cells", "costs", "served", "constraint")
WARM = "warm"  # no section: starts every vLLM engine once, so that what it compiles lies in its cache on disk


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What the command line says; ``minutes`` is how long new parts may still begin."""

    preset: str
    work: Path
    only: tuple[str, ...] = SECTIONS
    modes: tuple[str, ...] = ("eager", "compiled")
    minutes: float = float("inf")
    threads: int = 1
    kv_gib: float = 1.0
    device: str = "cpu"
    say: Callable[[str], None] = lambda _: None


class Bench:
    """One call of the benchmark."""

    def __init__(self, options: BenchOptions) -> None:
        self._options = options
        self._preset = chosen_preset(options)
        self._rows = Rows(options.work / f"{options.preset}.jsonl", engine_digest(ROOT))
        self._end = time.monotonic() + 60 * options.minutes
        self._complete = True

    def run(self) -> dict[str, Any]:
        """Measure what is missing; returns the summary that is also written down.

        Raises:
            StartupError: an engine has not the mode that was asked for, or a file of results is damaged.
        """
        sections = {
            "agreement": self._agreement,
            "cells": self._cells,
            "costs": self._costs,
            "served": self._served,
            "constraint": self._constraint,
            WARM: self._warm,
        }
        for name in self._options.only:
            sections[name]()
        return self.summary()

    def summary(self) -> dict[str, Any]:
        """Rows, verdicts and circumstances."""
        return {
            "benchmark": "engine",
            "preset": self._options.preset,
            "complete": self._complete,
            **circumstances(self._options),
            "targets": [asdict(verdict) for verdict in self._verdicts()],
            "rows": self._rows.rows,
        }

    def document(self) -> str:
        """The summary as Markdown."""
        command = f"groundrec bench engine --preset {self._options.preset} --threads {self._options.threads}"
        facts = {"command": f"`{command}`", "complete": self._complete, **circumstances(self._options)}
        facts["models"] = "; ".join(
            f"{world.shape} = {SHAPES[world.shape].note}, random weights" for world in self._worlds()
        )
        return markdown(self._rows.rows, self._verdicts(), facts)

    def _verdicts(self) -> list[Verdict]:
        world = (self._preset.served or self._preset.cells[0].world).name
        return judge(self._rows.rows, self._preset.modes, world)

    def _worlds(self) -> list[World]:
        cells = [*self._preset.cells, *self._preset.costs]
        found = [cell.world for cell in cells] + ([self._preset.served] if self._preset.served else [])
        return list({world.shape: world for world in found}.values())

    def _agreement(self) -> None:
        if self._preset.agreement is not None:
            self._in_arenas("agreement", [self._preset.agreement], measure_agreement)

    def _cells(self) -> None:
        self._in_arenas("cells", self._preset.cells, measure_cell)

    def _costs(self) -> None:
        self._in_arenas("costs", self._preset.costs, measure_costs)

    def _in_arenas(self, section: str, cells: Iterable[Cell], measure: Callable[[Arena, Cell], list[Row]]) -> None:
        missing = [cell for cell in cells if not self._rows.has(section, cell.name)]
        for (world, mode), members in groupby(missing, key=lambda cell: (cell.world, cell.mode)):
            group = list(members)
            if not self._may_begin():
                return
            contenders = list(dict.fromkeys(name for cell in group for name in cell.contenders))
            checkpoint = self._checkpoint(world)
            start, by_wall = self._starter(checkpoint, world), self._options.device != "cpu"
            with open_arena(checkpoint, start, contenders, mode, by_wall=by_wall) as arena:
                for cell in group:
                    if not self._may_begin():
                        return
                    self._add(section, cell.name, lambda cell=cell: measure(arena, cell))  # type: ignore[misc]

    def _served(self) -> None:
        world = self._preset.served
        if world is None:
            return
        checkpoint = self._checkpoint(world)
        start = self._starter(checkpoint, world)
        for mode in self._preset.modes:
            name = f"{world.name} {mode}"
            if not self._rows.has("served", name) and self._may_begin():
                self._add(
                    "served",
                    name,
                    lambda mode=mode: measure_served(start, checkpoint, world, mode, time.perf_counter),  # type: ignore[misc]
                )

    def _constraint(self) -> None:
        missing = [items for items in self._preset.catalogues if not self._rows.has("constraint", str(items))]
        if not missing or not self._may_begin():
            return
        world = self._preset.served or self._preset.cells[0].world
        checkpoint = self._checkpoint(world)
        with self._starter(checkpoint, world)("constraint", "eager") as child:
            for items in missing:
                if self._may_begin():
                    self._add("constraint", str(items), lambda items=items: measure_constraint(child, items))  # type: ignore[misc]

    def _warm(self) -> None:
        cells = [*self._preset.cells, *self._preset.costs]
        for world, mode in dict.fromkeys((cell.world, cell.mode) for cell in cells):
            named = {name for cell in cells if (cell.world, cell.mode) == (world, mode) for name in cell.contenders}
            checkpoint = self._checkpoint(world)
            for kind in sorted({KIND_OF[name] for name in named} - {"torch"}):
                if self._may_begin():
                    with self._starter(checkpoint, world)(kind, mode) as child:
                        self._options.say(f"{world.name} {kind} ({mode}): ready after {child.start}")

    def _add(self, section: str, name: str, measure: Callable[[], list[Row]]) -> None:
        began = time.perf_counter()
        self._rows.add(section, name, measure())
        self._options.say(f"{section}: {name}: {time.perf_counter() - began:.0f} s")

    def _may_begin(self) -> bool:
        if time.monotonic() < self._end:
            return True
        self._complete = False
        return False

    def _checkpoint(self, world: World) -> Checkpoint:
        recipe = hashlib.sha256(repr(world.checkpoint).encode()).hexdigest()[:8]
        folder = self._options.work / "checkpoints" / f"{world.name}-{recipe}"
        if not (folder / "manifest.json").is_file():
            self._options.say(f"making the checkpoint {world.name}")
            shutil.rmtree(folder, ignore_errors=True)  # an interrupted making
            return build_synthetic(folder, world.checkpoint)
        return open_checkpoint(folder, verify=False)

    def _starter(self, checkpoint: Checkpoint, world: World) -> StartChild:
        cells = [cell for cell in self._preset.cells if cell.world == world]
        widest = max((cell.beam for cell in cells), default=50)
        users = max((cell.batch for cell in cells), default=8)
        longest = world.max_prompt + checkpoint.space.levels * (widest + 1)
        logs = self._options.work / "logs"
        logs.mkdir(parents=True, exist_ok=True)

        def start(kind: str, mode: str) -> Child:
            self._options.say(f"starting {kind} ({mode})")
            spec = HostSpec(
                kind=kind,
                checkpoint=str(checkpoint.folder.absolute()),
                compiled=mode == "compiled",
                dtype=world.dtype,
                threads=self._options.threads,
                max_users=max(users, 8),
                max_tokens=longest,
                kv_gib=self._options.kv_gib,
                device=self._options.device,
            )
            return Child(spec, logs / f"{world.name}-{kind}-{mode}.log")

        return start


def chosen_preset(options: BenchOptions) -> Preset:
    """The preset with the cells of the wanted modes only.

    Raises:
        StartupError: there is no such preset, section or mode.
    """
    if options.preset not in PRESETS:
        raise StartupError(f"--preset {options.preset}: not one of {', '.join(PRESETS)}")
    for flag, given, known in (
        ("--only", options.only, (*SECTIONS, WARM)),
        ("--modes", options.modes, ("eager", "compiled")),
    ):
        wrong = [name for name in given if name not in known]
        if wrong or not given:
            raise StartupError(f"{flag} {','.join(given)}: name some of {', '.join(known)}")
    preset = PRESETS[options.preset]
    cells, costs = (tuple(_of_modes(some, options.modes)) for some in (preset.cells, preset.costs))
    return replace(preset, cells=cells, costs=costs)


def circumstances(options: BenchOptions) -> dict[str, Any]:
    """Where and with what a run was made."""
    from importlib.metadata import version

    return {
        "engine": engine_digest(ROOT),
        "commit": commit(ROOT),
        "threads": options.threads,
        "device": options.device,
        "cores": os.cpu_count(),
        "processor": _processor(),
        "torch": version("torch"),
    }


def commit(root: Path) -> str:
    """The commit that is checked out, "unknown" outside a repository."""
    import subprocess

    asked = subprocess.run(["git", "-C", str(root), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return asked.stdout.strip() if asked.returncode == 0 else "unknown"


def write_results(bench: Bench, summary: dict[str, Any], json_file: Path | None, table_file: Path | None) -> str:
    """Write the files; returns the summary without its rows as one line."""
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(summary, indent=1) + "\n")
    if table_file is not None:
        table_file.parent.mkdir(parents=True, exist_ok=True)
        table_file.write_text(bench.document())
    return json.dumps({name: value for name, value in summary.items() if name != "rows"})


def _of_modes(cells: Iterable[Cell], modes: tuple[str, ...]) -> Iterator[Cell]:
    return (cell for cell in cells if cell.mode in modes)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()

"""Runs the arms of an experiment, seed by seed, and writes each one's row as it ends.

What stands is skipped, so a stopped experiment goes on where it was. Arms with the same seed share the stages they
have in common: a finished sibling's stages are copied, and a stage whose inputs differ is made again by itself. All
arms of a seed run before the next seed, so that an experiment cut short still compares all arms.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.artefacts import DIAGNOSTICS, RANKS, read_ranks
from training.errors import TrainingError
from training.experiments.experiment import Experiment
from training.pipeline import Pipeline
from training.progress import Reporter
from training.stages import RunFolder, write_whole

# stages that arms may have in common, and the part of the recipe that is the stage's own
SHARED = {
    "data": "data",
    "embed": "embedding",
    "sids": "sids",
    "grounding": "grounding",
    "prefix_memory": "prefix_memory",
}
ROWS = "rows.jsonl"
WEIGHTS = "weights.safetensors"


@dataclass(frozen=True, slots=True)
class ExperimentRun:
    """An experiment in a folder: ``OUT/rows.jsonl`` and ``OUT/runs/ARM-SEED``; ``more`` overrides all arms."""

    experiment: Experiment
    out: Path
    cache_dir: Path
    reporter: Reporter
    more: tuple[str, ...] = ()
    keep_weights: bool = False

    def run(self, arms: Sequence[str] = (), seeds: Sequence[int] = ()) -> list[dict[str, Any]]:
        """Run what is missing of ``arms`` and ``seeds`` (empty: all); returns all rows there are.

        Raises:
            TrainingError: an arm failed; earlier rows stay.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        for arm, seed in self._wanted(arms, seeds):
            if (arm, seed) in {(row["arm"], row["seed"]) for row in self.rows()}:
                continue
            self.reporter.say(f"experiment: {arm}, seed {seed}")
            row = self._row(arm, seed)
            lines = [json.dumps(old) for old in self.rows()]
            write_whole(self.out / ROWS, "\n".join([*lines, json.dumps(row)]) + "\n")
        return self.rows()

    def rows(self) -> list[dict[str, Any]]:
        """One row per finished arm and seed."""
        path = self.out / ROWS
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []

    def ranks(self, arm: str, seed: int) -> dict[str, NDArray[np.int64]]:
        """Target ranks of a finished arm.

        Raises:
            TrainingError: its run is not there any more.
        """
        folder = self.folder(arm, seed) / "stages" / "evaluate"
        try:
            return read_ranks(folder)
        except OSError as error:
            raise TrainingError(
                f"{folder / RANKS}: cannot be read ({error}); keep {self.out / 'runs'} beside {ROWS}, "
                f"or take {arm}, seed {seed} out of {ROWS} and run the experiment again"
            ) from error

    def folder(self, arm: str, seed: int) -> Path:
        """The run's folder."""
        return self.out / "runs" / f"{arm}-{seed}"

    def _wanted(self, arms: Sequence[str], seeds: Sequence[int]) -> Iterator[tuple[str, int]]:
        for seed in seeds or self.experiment.seeds:
            for arm in arms or self.experiment.arms:
                yield arm, seed

    def _row(self, arm: str, seed: int) -> dict[str, Any]:
        folder = self.folder(arm, seed)
        self._share_stages(arm, seed)
        recipe = self.experiment.arm_recipe(arm, seed, self.more)
        pipeline = Pipeline(recipe, RunFolder(folder, self.reporter), self.cache_dir)
        with pipeline.run.locked():
            stage = pipeline.evaluated
        row = {"arm": arm, "seed": seed, "overrides": [*self.experiment.base, *self.experiment.arms[arm], *self.more]}
        row |= {
            "metrics": stage.read_json("metrics.json"),
            "finetune": _told(pipeline.finetuned.read_json("finetune.json")),
        }
        row |= {"grounding": _told(pipeline.grounded.read_json("grounding.json")), "rows": _moments(pipeline)}
        if not self.keep_weights:
            (pipeline.finetuned.folder / WEIGHTS).unlink()
        return row

    def _share_stages(self, arm: str, seed: int) -> None:
        """Give a new run the finished stages of the siblings that asked for the same."""
        stages = self.folder(arm, seed) / "stages"
        for name, part in SHARED.items():
            found = self._sibling_stage(name, part, arm, seed)
            if found is not None and not (stages / name).exists():
                shutil.copytree(found, stages / name)

    def _sibling_stage(self, name: str, part: str, arm: str, seed: int) -> Path | None:
        wanted = getattr(self.experiment.arm_recipe(arm, seed, self.more), part)
        for sibling in self.experiment.arms:
            stage = self.folder(sibling, seed) / "stages" / name
            if stage.exists() and getattr(self.experiment.arm_recipe(sibling, seed, self.more), part) == wanted:
                return stage
        return None


def _told(record: Mapping[str, Any]) -> dict[str, Any]:
    """A stage's record without its long list of losses."""
    return {name: value for name, value in record.items() if name != "losses"}


def _moments(pipeline: Pipeline) -> dict[str, Any]:
    """Diagnostics of the new rows at the start, after grounding and after fine-tuning."""
    found: dict[str, Any] = {}
    for stage in (pipeline.grounded, pipeline.finetuned):
        found |= stage.read_json(DIAGNOSTICS)
    return found

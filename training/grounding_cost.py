"""What grounding costs beside all of training: its share of the time and of the samples.

Before fine-tuning has run, its time is estimated from a few timed steps, as a dry run does, and its samples from the
recipe. It knows neither how grounding works nor which stages follow.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from training.config import Recipe
from training.dry_run import estimate
from training.next_item import batch_plan
from training.progress import QuietReporter
from training.stages import Stage
from training.training_data import TrainingData


def measured_share(stages: Sequence[Stage], grounding: Mapping[str, Any], samples: int) -> dict[str, Any]:
    """Grounding's share of the CPU time of finished ``stages``, and of its and fine-tuning's ``samples``."""
    seconds = {stage.folder.name: _cpu_seconds(stage) for stage in stages}
    share = seconds["grounding"] / max(sum(seconds.values()), 1e-9)
    return _shares(grounding, samples) | {"grounding_share_of_cpu": share}


def estimated_share(
    recipe: Recipe, data: TrainingData, grounding: Mapping[str, Any], cache_dir: Path
) -> dict[str, Any]:
    """The same where fine-tuning is still to come: of wall time, with fine-tuning estimated."""
    part = recipe.finetune
    samples = finetune_samples(recipe, data, part.epochs) + part.alignment_batch_size * part.alignment_steps
    finetune = float(estimate(recipe, cache_dir, QuietReporter())["seconds"]["finetune"])
    share = grounding["wall_seconds"] / max(grounding["wall_seconds"] + finetune, 1e-9)
    estimated = {"estimated_finetune_seconds": finetune, "estimated_share_of_time": share}
    return _shares(grounding, samples) | estimated


def finetune_samples(recipe: Recipe, data: TrainingData, epochs: int) -> int:
    """Windows that so many epochs of fine-tuning read."""
    plan = batch_plan(recipe)
    return sum(len(batch) for epoch in range(epochs) for batch in plan.epoch(data.split.train, epoch))


def _shares(grounding: Mapping[str, Any], samples: int) -> dict[str, Any]:
    own = int(grounding["samples"])
    told = {"grounding_samples": own, "finetune_samples": samples}
    return told | {"grounding_share_of_samples": own / max(own + samples, 1)}


def _cpu_seconds(stage: Stage) -> float:
    """Those of the process that finished it, or of all that worked on it where the stage kept count."""
    path = stage.folder / f"{stage.folder.name}.json"
    told = stage.read_json(path.name) if path.exists() else {}
    return max(stage.cpu_seconds, float(told.get("cpu_seconds", 0.0)))

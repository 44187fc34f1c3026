"""Evaluation of a servable checkpoint, as the service would load it, on the data that its recipe names."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from service.model.checkpoint import Checkpoint, open_checkpoint
from service.model.grounded_lm import load_grounded_lm
from training.config import Recipe, parse_recipe, with_overrides
from training.errors import DataError
from training.evaluate import Evaluation, baselines_of, sample, tables
from training.progress import Reporter
from training.recommender import BeamRecommender
from training.trained_model import torch_dtype
from training.training_data import TrainingData


def evaluate_checkpoint(
    folder: Path, overrides: Sequence[str], cache_dir: Path, reporter: Reporter
) -> tuple[dict[str, Any], list[Table]]:
    """Figures and tables.

    Raises:
        CheckpointError: the folder is no checkpoint.
        DataError: the data is no longer what the checkpoint was trained on.
    """
    checkpoint = open_checkpoint(folder)
    recipe = parse_recipe(with_overrides(checkpoint.manifest.recipe, overrides), f"of {folder}")
    data = TrainingData.of(recipe, cache_dir)
    if data.dataset.fingerprint != checkpoint.manifest.data.fingerprint:
        raise DataError(f"{folder}: was trained on other data than {recipe.data.source} holds now")
    data.describe(reporter)
    examples = sample(data.split.test, recipe.evaluate.max_users, recipe.seed)
    embedding_NE = checkpoint.catalog_tensors().embedding_NE
    names = recipe.evaluate.baselines
    baselines = baselines_of(names, data.split, data.popularity_N, embedding_NE, recipe.seed)
    evaluation = Evaluation(examples, baselines, recipe.evaluate, recipe.seed, data.popularity_N)
    report = evaluation.measure(_recommender(checkpoint, recipe), reporter)
    return report | {"model_version": checkpoint.manifest.model_version}, tables(report, recipe.evaluate.ks)


def _recommender(checkpoint: Checkpoint, recipe: Recipe) -> BeamRecommender:
    tensors = checkpoint.catalog_tensors()
    return BeamRecommender(
        load_grounded_lm(checkpoint, torch_dtype(checkpoint.manifest.lm.dtype)),
        tensors.codes_NL,
        tensors.popularity_N,
        max_items=checkpoint.prompt.max_items,
        beam_width=recipe.evaluate.beam_width,
    )

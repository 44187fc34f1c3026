"""Evaluation of a servable checkpoint, as the service would load it, on the data that its recipe names."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from service.model.checkpoint import Checkpoint, open_checkpoint
from service.model.grounded_lm import GroundedLM, load_grounded_lm
from training.batches import ItemTokens
from training.blended_recommender import BlendedRecommender
from training.calibrate import CalibrationOptions
from training.checkpoint_calibration import ColdStudy, cold_table
from training.cold_items import read_cold_items
from training.compared import Studied, baselines_of
from training.config import Recipe, parse_recipe, with_overrides
from training.data import Example
from training.errors import DataError
from training.evaluate import Evaluation, sample, tables, warning_lines
from training.progress import Reporter
from training.recommender import BeamRecommender, Recommender
from training.sid_report import code_entropy, collision_rate
from training.teacher_forced import teacher_forced_accuracy
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
    tensors = checkpoint.catalog_tensors()
    codes_NL = tensors.codes_NL.astype(np.int64)
    studied = Studied(data.split, data.popularity_N, tensors.embedding_NE, codes_NL, recipe)
    baselines = baselines_of(recipe.evaluate.baselines, studied)
    evaluation = Evaluation(examples, baselines, recipe.evaluate, recipe.seed, data.popularity_N)
    model = load_grounded_lm(checkpoint, torch_dtype(checkpoint.manifest.lm.dtype))
    report = evaluation.measure(_recommender(checkpoint, recipe, model), reporter)
    report["teacher_forced"] = _teacher_forced(checkpoint, model, examples)
    report |= {"collision_rate": collision_rate(codes_NL), "code_entropy_bits": code_entropy(codes_NL)}
    for line in warning_lines(report["below_baselines"]):
        reporter.say(line)
    shown = tables(report, recipe.evaluate.ks)
    if recipe.data.holds_out:
        report["cold"] = _cold(checkpoint, recipe, cache_dir, reporter)
        shown.append(cold_table(report["cold"]))
    return report | {"model_version": checkpoint.manifest.model_version}, shown


def _cold(checkpoint: Checkpoint, recipe: Recipe, cache_dir: Path, reporter: Reporter) -> dict[str, Any]:
    """The items that were held out of training, as if they had been posted: with the checkpoint's own dial."""
    items = read_cold_items(checkpoint, recipe, cache_dir)
    study = ColdStudy(checkpoint, recipe, items, reporter, recipe.evaluate.max_users)
    part = checkpoint.manifest.smoothing.new_items
    options = CalibrationOptions() if part is None else CalibrationOptions(max_share=part.max_share)
    return study.measure(None if part is None else part.dial, options)


def _teacher_forced(checkpoint: Checkpoint, model: GroundedLM, examples: Sequence[Example]) -> list[float]:
    titles = checkpoint.title_tokens().rows([item.title for item in checkpoint.items()])
    items = ItemTokens(checkpoint.catalog_tensors().codes_NL.astype(np.int64), titles)
    return teacher_forced_accuracy(model, items, examples, max_items=checkpoint.prompt.max_items)


def _recommender(checkpoint: Checkpoint, recipe: Recipe, model: GroundedLM) -> Recommender:
    tensors, blend = checkpoint.catalog_tensors(), checkpoint.blend()
    beam = BeamRecommender(
        model,
        tensors.codes_NL,
        tensors.popularity_N,
        max_items=checkpoint.prompt.max_items,
        beam_width=recipe.evaluate.beam_width,
        title_NT=checkpoint.title_tokens().rows([item.title for item in checkpoint.items()]),
    )
    return beam if blend is None else BlendedRecommender(beam, blend, np.arange(len(tensors.codes_NL)))

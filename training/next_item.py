"""The fine-tuning stage: a recipe's batches, validation on a sample of users, a log, and state to continue from."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from service.model.grounded_lm import GroundedLM
from training.backbone import Backbone
from training.batches import BatchPlan, ItemTokens
from training.config import Recipe
from training.evaluate import sample
from training.finetune import FinetuneOptions, Finetuner, Validate
from training.grounding.pair_loss import PairLoss
from training.grounding.templates import PairMaker
from training.metrics import gains, target_ranks
from training.processes import ALONE, Processes
from training.recommender import BeamRecommender
from training.stages import RunFolder
from training.trainee import Alignment
from training.training_data import TrainingData
from training.training_log import LOG, TrainingLog

VALID_BEAM = 20
VALID_K = 10
OPTIONS = (
    "epochs",
    "lr",
    "memory_lr_factor",
    "weight_decay",
    "warmup_steps",
    "patience",
    "save_every",
    "dropout",
    "average",
    "alignment_steps",
    "alignment_weight",
)


def train_next_item(
    model: GroundedLM,
    recipe: Recipe,
    data: TrainingData,
    items: ItemTokens,
    run: RunFolder,
    alignment: Alignment | None = None,
    processes: Processes = ALONE,
) -> dict[str, Any]:
    """Fine-tune ``model`` in place; returns what happened. ``alignment`` is needed if the recipe asks for pairs.

    Every one of ``processes`` calls it; the first one writes the log and the state.
    """
    state_file = run.state_file("finetune")
    tuner = Finetuner(
        model,
        items,
        data.split.train,
        batch_plan(recipe),
        options(recipe),
        _validation(model, recipe, data, items),
        alignment,
        processes,
    )
    if processes.is_first and not state_file.exists():
        (run.path / LOG).unlink(missing_ok=True)
    log = TrainingLog(run.path / LOG).append if processes.is_first else None
    with run.reporter.task("finetune") as progress:
        state = tuner.run(state_file, log, progress)
    run.reporter.say(f"finetune: NDCG@{VALID_K} on validation {' '.join(f'{v:.4f}' for v in state.validation)}")
    if state.epoch < recipe.finetune.epochs:
        run.reporter.say(f"finetune: stopped early, no gain for {recipe.finetune.patience} epochs")
    run.reporter.say(f"finetune: the weights of epoch {state.best_epoch + 1} are kept")
    return {
        "steps": len(state.losses),
        "alignment_pairs": _alignment_pairs(recipe, len(state.losses)),
        "final_loss": float(np.mean(state.losses[-20:])),
        "validation_ndcg": state.validation,
        "best_epoch": state.best_epoch + 1,
        "tokens": state.tokens,
        "wall_seconds": state.wall_seconds,
        "cpu_seconds": state.cpu_seconds,
    }


def batch_plan(recipe: Recipe) -> BatchPlan:
    """How the recipe cuts batches."""
    part = recipe.finetune
    return BatchPlan(recipe.prompt.max_items, recipe.stride, part.batch_size, recipe.seed, part.item_dropout)


def options(recipe: Recipe) -> FinetuneOptions:
    """How long and how fast the recipe fine-tunes."""
    part = recipe.finetune
    return FinetuneOptions(**{name: getattr(part, name) for name in OPTIONS})


def alignment_of(
    model: GroundedLM, recipe: Recipe, backbone: Backbone, codes_NL: NDArray[np.int64], item_texts: list[str]
) -> Alignment | None:
    """The loss of pairs through ``model``, if the recipe asks for pairs."""
    part = recipe.finetune
    if not part.alignment_steps and not part.alignment_weight:
        return None
    pairs = PairMaker.of(backbone, model.space, item_texts, part.alignment_text_tokens)
    codes = torch.from_numpy(codes_NL)
    return PairLoss(model, pairs, codes, backbone.output_rows, part.alignment_batch_size, recipe.seed).loss


def _alignment_pairs(recipe: Recipe, steps: int) -> int:
    part = recipe.finetune
    return part.alignment_batch_size * (part.alignment_steps + (steps if part.alignment_weight else 0))


def _validation(model: GroundedLM, recipe: Recipe, data: TrainingData, items: ItemTokens) -> Validate:
    examples = sample(data.split.valid, recipe.finetune.valid_users, recipe.seed)
    exclude_seen = data.exclude_seen(recipe.serving.exclude_seen)

    def validate() -> float:
        recommender = BeamRecommender(
            model,
            items.codes_NL,
            data.popularity_N,
            max_items=recipe.prompt.max_items,
            beam_width=VALID_BEAM,
            title_NT=items.title_NT,
        )
        found = recommender.recommend([example.history for example in examples], exclude_seen=exclude_seen)
        return float(gains(target_ranks(found.items, [example.target for example in examples]), VALID_K).mean())

    return validate

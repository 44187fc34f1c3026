"""What a recipe would cost, without training: counts, steps, memory, and time from a few measured steps.

Data and backbone are really loaded, and real steps are timed on random rows and SIDs, because no formula knows this
machine. Nothing is written into the run's folder.

Shapes: N items, L levels, D model width.
"""

import resource
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from service.model.grounded_lm import GroundedLM
from service.model.prefix_memory import PrefixMemory
from service.model.prompt import PromptTemplate
from service.model.title_tokens import TitleTokens, text_token_ids
from training.artefacts import memory_config
from training.backbone import add_sid_tokens, check_positions, keep_layers, load_backbone
from training.batches import ItemTokens, Window, collate, num_tokens
from training.config import Recipe
from training.finetune import next_item_loss, parameter_groups
from training.next_item import batch_plan, options
from training.progress import Reporter
from training.trained_model import ModelParts, torch_dtype
from training.training_data import TrainingData

TIMED_STEPS = 2
EMBED_SECONDS_PER_ITEM = 0.01
GROUNDING_TOKENS_PER_PAIR = 40
GROUNDING_SAVING = 1.5  # frozen weights need no gradients of their own
BEAM_COST = 1 / 3  # forward only


def estimate(recipe: Recipe, cache_dir: Path, reporter: Reporter) -> dict[str, Any]:
    """Counts and estimates as plain data, said in a few lines as well.

    Raises:
        TrainingError: the data or the backbone cannot be used.
    """
    data = TrainingData.of(recipe, cache_dir)
    data.describe(reporter)
    epochs = [batch_plan(recipe).epoch(data.split.train, epoch) for epoch in range(recipe.finetune.epochs)]
    model, tokenizer, all_layers = _untrained(recipe, cache_dir)
    items = _item_tokens(recipe, data, tokenizer)
    prefix = model.get_buffer("prefix_ids").numel()
    tokens = sum(num_tokens(windows, items, prefix) for batches in epochs for windows in batches)
    per_token = _seconds_per_token(model, recipe, items, epochs[0])
    seconds = _seconds(recipe, data, tokens, per_token, items)
    seconds["grounding"] = _grounding_seconds(recipe, all_layers, per_token)
    figures = {
        "items": len(data.dataset.items),
        "users": len(data.dataset.sequences),
        "interactions": data.dataset.num_interactions,
        "finetune_steps": sum(len(batches) for batches in epochs),
        "finetune_tokens": tokens,
        "tokens_per_second": 1 / per_token,
        "memory_gib": _memory_gib(model, recipe),
        "seconds": seconds,
        "total_minutes": sum(seconds.values()) / 60,
    }
    reporter.say(f"dry run: {figures['finetune_steps']} steps of fine-tuning, {tokens} tokens")
    reporter.say(f"dry run: about {figures['total_minutes']:.1f} minutes and {figures['memory_gib']:.1f} GiB of memory")
    return figures


def _item_tokens(recipe: Recipe, data: TrainingData, tokenizer: PreTrainedTokenizerBase) -> ItemTokens:
    """Made-up SIDs and the real titles."""
    titles = [item.title for item in data.dataset.items]
    shape = (len(titles), recipe.sids.levels)
    codes_NL = np.random.default_rng(0).integers(0, recipe.sids.codes, shape)
    shown = TitleTokens(partial(text_token_ids, tokenizer), recipe.prompt.title_tokens)
    return ItemTokens(codes_NL, shown.rows(titles))


def _untrained(recipe: Recipe, cache_dir: Path) -> tuple[GroundedLM, PreTrainedTokenizerBase, int]:
    """The model that would be fine-tuned, its tokenizer, and how many layers its backbone has in all."""
    part = recipe.backbone
    backbone = load_backbone(part.spec, cache_dir=cache_dir, num_layers=None, dtype=torch_dtype(part.dtype))
    all_layers = int(backbone.model.config.num_hidden_layers)
    keep_layers(backbone.model, part.layers or all_layers)
    space = add_sid_tokens(backbone, recipe.sids.levels, recipe.sids.all_codes)
    rows = torch.randn(space.num_tokens, backbone.width) * backbone.input_rows.float().std()
    prompt, prefix = recipe.prompt, tuple(backbone.tokenize([recipe.prompt.prefix])[0])
    check_positions(backbone, PromptTemplate(space, prefix, prompt.max_items, prompt.title_tokens))
    memory = PrefixMemory(memory_config(recipe.prefix_memory, space), backbone.width)
    head = None if backbone.tied else rows
    parts = ModelParts(backbone, space, prefix, rows, head, memory if recipe.prefix_memory.enabled else None)
    return parts.assemble(), backbone.tokenizer, all_layers


def _seconds_per_token(model: GroundedLM, recipe: Recipe, items: ItemTokens, batches: Sequence[list[Window]]) -> float:
    typical = sorted(batches, key=lambda windows: sum(len(window.items) for window in windows))[len(batches) // 2]
    parameter_groups(model, options(recipe))
    batch, spent = collate(typical, items), []
    for _ in range(1 + TIMED_STEPS):
        started = time.monotonic()
        next_item_loss(model, batch).backward()  # type: ignore[no-untyped-call]
        spent.append(time.monotonic() - started)
    return min(spent[1:]) / num_tokens(typical, items, model.get_buffer("prefix_ids").numel())


def _seconds(recipe: Recipe, data: TrainingData, tokens: int, per_token: float, items: ItemTokens) -> dict[str, float]:
    beam_tokens = recipe.evaluate.beam_width * sum(range(1, recipe.sids.levels))
    prompt_tokens = recipe.prompt.max_items * float(items.length_N.mean())
    per_user = (prompt_tokens + beam_tokens) * per_token * BEAM_COST
    users = min(recipe.evaluate.max_users or len(data.split.test), len(data.split.test))
    fitted_on = min(recipe.blend.users, len(data.split.valid)) if recipe.blend.enabled else 0
    return {
        "embed": len(data.dataset.items) * EMBED_SECONDS_PER_ITEM,
        "finetune": tokens * per_token,
        "blend": fitted_on * per_user,
        "evaluate": 2 * users * per_user,
    }


def _grounding_seconds(recipe: Recipe, all_layers: int, per_token: float) -> float:
    part = recipe.grounding
    if part.objective != "lm":
        return 0.0
    share = (part.layers or all_layers) / (recipe.backbone.layers or all_layers)
    pairs = int(part.options.get("steps", 100)) * int(part.options.get("batch_size", 32))
    return pairs * GROUNDING_TOKENS_PER_PAIR * per_token * share / GROUNDING_SAVING


def _memory_gib(model: GroundedLM, recipe: Recipe) -> float:
    trained = sum(p.numel() for group in parameter_groups(model, options(recipe)) for p in group.parameters)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return float(peak_bytes + 3 * 4 * trained) / 2**30

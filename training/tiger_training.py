"""Trains TIGER as a baseline, with or without a prefix memory, and keeps the weights of its best validation.

Its length is fixed here and not in the recipe, so that the row means the same beside every model of ours.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from service.model.semantic_ids import SidSpace
from training.artefacts import memory_config
from training.config import Recipe
from training.data import Split
from training.evaluate import sample
from training.metrics import gains, target_ranks
from training.optimizer import MasterAdamW, ParameterGroup
from training.prefix_memory.base import Lessons, memory_groups, start
from training.prefix_memory.registry import build
from training.tiger import Tiger, TigerOptions, tiger_loss
from training.tiger_batches import EventSampler
from training.tiger_beam import TigerRecommender

VALID_BEAM, VALID_K = 20, 10


@dataclass(frozen=True, slots=True)
class TigerTraining:
    """Length and speed; training stops when ``patience`` checks of validation NDCG@10 brought nothing."""

    steps: int = 2000
    batch_size: int = 64
    lr: float = 3e-3
    weight_decay: float = 0.01
    memory_lr_factor: float = 5.0
    check_every: int = 250
    patience: int = 3
    valid_users: int = 300


def train_tiger(
    split: Split,
    codes_NL: NDArray[np.int64],
    popularity_N: NDArray[np.int64],
    recipe: Recipe,
    *,
    with_memory: bool,
    training: TigerTraining | None = None,
) -> TigerRecommender:
    """A trained TIGER as a recommender, on the recipe's history length, beam width and sizes of memory."""
    training = training or TigerTraining()
    tiger = _untrained(split, codes_NL, recipe, with_memory)
    max_items = recipe.prompt.max_items
    checked = TigerRecommender(tiger, codes_NL, popularity_N, max_items=max_items, beam_width=VALID_BEAM)
    examples = sample(split.valid, training.valid_users, recipe.seed)
    histories, targets = [e.history for e in examples], [e.target for e in examples]
    optimizer = _optimizer(tiger, training)
    sampler = EventSampler(split.train, codes_NL, max_items=max_items, batch_size=training.batch_size, seed=recipe.seed)
    best, best_state, stale = -1.0, tiger.state_dict(), 0
    for step in range(1, training.steps + 1):
        tiger.train()
        batch = sampler.draw()
        logits = tiger.level_logits(batch.codes_BNL, batch.known_BN, batch.next_BL)
        tiger_loss(logits, batch.next_BL).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % training.check_every and step != training.steps:
            continue
        found = checked.recommend(histories, exclude_seen=False).items
        value, stale = float(gains(target_ranks(found, targets), VALID_K).mean()) if targets else 0.0, stale + 1
        if value > best:
            best, stale = value, 0
            best_state = {name: tensor.clone() for name, tensor in tiger.state_dict().items()}
        if stale >= training.patience:
            break
    tiger.load_state_dict(best_state)
    tiger.requires_grad_(False)
    beam_width = recipe.evaluate.beam_width
    return TigerRecommender(tiger, codes_NL, popularity_N, max_items=max_items, beam_width=beam_width)


def _untrained(split: Split, codes_NL: NDArray[np.int64], recipe: Recipe, with_memory: bool) -> Tiger:
    space = SidSpace(codes_NL.shape[1], int(max(recipe.sids.codes, codes_NL.max() + 1)), 0)
    memory = None
    if with_memory:
        part = recipe.prefix_memory
        memory = build(part.kind, memory_config(part, space), codes_NL)
        start(memory, Lessons(codes_NL, split.train, []), recipe.seed)
        memory.attach(TigerOptions().width)
    torch.manual_seed(recipe.seed)
    return Tiger(space, TigerOptions(), memory)


def _optimizer(tiger: Tiger, training: TigerTraining) -> MasterAdamW:
    own = [p for n, p in tiger.named_parameters() if p.requires_grad and not n.startswith("memory.")]
    matrices = [p for p in own if p.ndim > 1 and p is not tiger.rows and p is not tiger.head]
    kept = {id(p) for p in matrices}
    groups = [ParameterGroup(matrices, training.lr, training.weight_decay)]
    groups.append(ParameterGroup([p for p in own if id(p) not in kept], training.lr))
    if tiger.memory is not None:
        groups += memory_groups(tiger.memory, training.lr * training.memory_lr_factor)
    return MasterAdamW(groups, training.steps, warmup=50)

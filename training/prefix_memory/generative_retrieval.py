"""Pre-training by generative retrieval: the memory learns inside a small TIGER that predicts the next item.

Encoder and decoder receive it at their inputs, so the tables learn what a prefix means in people's histories. The
encoder-decoder and its W_out are dropped.
"""

import torch

from service.model.prefix_memory import PrefixMemory
from service.model.semantic_ids import SidSpace
from training.optimizer import MasterAdamW, ParameterGroup
from training.prefix_memory.base import Lessons, PretrainOptions, PretrainReport, memory_groups, start
from training.progress import Progress, silent
from training.tiger import Tiger, TigerOptions, tiger_loss
from training.tiger_batches import EventSampler

LR = 1e-3
W_OUT_STD = 0.02
LAST_STEPS = 20


def pretrain_generative_retrieval(
    memory: PrefixMemory, lessons: Lessons, options: PretrainOptions, progress: Progress = silent
) -> PretrainReport:
    """Train the tables jointly with an encoder-decoder on next items; ``options.lr`` is the memory's rate."""
    start(memory, lessons, options.seed)
    sizes = TigerOptions()
    memory.attach(sizes.width, W_OUT_STD)
    space = SidSpace(memory.config.levels, memory.config.codes, 0)
    tiger = Tiger(space, sizes, memory)
    own = [p for n, p in tiger.named_parameters() if p.requires_grad and not n.startswith("memory.")]
    optimizer = MasterAdamW([ParameterGroup(own, LR), *memory_groups(memory, options.lr)], options.steps)
    sampler = EventSampler(
        lessons.sequences,
        lessons.codes_NL,
        max_items=options.max_items,
        batch_size=options.batch_size,
        seed=options.seed,
    )
    loss, right = 0.0, torch.zeros(space.levels)
    for step in range(options.steps):
        batch = sampler.draw()
        logits = tiger.level_logits(batch.codes_BNL, batch.known_BN, batch.next_BL)
        total = tiger_loss(logits, batch.next_BL)
        total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss = float(total.detach())
        if step >= options.steps - LAST_STEPS:
            hits = [(level_BK.argmax(1) == batch.next_BL[:, n]).float().mean() for n, level_BK in enumerate(logits)]
            right += torch.stack(hits)
        progress(step + 1, options.steps, f"loss {loss:.3f}")
    accuracy = right / max(1, min(LAST_STEPS, options.steps))
    return PretrainReport(tuple(accuracy.tolist()), (), loss)

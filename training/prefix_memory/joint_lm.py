"""Pre-training inside a small language model on text and SIDs: the memory learns what the words of an item say.

A sequence is a history: of each item its first words and then its SID. A random two-layer Llama over the data's own
frequent words learns to go on, words and codes alike; it needs neither the backbone nor its tokenizer, and is dropped
with its W_out.

Shapes: B sequences, T tokens, W words, D width, C chosen positions.
"""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from service.model.grounded_lm import GroundedLM
from service.model.prefix_memory import PrefixMemory
from service.model.semantic_ids import SidSpace
from training.optimizer import MasterAdamW, ParameterGroup
from training.prefix_memory.base import Lessons, PretrainOptions, PretrainReport, memory_groups, start
from training.progress import Progress, silent

WIDTH, LAYERS, HEADS = 64, 2, 4
MOST_WORDS = 2048
WORDS_PER_ITEM = 6
ITEMS_PER_SEQUENCE = 8
LR = 2e-3
W_OUT_STD = 0.02
LAST_STEPS = 20
UNKNOWN, PADDING = 0, 1


def pretrain_joint_lm(
    memory: PrefixMemory, lessons: Lessons, options: PretrainOptions, progress: Progress = silent
) -> PretrainReport:
    """Train the tables jointly with a causal LM; ``options.lr`` is the memory's rate."""
    start(memory, lessons, options.seed)
    memory.attach(WIDTH, W_OUT_STD)
    blocks, words = item_words(lessons.texts)
    space = SidSpace(memory.config.levels, memory.config.codes, words)
    model = _small_lm(space, memory)
    own = [p for n, p in model.named_parameters() if p.requires_grad and not n.startswith("memory.")]
    optimizer = MasterAdamW([ParameterGroup(own, LR), *memory_groups(memory, options.lr)], options.steps)
    random = np.random.default_rng(options.seed)
    sequences = [lessons.sequences[user] for user in sorted(lessons.sequences)]
    share = np.array([len(items) for items in sequences]) / sum(len(items) for items in sequences)
    tokens_of = [[*block, *space.token_ids(sid)] for block, sid in zip(blocks, lessons.codes_NL.tolist(), strict=True)]
    loss, accuracy = 0.0, _Accuracy(space)
    length = min(ITEMS_PER_SEQUENCE, options.max_items)
    for step in range(options.steps):
        picked = random.choice(len(sequences), options.batch_size, p=share)
        token_BT = _tokens([_piece(sequences[user], length, random) for user in picked], tokens_of)
        logits_CV, next_C = _next_tokens(model, token_BT)
        total = F.cross_entropy(logits_CV, next_C)
        total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss = float(total.detach())
        if step >= options.steps - LAST_STEPS:
            accuracy.add(logits_CV, next_C)
        progress(step + 1, options.steps, f"loss {loss:.3f}")
    return PretrainReport(accuracy.by_level(), (), loss)


def item_words(texts: Sequence[str]) -> tuple[list[list[int]], int]:
    """The first words of every text as ids, and how many ids there are; rare words share one, one is for padding."""
    spelt = [re.findall(r"\w+", text.lower())[:WORDS_PER_ITEM] for text in texts]
    counts = Counter(word for words in spelt for word in words)
    known = {word: number + 2 for number, (word, _) in enumerate(counts.most_common(MOST_WORDS))}
    return [[known.get(word, UNKNOWN) for word in words] for words in spelt], len(known) + 2


class _Accuracy:
    """Right answers by level, over the places where a SID token comes next."""

    def __init__(self, space: SidSpace) -> None:
        self._space = space
        self._right, self._all = torch.zeros(space.levels), torch.zeros(space.levels)

    def add(self, logits_CV: Tensor, next_C: Tensor) -> None:
        level_C, _ = self._space.level_and_code(next_C)
        right_C = (logits_CV.argmax(1) == next_C).float()
        is_sid_C = level_C >= 0
        self._right.index_add_(0, level_C[is_sid_C], right_C[is_sid_C])
        self._all.index_add_(0, level_C[is_sid_C], torch.ones_like(right_C[is_sid_C]))

    def by_level(self) -> tuple[float, ...]:
        return tuple((self._right / self._all.clamp(min=1)).tolist())


def _small_lm(space: SidSpace, memory: PrefixMemory) -> GroundedLM:
    config = LlamaConfig(
        vocab_size=space.first_token_id,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=(WORDS_PER_ITEM + space.levels) * ITEMS_PER_SEQUENCE,
        tie_word_embeddings=True,
    )
    rows = torch.randn(space.num_tokens, WIDTH) * config.initializer_range
    lm = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    return GroundedLM(lm, space, (UNKNOWN,), rows, None, memory)


def _piece(items: Sequence[int], length: int, random: np.random.Generator) -> Sequence[int]:
    first = int(random.integers(0, max(1, len(items) - length + 1)))
    return items[first : first + length]


def _tokens(pieces: Sequence[Sequence[int]], tokens_of: Sequence[Sequence[int]]) -> Tensor:
    rows = [[token for item in piece for token in tokens_of[item]] for piece in pieces]
    token_BT = torch.full((len(rows), max(len(row) for row in rows)), PADDING)
    for number, row in enumerate(rows):
        token_BT[number, : len(row)] = torch.tensor(row)
    return token_BT


def _next_tokens(model: GroundedLM, token_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Logits over words and SID tokens wherever a token follows, [C, W + L * K], and that token, int64 [C]."""
    hidden_BTD = model.hidden(model.embed_tokens(token_BT))
    chosen_BT = token_BT[:, 1:] != PADDING
    output = torch.cat([model.lm.get_parameter("lm_head.weight"), model.sid_rows])
    return F.linear(hidden_BTD[:, :-1][chosen_BT], output), token_BT[:, 1:][chosen_BT]

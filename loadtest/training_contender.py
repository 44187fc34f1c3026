"""One contender of the training benchmark, in a process of its own: takes a few steps whenever its parent says so.

Ours is `training.finetune`, the others are Hugging Face's `Trainer` on the same decoder with the SID tokens in its
vocabulary. All read the same windows without padding. A line on standard input starts a round; the answer is one JSON
line of tokens, wall and CPU seconds (all threads). It does not compare anything.

Shapes: N items, L levels.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from service.model.grounded_lm import GroundedLM
from service.model.prefix_memory import PrefixMemory, PrefixMemoryConfig
from service.model.semantic_ids import SidSpace
from training.batches import BatchPlan, ItemTokens
from training.finetune import FinetuneOptions, Finetuner

VOCABULARY, PREFIX = 49_152, tuple(range(9))
ITEMS, LEVELS, CODES = 2_000, 3, 256
HISTORY, BATCH, WIDTH = 20, 16, 576
SPARSE_BEYOND = 100_000
MEMORY = "memory:"
MANY = 10_000


@dataclass(slots=True)
class Clock:
    """Waits for the parent before each round of ``steps`` and answers after it."""

    steps: int
    _taken: int = 0
    _started: tuple[float, float] = field(default=(0.0, 0.0))

    def begin(self) -> None:
        """Before a step."""
        if self._taken % self.steps == 0:
            if not sys.stdin.readline().strip():
                raise SystemExit(0)
            self._started = time.monotonic(), time.process_time()

    def end(self) -> None:
        """After a step."""
        self._taken += 1
        if self._taken % self.steps == 0:
            wall, cpu = time.monotonic() - self._started[0], time.process_time() - self._started[1]
            tokens = self.steps * BATCH * (len(PREFIX) + HISTORY * LEVELS)
            print(json.dumps({"tokens": tokens, "wall_seconds": wall, "cpu_seconds": cpu}), flush=True)


def codes() -> NDArray[np.int64]:
    """Random SIDs, int64 [N, L]."""
    return np.random.default_rng(0).integers(0, CODES, (ITEMS, LEVELS))


def decoder(vocabulary: int, layers: int, attention: str, dtype: torch.dtype) -> PreTrainedModel:
    """SmolLM2-135M's shape with fewer layers and random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    made: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, attn_implementation=attention, dtype=dtype
    )
    return made


def prefix_memory(space: SidSpace, max_rows: int) -> PrefixMemory:
    """A memory of the recipes' heads and width that has met every item, with tables of ``max_rows`` rows an order."""
    config = PrefixMemoryConfig.sized(space, orders=LEVELS, heads=4, width=128, max_rows=max_rows)
    memory = PrefixMemory(config, WIDTH)
    memory.reset_tables(0.02, 0)
    memory.count_touches(torch.from_numpy(codes()))
    memory.sparse_gradients = max_rows > SPARSE_BEYOND
    return memory.bfloat16()


def run_ours(layers: int, clock: Clock, max_rows: int = 0) -> None:
    """The fine-tuning loop, without prefix memory (as the others have none) or with one."""
    space = SidSpace(LEVELS, CODES, VOCABULARY)
    lm = decoder(VOCABULARY, layers, "eager", torch.bfloat16)
    rows = torch.randn(space.num_tokens, WIDTH).mul(0.02).bfloat16()
    model = GroundedLM(lm, space, PREFIX, rows, None, prefix_memory(space, max_rows) if max_rows else None)
    random = np.random.default_rng(1)
    users = {f"u{n:05}": random.integers(0, ITEMS, HISTORY).tolist() for n in range(40 * BATCH)}
    clock.begin()

    def step_done(done: int, total: int, note: str = "") -> None:
        clock.end()
        clock.begin()

    plan = _WholeSequences(HISTORY, HISTORY, BATCH, 0)
    options = FinetuneOptions(epochs=MANY, lr=1e-4, patience=MANY)
    Finetuner(model, ItemTokens.untitled(codes()), users, plan, options, lambda: 0.0).run(progress=step_done)


class _WholeSequences(BatchPlan):
    """Every sequence as one window; `total_steps` without making 10,000 epochs."""

    def windows(self, sequence: Any, first_length: int) -> Any:
        return super().windows(sequence, self.stride)

    def total_steps(self, train: Any, epochs: int) -> int:
        return MANY


def run_trainer(layers: int, clock: Clock, *, bf16: bool) -> None:
    """Hugging Face's `Trainer` as it comes: float32 weights, SDPA, AdamW, the full head; ``bf16`` is its autocast."""
    from transformers import Trainer, TrainerCallback, TrainingArguments  # seconds that ours need not wait for

    model = decoder(VOCABULARY + LEVELS * CODES, layers, "sdpa", torch.float32)
    code_NL, random = codes(), np.random.default_rng(1)
    token_NL = code_NL + VOCABULARY + CODES * np.arange(LEVELS)
    rows = [[*PREFIX, *token_NL[random.integers(0, ITEMS, HISTORY)].flatten().tolist()] for _ in range(40 * BATCH)]
    unpredicted = len(PREFIX) + LEVELS
    data = [{"input_ids": row, "labels": [-100] * unpredicted + row[unpredicted:]} for row in rows]

    class Timed(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            clock.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            clock.end()

    options = TrainingArguments(
        output_dir=tempfile.mkdtemp(),  # made by the Trainer in any case; nothing is written
        per_device_train_batch_size=BATCH,
        max_steps=MANY,
        use_cpu=True,
        bf16=bf16,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    Trainer(model, options, train_dataset=data, callbacks=[Timed()]).train()


CONTENDERS: dict[str, Callable[[int, Clock], None]] = {
    "ours": run_ours,
    "trainer": lambda layers, clock: run_trainer(layers, clock, bf16=False),
    "trainer_bf16": lambda layers, clock: run_trainer(layers, clock, bf16=True),
}


def contender(name: str) -> Callable[[int, Clock], None]:
    """One of `CONTENDERS`, or ours with a prefix memory: ``memory:ROWS``."""
    if name.startswith(MEMORY):
        return partial(run_ours, max_rows=int(name.removeprefix(MEMORY)))
    return CONTENDERS[name]


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[4]))
    contender(sys.argv[1])(int(sys.argv[2]), Clock(int(sys.argv[3])))

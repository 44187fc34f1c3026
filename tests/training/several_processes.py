"""One process of a small fine-tuning run, started by torchrun; the test compares what it writes."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from service.model.grounded_lm import GroundedLM
from tests.training.test_finetune import CODES, TRAIN, model_and_backbone
from training.batches import BatchPlan, ItemTokens
from training.finetune import FinetuneOptions, Finetuner
from training.grounding.pair_loss import PairLoss
from training.grounding.templates import PairMaker
from training.processes import Processes, joined

TEXTS = [f"thing {number} of {number % 3}" for number in range(20)]


def fine_tuner(model: GroundedLM, made: Any, wanted: dict[str, Any], processes: Processes) -> Finetuner:
    pairs = PairMaker.of(made, model.space, TEXTS, 16)
    loss = PairLoss(model, pairs, torch.from_numpy(CODES), made.output_rows, 5, 0).loss
    options = FinetuneOptions(
        epochs=2, lr=0.01, warmup_steps=2, save_every=3, alignment_steps=2, alignment_weight=wanted["weight"]
    )
    scores = iter([0.1, 0.2, 0.3])

    def validate() -> float:
        assert processes.is_first, "only the first process validates"
        return next(scores)

    # seven windows a batch and one process more than the last batch has windows, sometimes
    return Finetuner(
        model, ItemTokens.untitled(CODES), TRAIN, BatchPlan(5, 5, 7, seed=0), options, validate, loss, processes
    )


def run(wanted: dict[str, Any], processes: Processes) -> None:
    """Fine-tune as ``wanted`` says; every process writes its losses and weights."""
    model, made = model_and_backbone()
    if wanted["dtype"] == "bfloat16":
        model.to(torch.bfloat16)
    out = Path(wanted["out"])

    def stop(done: int, total: int, note: str = "") -> None:
        if done == wanted.get("kill_at"):
            raise SystemExit(9)

    tuner = fine_tuner(model, made, wanted, processes)
    state = tuner.run(out / "state.safetensors", progress=stop)
    rank = processes.share.rank
    save_file({name: value.float() for name, value in model.named_parameters()}, out / f"weights{rank}.safetensors")
    (out / f"losses{rank}.json").write_text(json.dumps({"losses": state.losses, "tokens": state.tokens}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with joined() as joined_processes:
        run(json.loads(sys.argv[1]), joined_processes)

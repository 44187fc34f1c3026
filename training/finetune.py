"""Fine-tuning on next-item generation: every item of a window after its first is predicted, code by code.

The code of level l is predicted from the hidden state one place before, over the K codes of its level. The decoder,
the SID rows and the memory move, the text vocabulary does not. Every few steps the whole state is stored, so that a
killed run continues with the next batch and ends with the same weights. Pairs of text and SID may be learned too,
before (GTI's unfrozen second stage) or beside it (LC-Rec's alignment tasks). With several processes each does its share
of every batch (`trainee.py`) and all end with the same weights; the first validates and writes. It knows nothing of
stages or files but the one state file it is given.

Shapes: B windows, N items, L levels, D model width, M predicted items.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from service.model.grounded_lm import GroundedLM
from training.batches import Batch, BatchPlan, ItemTokens, Window, num_tokens
from training.dropout import add_dropout, seed_dropout
from training.errors import ResumeError
from training.optimizer import MasterAdamW, ParameterGroup
from training.prefix_memory.base import memory_groups
from training.processes import ALONE, Processes
from training.progress import Progress, silent
from training.state_file import load_state, save_state
from training.trainee import Alignment, Trainee
from training.training_log import VALID

Validate = Callable[[], float]
Log = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class FinetuneOptions:
    """How long and how fast.

    ``dropout`` is the share of values that each step leaves out inside the decoder; with ``average`` above 0 a moving
    average of the weights, of that decay, is validated and kept. ``alignment_steps`` train on pairs alone before the
    first epoch; with ``alignment_weight`` above 0 every later step adds the loss of a batch of pairs.
    """

    epochs: int
    lr: float
    memory_lr_factor: float = 5.0
    weight_decay: float = 0.01
    warmup_steps: int = 20
    patience: int = 2
    save_every: int = 50
    log_every: int = 10
    dropout: float = 0.0
    average: float = 0.0
    alignment_steps: int = 0
    alignment_weight: float = 0.0


@dataclass(slots=True)
class FinetuneState:
    """Where a run stands: next epoch and batch, and what was measured so far."""

    epoch: int = 0
    batch: int = 0
    losses: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    tokens: int = 0

    @property
    def best_epoch(self) -> int:
        """The epoch with the highest validation value."""
        return int(np.argmax(self.validation)) if self.validation else -1

    def stale(self, patience: int) -> bool:
        """Whether validation has not improved for ``patience`` epochs."""
        return len(self.validation) - 1 - self.best_epoch >= patience


def next_item_loss(model: GroundedLM, batch: Batch) -> Tensor:
    """Cross-entropy of a predicted item in nats: summed over levels, averaged over predicted items."""
    hidden_BTD = model.hidden(model.embed_sequences(batch.codes_BNL, batch.title_BNT))
    position_ML = model.predicting_positions(batch.codes_BNL, batch.title_BNT)[batch.target_BN]
    window_M = batch.target_BN.nonzero()[:, 0]
    hidden_MLD = hidden_BTD[window_M[:, None], position_ML]
    code_ML = batch.codes_BNL[batch.target_BN]
    levels = code_ML.shape[1]
    logits = [model.level_logits(hidden_MLD[:, n], n, code_ML[:, :n]) for n in range(levels)]
    return torch.stack([F.cross_entropy(logits_MK, code_ML[:, n]) for n, logits_MK in enumerate(logits)]).sum()


def parameter_groups(model: GroundedLM, options: FinetuneOptions) -> list[ParameterGroup]:
    """The decoder, SID rows and memory with their rates; text vocabulary and text head are frozen."""
    model.requires_grad_(True)
    model.lm.get_input_embeddings().requires_grad_(False)
    model.lm.get_parameter("lm_head.weight").requires_grad_(False)
    decoder = [parameter for parameter in model.lm.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in decoder if parameter.ndim > 1]
    rest = [parameter for parameter in decoder if parameter.ndim <= 1]
    rest += [rows for rows in (model.sid_rows, model.sid_head) if rows is not None]
    groups = [ParameterGroup(matrices, options.lr, options.weight_decay), ParameterGroup(rest, options.lr)]
    if model.memory is not None:
        groups += memory_groups(model.memory, options.lr * options.memory_lr_factor)
    return groups


class Finetuner:
    """One fine-tuning run.

    Args:
        model: trained in place; ends with the weights of the best epoch.
        items: the items' SIDs, and their titles where prompts show them.
        train: sequences per user.
        plan: how batches are cut.
        options: how long and how fast.
        validate: measures the model after each epoch, higher is better.
        alignment: the loss of the n-th batch of pairs, where the options ask for pairs.
        processes: the run's processes; each of them makes a `Finetuner` of the same arguments.
    """

    def __init__(
        self,
        model: GroundedLM,
        items: ItemTokens,
        train: Mapping[str, Sequence[int]],
        plan: BatchPlan,
        options: FinetuneOptions,
        validate: Validate,
        alignment: Alignment | None = None,
        processes: Processes = ALONE,
    ) -> None:
        if alignment is None and (options.alignment_steps or options.alignment_weight):
            raise ValueError("the options ask for alignment, but there are no pairs")
        self.model, self.state = model, FinetuneState()
        self._items, self._train, self._plan, self._options = items, train, plan, options
        self._validate, self._alignment = validate, alignment
        self._processes = processes
        if model.memory is not None and processes.share.count > 1:
            model.memory.sparse_gradients = False  # DDP's float32 average and FSDP know dense gradients only
        self._weights = [weight for group in parameter_groups(model, options) for weight in group.parameters]
        # before the model is copied for an accelerator or sharded
        self._dropout = add_dropout(model.lm, options.dropout) if options.dropout else ExitStack()
        self._trainee = Trainee(model, items, next_item_loss, alignment, processes)
        groups = parameter_groups(self._trainee.trained, options)
        self.total_steps = options.alignment_steps + plan.total_steps(train, options.epochs)
        self._optimizer = MasterAdamW(groups, self.total_steps, warmup=self._warmup(), average=options.average)
        self._best: list[Tensor] = []
        self._fingerprint = f"{plan} {options} {model.space} {items.title_NT.shape} {self.total_steps} {model.dtype}"

    def _warmup(self) -> int:
        """A tenth of the steps at most, or a small data set would be over before it is warm."""
        return min(self._options.warmup_steps, max(1, self.total_steps // 10))

    def run(self, state_file: Path | None = None, log: Log | None = None, progress: Progress = silent) -> FinetuneState:
        """Train to the end, from ``state_file`` if it exists.

        Raises:
            ResumeError: the state file does not fit this run.
            PeerError: another process of the run ended.
        """
        if state_file is not None:
            self._load(state_file)
            self._processes.from_first(None)  # the first one removes the file at the end
        log = log or (lambda row: None)
        while self._optimizer.steps < self._options.alignment_steps:
            self._after_step(self._timed(self._align), state_file, log, progress)
        while self.state.epoch < self._options.epochs and not self.state.stale(self._options.patience):
            self._run_epoch(state_file, log, progress)
        self._restore_best()
        self._dropout.close()
        if state_file is not None and self._processes.is_first:
            state_file.unlink(missing_ok=True)
        return self.state

    def _run_epoch(self, state_file: Path | None, log: Log, progress: Progress) -> None:
        batches = self._plan.epoch(self._train, self.state.epoch)
        self.model.train()
        while self.state.batch < len(batches):
            windows = batches[self.state.batch]
            row = self._timed(lambda windows=windows: self._predict(windows))  # type: ignore[misc]
            self.state.batch += 1
            self.state.losses.append(row["loss"])
            self._after_step(row, state_file, log, progress)
        self._end_epoch(log)
        if state_file is not None:
            self._save(state_file)

    def _after_step(self, row: dict[str, Any], state_file: Path | None, log: Log, progress: Progress) -> None:
        done = self._optimizer.steps
        progress(done, self.total_steps, f"loss {row['loss']:.3f}")
        if done % self._options.log_every == 0:
            log(row)
        if state_file is not None and done % self._options.save_every == 0:
            self._save(state_file)

    def _align(self) -> dict[str, Any]:
        """One step on pairs alone."""
        self.model.train()
        _, loss = self._losses([], self._optimizer.steps)
        self._trainee.backward(loss)
        norm = self._optimizer.step()
        return {"epoch": "alignment", "loss": float(loss.detach()), "gradient_norm": norm, "tokens": 0}

    def _predict(self, windows: list[Window]) -> dict[str, Any]:
        """One step on next items, and on pairs beside them if the options say so."""
        weight = self._options.alignment_weight
        loss, pairs = self._losses(windows, self._optimizer.steps if weight else None)
        self._trainee.backward(loss + weight * pairs if weight else loss)
        norm = self._optimizer.step()
        mine = self._processes.share.of(windows) or windows[:1]
        tokens = num_tokens(mine, self._items, self.model.get_buffer("prefix_ids").numel())
        return {"epoch": self.state.epoch, "loss": float(loss.detach()), "gradient_norm": norm, "tokens": tokens}

    def _losses(self, windows: list[Window], pair_step: int | None) -> tuple[Tensor, Tensor]:
        if self._options.dropout:
            seed_dropout(self._plan.seed, self._optimizer.steps, self._processes.share.rank)
        return self._trainee.losses(windows, pair_step)

    def _timed(self, step: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Take a step and say what it cost all processes together."""
        wall, cpu = time.monotonic(), time.process_time()
        row = step()
        wall, cpu = time.monotonic() - wall, time.process_time() - cpu
        state = self.state
        loss, tokens, cpu = self._processes.sum([row["loss"], row.pop("tokens"), cpu])
        row["loss"] = loss / self._processes.share.count
        state.wall_seconds, state.cpu_seconds = state.wall_seconds + wall, state.cpu_seconds + cpu
        state.tokens += int(tokens)
        rate = {"tokens_per_second": tokens / max(wall, 1e-9)}
        spent = {"wall_seconds": state.wall_seconds, "cpu_seconds": state.cpu_seconds}
        return {"step": self._optimizer.steps} | row | rate | spent

    def _end_epoch(self, log: Log) -> None:
        state = self.state
        steps = state.batch
        with self._optimizer.averaged():
            self._trainee.pull()
            state.validation.append(self._processes.from_first(self._validate() if self._processes.is_first else 0.0))
            if state.best_epoch == state.epoch:
                self._best = [weight.detach().clone() for weight in self._weights]
        state.epoch, state.batch = state.epoch + 1, 0
        mean = float(np.mean(state.losses[-steps:]))
        log({"step": self._optimizer.steps, "epoch": state.epoch, "mean_loss": mean, VALID: state.validation[-1]})

    @torch.no_grad()
    def _restore_best(self) -> None:
        for weight, best in zip(self._weights, self._best, strict=False):
            weight.copy_(best)

    def _save(self, path: Path) -> None:
        if not self._processes.is_first and self._processes.sharding is None:
            return
        tensors = self._optimizer.state() | {f"best.{number}": weight for number, weight in enumerate(self._best)}
        tensors["run"] = torch.frombuffer(bytearray(json.dumps(asdict(self.state)).encode()), dtype=torch.uint8)
        if self._processes.is_first:
            save_state(path, tensors, self._fingerprint)

    def _load(self, path: Path) -> None:
        stored = load_state(path, self._fingerprint)
        if stored is None:
            return
        try:
            self.state = FinetuneState(**json.loads(stored["run"].numpy().tobytes()))
            self._optimizer.load_state(stored)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise ResumeError(
                f"{path}: does not fit this run ({error}); delete it to start this stage again"
            ) from error
        count = sum(name.startswith("best.") for name in stored)
        self._best = [stored[f"best.{number}"] for number in range(count)]

"""Grounding through the frozen language model (GTI eq. 2): minimise -log P(answer | prompt) over the new rows only.

Both directions take turns, SID -> text and text -> SID, with the loss on the answer. Backbone, text rows and head take
no part in the optimiser, so nothing (weight decay included) can move them. With a tied head the new rows are trained
as input and as output; an untied head has rows of its own. A run resumes exactly: every batch follows from the seed
and the step alone.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from service.model.grounded_lm import GroundedLM
from training.errors import ResumeError
from training.grounding.base import Clock, GroundingContext, GroundingResult, noisy_mean
from training.grounding.keywords import Keywords
from training.grounding.pair_loss import PairLoss
from training.grounding.regression import Regression
from training.grounding.templates import PairMaker
from training.optimizer import MasterAdamW, ParameterGroup
from training.progress import Progress, silent
from training.state_file import load_state, save_state

SAVE_EVERY = 20
WARMUP_STEPS = 10


@dataclass(frozen=True, slots=True)
class LanguageModelling:
    """Options: steps, pairs a step, learning rate of the rows, text length, and what the rows start from."""

    steps: int = 100
    batch_size: int = 32
    lr: float = 1e-3
    max_text_tokens: int = 28
    start: Literal["mean", "regression", "keywords"] = "mean"

    def ground(
        self, context: GroundingContext, progress: Progress = silent, state_file: Path | None = None
    ) -> GroundingResult:
        """See `Objective.ground`.

        Raises:
            ResumeError: the state file is damaged.
        """
        with _frozen(context.backbone.model):
            run = _Run(context, self, state_file)
            while run.optimizer.steps < self.steps:
                loss = run.step()
                progress(run.optimizer.steps, self.steps, f"loss {loss:.3f}")
            return run.result()


class _Run:
    """The rows in training and everything they are trained against."""

    def __init__(self, context: GroundingContext, options: LanguageModelling, state_file: Path | None) -> None:
        self._context, self._options, self._state_file = context, options, state_file
        self._clock = Clock()
        self._start_rows = _start_rows(context, options)
        start = self._start_rows.to(context.vocabulary_VD.dtype)
        head = None if context.tied else start.clone()
        self._model = GroundedLM(context.backbone.model, context.space, (0,), start, head)
        trained = [rows for rows in (self._model.sid_rows, self._model.sid_head) if rows is not None]
        self.optimizer = MasterAdamW([ParameterGroup(trained, options.lr)], options.steps, warmup=WARMUP_STEPS)
        self.losses: list[float] = []
        self._loss = PairLoss(
            self._model,
            PairMaker.of(context.backbone, context.space, context.texts, options.max_text_tokens),
            torch.from_numpy(context.codes_NL),
            context.backbone.output_rows,
            options.batch_size,
            context.seed,
        )
        self._resume()

    def step(self) -> float:
        """Train on one batch in one direction and return its loss."""
        loss = self._loss.loss(self.optimizer.steps)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.losses.append(float(loss.detach()))
        if self.optimizer.steps % SAVE_EVERY == 0:
            self._save()
        return self.losses[-1]

    def result(self) -> GroundingResult:
        """The rows as they are now and what they cost."""
        head = self._model.sid_head
        steps = self.optimizer.steps
        return GroundingResult(
            self._model.sid_rows.detach().float().clone(),
            None if head is None else head.detach().float().clone(),
            steps * self._options.batch_size,
            steps,
            *self._clock.read(),
            self.losses,
            self._start_rows,
        )

    def _save(self) -> None:
        if self._state_file is not None:
            spent = torch.tensor(self._clock.read(), dtype=torch.float64)
            state = {"losses": torch.tensor(self.losses, dtype=torch.float64), "spent": spent}
            save_state(self._state_file, self.optimizer.state() | state, self._fingerprint())

    def _resume(self) -> None:
        stored = None if self._state_file is None else load_state(self._state_file, self._fingerprint())
        if stored is None:
            return
        try:
            self.optimizer.load_state(stored)
            self.losses = stored["losses"].tolist()
            self._clock.add(*stored["spent"].tolist())
        except (KeyError, RuntimeError) as error:
            raise ResumeError(f"{self._state_file}: does not fit this grounding: {error}; delete it") from error

    def _fingerprint(self) -> str:
        context = self._context
        described = (self._options, context.seed, context.space, context.backbone.source, len(context.vocabulary_VD))
        digest = hashlib.sha256(repr((described, self._model.dtype, context.texts)).encode())
        digest.update(np.ascontiguousarray(context.codes_NL).tobytes())
        return digest.hexdigest()


@contextmanager
def _frozen(model: PreTrainedModel) -> Iterator[None]:
    """No parameter wants a gradient inside the block; their flags and the mode come back afterwards."""
    wanted, training = [parameter.requires_grad for parameter in model.parameters()], model.training
    model.requires_grad_(False).train(False)
    try:
        yield
    finally:
        model.train(training)
        for parameter, flag in zip(model.parameters(), wanted, strict=True):
            parameter.requires_grad_(flag)


def _start_rows(context: GroundingContext, options: LanguageModelling) -> Tensor:
    if options.start == "keywords":
        return Keywords(max_text_tokens=options.max_text_tokens).ground(context).sid_rows
    if options.start == "regression":
        return Regression(max_text_tokens=options.max_text_tokens).ground(context).sid_rows
    return noisy_mean(context.vocabulary_VD, context.space.num_tokens, 0.01, context.seed)

"""Grounding through the frozen language model (GTI eq. 2): minimise -log P(answer | prompt) over the new rows only.

Both directions take turns, SID -> text and text -> SID, with the loss on the answer. Backbone, text rows and head take
no part in the optimiser, so nothing (weight decay included) can move them. With a tied head the new rows are trained
as input and as output; an untied head has rows of its own. A run resumes exactly: every batch follows from the seed
and the step alone.

Shapes: B pairs, T tokens, L levels, D model width, M answer tokens of a batch.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from service.model.grounded_lm import GroundedLM
from training.errors import ResumeError
from training.grounding.base import Clock, GroundingContext, GroundingResult, noisy_mean
from training.grounding.regression import Regression
from training.grounding.templates import PairMaker
from training.optimizer import MasterAdamW, ParameterGroup
from training.progress import Progress, silent
from training.state_file import load_state, save_state

SAVE_EVERY = 20
WARMUP_STEPS = 10
# pairs of so many batches are sorted by length together, so that little of a batch is padding
POOL_BATCHES = 16


@dataclass(frozen=True, slots=True)
class LanguageModelling:
    """Options: steps, pairs a step, learning rate of the rows, text length, and what the rows start from."""

    steps: int = 100
    batch_size: int = 32
    lr: float = 1e-3
    max_text_tokens: int = 28
    start: Literal["mean", "regression"] = "mean"

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
        self._pairs = PairMaker.of(context.backbone, context.space, context.texts, options.max_text_tokens)
        self._codes_NL = torch.from_numpy(context.codes_NL)
        self._start_rows = _start_rows(context, options)
        start = self._start_rows.to(context.vocabulary_VD.dtype)
        head = None if context.tied else start.clone()
        self._model = GroundedLM(context.backbone.model, context.space, (0,), start, head)
        trained = [rows for rows in (self._model.sid_rows, self._model.sid_head) if rows is not None]
        self.optimizer = MasterAdamW([ParameterGroup(trained, options.lr)], options.steps, warmup=WARMUP_STEPS)
        self.losses: list[float] = []
        self._used_tokens = self._pairs.used_tokens()
        lengths_N = np.array([len(ids) for ids in self._pairs.text_ids])
        self._pool = lru_cache(1)(lambda pool: _pool_batches(lengths_N, options.batch_size, context.seed, pool))
        self._resume()

    def step(self) -> float:
        """Train on one batch in one direction and return its loss."""
        number = self.optimizer.steps
        items = self._pool(number // POOL_BATCHES)[number % POOL_BATCHES]
        loss = self._sid_loss(items, number // 2) if number % 2 else self._text_loss(items, number // 2)
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

    def _sid_loss(self, items: list[int], template: int) -> Tensor:
        codes_BL = self._codes_NL[items]
        pairs = self._pairs.ask_sid(items, codes_BL, template)
        hidden_BLD = pairs.before_answers(self._hidden(pairs.token_BT)).view(*codes_BL.shape, -1)
        losses = [
            F.cross_entropy(self._model.level_logits(hidden_BLD[:, level], level), codes_BL[:, level])
            for level in range(self._context.space.levels)
        ]
        return torch.stack(losses).mean()

    def _text_loss(self, items: list[int], template: int) -> Tensor:
        pairs = self._pairs.ask_text(items, self._codes_NL[items], template)
        hidden_MD = pairs.before_answers(self._hidden(pairs.token_BT))
        head = self._context.backbone.output_rows[self._used_tokens]
        return F.cross_entropy(
            F.linear(hidden_MD, head).float(), torch.searchsorted(self._used_tokens, pairs.answers_M)
        )

    def _hidden(self, token_BT: Tensor) -> Tensor:
        return self._model.hidden(self._model.embed_tokens(token_BT))

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
    if options.start == "regression":
        return Regression(max_text_tokens=options.max_text_tokens).ground(context).sid_rows
    return noisy_mean(context.vocabulary_VD, context.space.num_tokens, 0.01, context.seed)


def _pool_batches(lengths_N: np.ndarray, batch_size: int, seed: int, pool: int) -> list[list[int]]:
    """The item numbers of the batches of one pool: random items, similar lengths side by side, in random order."""
    random = np.random.default_rng((seed, pool))
    wanted = batch_size * POOL_BATCHES
    drawn = np.concatenate([random.permutation(len(lengths_N)) for _ in range(-(-wanted // len(lengths_N)))])[:wanted]
    by_length = drawn[np.argsort(lengths_N[drawn], kind="stable")].reshape(POOL_BATCHES, batch_size)
    return [[int(item) for item in batch] for batch in random.permutation(by_length)]

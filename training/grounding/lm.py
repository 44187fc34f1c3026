"""Grounding through the frozen language model (GTI eq. 2): minimise -log P(answer | prompt) over the new rows only.

Both directions are trained, text -> SID and SID -> text, with the loss on the answer. Backbone, text rows and head
are frozen and take no part in the optimiser, so nothing (weight decay included) can move them. With a tied head the
new rows are trained as input and as output; an untied head has rows of its own.

Shapes: B pairs, T tokens, L levels, K codes, D model width, V limited text vocabulary.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.grounding.base import Clock, GroundingContext, GroundingResult, Progress, noisy_mean
from training.grounding.regression import Regression
from training.grounding.templates import Template, Templates, tokenise
from training.optimizer import MasterAdamW, ParameterGroup
from training.state_file import load_state, save_state

SAVE_EVERY = 20


@dataclass(frozen=True, slots=True)
class LanguageModelling:
    """Options: steps, pairs a step, learning rate of the rows, text length, and what the rows start from."""

    steps: int = 100
    batch_size: int = 32
    lr: float = 1e-3
    max_text_tokens: int = 28
    start: Literal["mean", "regression"] = "mean"

    def ground(self, context: GroundingContext, progress: Progress | None = None) -> GroundingResult:
        """See `Objective.ground`; resumes from ``context.state_file``."""
        clock = Clock()
        trainer = _Trainer(context, self)
        trainer.resume()
        for step in range(trainer.optimizer.steps, self.steps):
            loss = trainer.step(step)
            if progress:
                progress(step + 1, self.steps, loss)
            if (step + 1) % SAVE_EVERY == 0:
                trainer.save()
        wall, cpu = clock.read()
        head = None if trainer.head is None else trainer.head.detach().float()
        rows = trainer.rows.detach().float()
        samples = self.steps * self.batch_size
        return GroundingResult(rows, head, self.steps, samples, wall, cpu, trainer.losses)


class _Trainer:
    """The rows in training and everything they are trained against."""

    def __init__(self, context: GroundingContext, options: LanguageModelling) -> None:
        self._context, self._options = context, options
        self._model = context.backbone.model.requires_grad_(False).eval()
        self._embedding = context.vocabulary_VD
        self._templates = tokenise(context.backbone.tokenizer, context.texts, options.max_text_tokens)
        start = _start_rows(context, options)
        self.rows = nn.Parameter(start.to(self._embedding.dtype))
        self.head = None if context.tied else nn.Parameter(start.to(self._embedding.dtype))
        trained = [self.rows] if self.head is None else [self.rows, self.head]
        self.optimizer = MasterAdamW([ParameterGroup(trained, options.lr)], options.steps, warmup=10)
        self.losses: list[float] = []
        self._text_vocabulary, self._text_number = _limited_vocabulary(self._templates, len(self._embedding))

    def step(self, step: int) -> float:
        """One batch in one direction (they alternate); returns the loss."""
        random = np.random.default_rng((self._context.seed, step))
        items = random.choice(len(self._context.texts), min(self._options.batch_size, len(self._context.texts)), False)
        items = items[np.argsort([len(self._templates.text_ids[item]) for item in items], kind="stable")]
        direction = self._templates.text_to_sid if step % 2 else self._templates.sid_to_text
        template = direction[int(random.integers(len(direction)))]
        loss = self._text_to_sid(items, template) if step % 2 else self._sid_to_text(items, template)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.losses.append(float(loss.detach()))
        return self.losses[-1]

    def save(self) -> None:
        """Write rows, optimiser and losses."""
        if self._context.state_file is not None:
            state = self.optimizer.state() | {"losses": torch.tensor(self.losses)}
            save_state(self._context.state_file, state, self._fingerprint())

    def resume(self) -> None:
        """Continue from the state file if it belongs to this grounding."""
        if self._context.state_file is None:
            return
        stored = load_state(self._context.state_file, self._fingerprint())
        if stored is not None:
            self.losses = stored.pop("losses").tolist()
            self.optimizer.load_state(stored)

    def _fingerprint(self) -> str:
        return f"{self._options} {self._context.seed} {self._context.space} {len(self._context.texts)}"

    def _text_to_sid(self, items: np.ndarray, template: Template) -> Tensor:
        space = self._context.space
        codes_BL = torch.from_numpy(self._context.codes_NL[items])
        prompts = [(*template.before, *self._templates.text_ids[item], *template.after) for item in items]
        length_B = torch.tensor([len(prompt) for prompt in prompts])
        longest = int(length_B.max()) + space.levels
        token_BT = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts])
        place_BL = length_B[:, None] + torch.arange(space.levels)
        inputs = self._embed(token_BT)
        inputs = inputs.scatter(1, place_BL[..., None].expand(-1, -1, inputs.shape[-1]), self._sid_inputs(codes_BL))
        hidden_BTD = self._hidden(inputs)
        before_BLD = hidden_BTD.gather(1, (place_BL - 1)[..., None].expand(-1, -1, hidden_BTD.shape[-1]))
        return self._sid_loss(before_BLD, codes_BL)

    def _sid_to_text(self, items: np.ndarray, template: Template) -> Tensor:
        codes_BL = torch.from_numpy(self._context.codes_NL[items])
        answers = [self._templates.text_ids[item] for item in items]
        longest = max(len(answer) for answer in answers)
        answer_BT = torch.tensor([[*answer, *[0] * (longest - len(answer))] for answer in answers])
        real_BT = torch.arange(longest)[None] < torch.tensor([len(answer) for answer in answers])[:, None]
        before, after = (
            self._embed(torch.tensor(ids)[None]).expand(len(items), -1, -1) for ids in (template.before, template.after)
        )
        prompt = torch.cat([before, self._sid_inputs(codes_BL), after], 1)
        hidden_BTD = self._hidden(torch.cat([prompt, self._embed(answer_BT)], 1))
        first = prompt.shape[1] - 1
        logits = F.linear(hidden_BTD[:, first : first + longest][real_BT], self._text_head()).float()
        return F.cross_entropy(logits, self._text_number[answer_BT[real_BT]])

    def _sid_loss(self, hidden_BLD: Tensor, codes_BL: Tensor) -> Tensor:
        rows = self.rows if self.head is None else self.head
        heads = rows.view(self._context.space.levels, self._context.space.codes, -1)
        losses = [
            F.cross_entropy(F.linear(hidden_BLD[:, level], head_KD).float(), codes_BL[:, level])
            for level, head_KD in enumerate(heads)
        ]
        return torch.stack(losses).mean()

    def _sid_inputs(self, codes_BL: Tensor) -> Tensor:
        scale = float(getattr(self._model.get_input_embeddings(), "scalar_embed_scale", 1.0))
        return F.embedding(self._context.space.rows(codes_BL), self.rows) * scale

    def _embed(self, token_BT: Tensor) -> Tensor:
        embedded: Tensor = self._model.get_input_embeddings()(token_BT)
        return embedded

    def _hidden(self, inputs_BTD: Tensor) -> Tensor:
        hidden: Tensor = self._model.base_model(inputs_embeds=inputs_BTD, use_cache=False).last_hidden_state
        return hidden

    def _text_head(self) -> Tensor:
        return self._model.get_parameter("lm_head.weight").data[self._text_vocabulary]


def _start_rows(context: GroundingContext, options: LanguageModelling) -> Tensor:
    if options.start == "regression":
        return Regression(max_text_tokens=options.max_text_tokens).ground(context).sid_rows
    return noisy_mean(context.vocabulary_VD, context.space.num_tokens, 0.01, context.seed)


def _limited_vocabulary(templates: Templates, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Token ids that occur in item texts [V], and each token's number among them: the text loss needs no other rows."""
    used = torch.tensor(sorted({token for ids in templates.text_ids for token in ids}))
    number = torch.zeros(vocabulary, dtype=torch.int64)
    number[used] = torch.arange(len(used))
    return used, number

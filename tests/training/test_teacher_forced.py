"""Teacher-forced accuracy against one user, one level at a time."""

import numpy as np
import torch

from service.model.grounded_lm import GroundedLM
from service.model.semantic_ids import SidSpace
from tests.training.tiny_backbone import WIDTH, backbone
from training.batches import ItemTokens
from training.data import Example
from training.teacher_forced import teacher_forced_accuracy

CODES = np.array([[0, 0], [0, 1], [1, 0], [2, 2], [2, 0], [1, 1]])
HISTORIES = [(0,), (1, 2, 3), (4, 5, 0, 1, 2), (3,)]


def model() -> GroundedLM:
    made = backbone()
    torch.manual_seed(4)
    return GroundedLM(made.model, SidSpace(2, 3, len(made.tokenizer)), (5, 6), torch.randn(6, WIDTH) * 0.3)


@torch.no_grad()
def one_by_one(given: GroundedLM, history: tuple[int, ...], target: int) -> list[bool]:
    right = []
    for level in range(2):
        known = given.embed_items(torch.from_numpy(CODES[target])[None, :level]) if level else None
        inputs = given.embed_sequences(torch.from_numpy(CODES[list(history)])[None])
        hidden = given.hidden(inputs if known is None else torch.cat([inputs, known], 1))[0, -1]
        right.append(int(given.level_logits(hidden, level).argmax()) == int(CODES[target, level]))
    return right


def test_it_is_what_asking_level_by_level_gives() -> None:
    given = model()
    examples = [Example("u", history, target) for history in HISTORIES for target in range(6)]
    wanted = np.mean([one_by_one(given, e.history[-4:], e.target) for e in examples], 0)
    found = teacher_forced_accuracy(given, ItemTokens.untitled(CODES), examples, max_items=4, batch_size=5)
    assert found == wanted.tolist()
    assert min(found) > 0 and max(found) < 1

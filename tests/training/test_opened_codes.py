"""The experiment on opened codes opens what a service opens, and counts as it says."""

from pathlib import Path

import numpy as np
import pytest
import torch

from service.app import Parts
from service.model.checkpoint import Checkpoint
from service.model.grounded_lm import load_grounded_lm
from service.stores.memory_items import MemoryItemLog
from service.vectors import pack, unpack
from tests.integration.test_codes_while_serving import KIND, SHAPE, KindEncoder, open_codes, post_kind, sid_of
from tests.service_doubles import FakeEngine, exact_checkpoint, running
from training.cold_items import ColdItems, posted_sids
from training.cold_report import ColdReport
from training.data import CatalogItem, Example
from training.experiments.opened_codes import opening
from training.experiments.opened_codes.finding import kinds
from training.experiments.paired_answers import compare


@pytest.fixture(scope="module")
def spare(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return exact_checkpoint(Path(tmp_path_factory.mktemp("spare")) / "tiny", SHAPE)


def posted(spare: Checkpoint) -> ColdItems:
    """The checkpoint's items, and behind them those that `post_kind` posts, rounded as the log keeps them."""
    tensors, texts = spare.catalog_tensors(), [*(f"kind {n}" for n in range(KIND)), "like Title 7"]
    new_ME = np.stack([unpack(pack(vector_E)) for vector_E in KindEncoder(spare).encode(texts)])
    row_N = np.array([*range(SHAPE.items), *[-1] * len(texts)])
    codes_NL = np.concatenate([tensors.codes_NL, posted_sids(spare, new_ME)]).astype(np.int64)
    embedding_NE = np.concatenate([tensors.embedding_NE, new_ME])
    return ColdItems(
        row_N, codes_NL, embedding_NE, np.zeros(len(row_N), np.int64), (), (), (), np.empty((len(row_N), 0), np.int64)
    )


async def test_items_move_to_the_sids_and_engines_get_the_rows_that_a_service_gives(spare: Checkpoint) -> None:
    made, engine = opening.open_codes(spare, posted(spare), 10), FakeEngine(spare)
    parts = Parts(engine=engine, encoder=KindEncoder(spare), item_log=MemoryItemLog())
    async with running(spare, parts, allow_volatile=True, code_min_items=10) as service:
        await post_kind(service)
        await open_codes(service)
        served = [tuple(await sid_of(service, f"new-{n}")) for n in range(KIND)]
    assert list(map(tuple, made.items.codes_NL[SHAPE.items : SHAPE.items + KIND].tolist())) == served
    assert made.moved == set(range(SHAPE.items, SHAPE.items + KIND))
    model = load_grounded_lm(spare, torch.float32)
    made.ground(model, spare)
    (row,) = engine.written
    place = spare.space.level_start(row.level) - spare.space.first_token_id + row.code
    assert model.sid_rows[place].tolist() == pytest.approx(list(row.input_D), abs=1e-6)


def test_differences_are_taken_over_the_same_users_and_the_same_items() -> None:
    examples = [Example("u", (0,), 1), Example("v", (0,), 1), Example("w", (0,), 2), Example("x", (0,), 2)]
    lists = {"base": [[1, 2], [3, 4], [1, 3], [0, 1]], "other": [[1, 2], [1, 0], [2, 3], [0, 1]]}
    rows = compare(ColdReport(2, 200, 0), lists, "base", examples, np.array([False, True, True, False, False]))
    assert rows["base"]["over_users"][0] == 0.25 and rows["other"]["over_users"][0] == 0.75
    assert rows["base"]["over_items"][0] == 0.25 and rows["other"]["over_items"][0] == 0.75
    assert rows["other"]["less_base_over_users"][0] == 0.5 and "less_base_over_users" not in rows["base"]
    assert rows["base"]["share_of_slots"] == 0.5 and rows["other"]["share_of_slots"] == 5 / 8


def test_kinds_are_the_values_of_an_attribute_or_those_at_one_place_of_a_path() -> None:
    items = tuple(CatalogItem(f"i{n}", "t", "", {"path": path}) for n, path in enumerate([("a", "b"), ("a", "c", "b")]))
    assert kinds(items, "path", None) == {"a": 2, "b": 2, "c": 1}
    assert kinds(items, "path", 1) == {"b": 1, "c": 1}

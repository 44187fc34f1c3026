"""Both experiments on posted items, run through on a model that never met a kind of items."""

from pathlib import Path

import pytest

from service.model.checkpoint import open_checkpoint
from tests.training.tiny_run import ITEMS, TinyWorld
from training.checkpoint_calibration import ColdStudy, open_study
from training.experiments.collision_policies import measure as policies
from training.experiments.collision_policies.policies import POLICIES
from training.experiments.opened_codes import measure as opened
from training.experiments.paired_answers import WAYS
from training.progress import QuietReporter

KIND = "size=2"
OF_KIND = sum(number % 3 == 2 for number in range(ITEMS))


@pytest.fixture(scope="module")
def study(world: TinyWorld, tmp_path_factory: pytest.TempPathFactory) -> ColdStudy:
    folder: Path = tmp_path_factory.mktemp("kind") / "run"
    sids, finetune = {"codes": 8, "spare_codes": 2, "max_collision_rate": 0.9}, {"epochs": 1}
    data, evaluate = {"hold_out_kinds": [KIND]}, {"max_users": 5}
    world.pipeline(folder, data=data, sids=sids, finetune=finetune, evaluate=evaluate).train()
    return open_study(folder / "checkpoint", [], folder, QuietReporter(), 20)


def test_the_model_never_met_the_kind(study: ColdStudy) -> None:
    assert len(study.items.new_M) == OF_KIND
    assert not [item for item in open_checkpoint(study.checkpoint.folder).items() if item.attributes["size"] == 2]


def test_all_arms_ask_the_same_users_and_only_differences_to_closed_are_told(study: ColdStudy) -> None:
    found = opened.measure(study, 1.0, 2, "scaled")
    cold, warm = study.items.split(study.items.test)
    assert found["new_items"] == OF_KIND and found["rows"] == "scaled"
    assert set(found["groups"]) >= {KIND, "all new items", "moved items", "known items"}
    for name, users in ((KIND, len(cold)), ("known items", min(20, len(warm)))):
        for way in WAYS:
            rows = found["groups"][name][way]
            assert [rows[arm]["users"] for arm in opened.ARMS] == [users] * len(opened.ARMS)
            assert "less_base_over_users" not in rows["closed"] and "less_opened_over_users" in rows["grounded"]


def test_every_policy_is_measured_with_the_services_own_as_the_base(study: ColdStudy) -> None:
    found = policies.measure(study, 1.0)
    assert set(found["policies"]) == set(POLICIES) and found["base"] == "least_filled"
    assert found["policies"]["bucket"]["sids"]["keeps_own_prefix"] == 1.0
    for name, row in found["policies"].items():
        assert ("less_base_over_users" in row["beside"]["new"]) == (name != "least_filled")

"""Every arm of the prefix-memory experiments runs from data to metrics in the tiny world."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.tiny_run import TinyWorld
from training.errors import TrainingError
from training.finetune import parameter_groups
from training.next_item import options
from training.pipeline import Pipeline

ARMS: dict[str, dict[str, Any]] = {
    "off": {"enabled": False},
    "random": {"pretraining": "none"},
    "generative_retrieval": {"pretraining": "generative_retrieval"},
    "joint_lm": {"pretraining": "joint_lm"},
    "exact": {"kind": "exact"},
    "full_prefix": {"kind": "full_prefix", "pretraining": "generative_retrieval"},
    "transformer": {"kind": "transformer", "width": 16, "pretraining": "joint_lm"},
    "gate": {"gate": True, "output_std": 0.01},
    "output_bias": {"output_bias": True},
    "sparse": {"sparse": True, "pretraining": "generative_retrieval"},
}


def run(world: TinyWorld, finished: Pipeline, folder: Path, arm: dict[str, Any], **more: dict[str, Any]) -> Pipeline:
    """A pipeline that starts from the finished run's grounded rows."""
    for stage in ("data", "embed", "sids", "grounding"):
        shutil.copytree(finished.run.path / "stages" / stage, folder / "stages" / stage)
    memory = {"pretrain_batch_size": 16, **arm}
    return world.pipeline(folder, prefix_memory=memory, finetune={"epochs": 1, "valid_users": 5}, **more)


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_runs_to_its_metrics(world: TinyWorld, finished: Pipeline, tmp_path: Path, arm: str) -> None:
    pipeline = run(world, finished, tmp_path / "run", ARMS[arm])
    metrics = pipeline.evaluated.read_json("metrics.json")
    assert metrics["illegal_rate"] == 0.0
    assert len(metrics["teacher_forced"]) == 2
    assert metrics["users"] > 0
    memory = pipeline.trained[1].memory
    assert (memory is None) == (arm == "off")
    if memory is not None:
        assert memory.w_out.weight.any()
    if arm == "output_bias":
        assert memory is not None
        assert memory.output_bias is not None
        assert memory.output_bias[0].any()


def test_a_control_is_not_exported(world: TinyWorld, finished: Pipeline, tmp_path: Path) -> None:
    pipeline = run(world, finished, tmp_path / "run", ARMS["exact"])
    with pytest.raises(TrainingError, match="service cannot run it"):
        pipeline.train()
    assert pipeline.run.find("evaluate") is not None
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_a_sparse_memory_is_exported_like_any_other(world: TinyWorld, finished: Pipeline, tmp_path: Path) -> None:
    pipeline = run(world, finished, tmp_path / "run", ARMS["sparse"])
    pipeline.train()
    assert (tmp_path / "run" / "checkpoint" / "manifest.json").exists()


@pytest.mark.parametrize("pretraining", ["classification", "generative_retrieval", "joint_lm"])
def test_pretraining_moves_the_rows_of_training_items_only(
    world: TinyWorld, finished: Pipeline, tmp_path: Path, pretraining: str
) -> None:
    drawn = run(world, finished, tmp_path / "drawn", {"pretraining": "none"})._parts().memory
    learned = run(world, finished, tmp_path / "learned", {"pretraining": pretraining})._parts().memory
    assert drawn is not None
    assert learned is not None
    for order, (before, after) in enumerate(zip(drawn.tables, learned.tables, strict=True)):
        touched = learned.touched(order) > 0
        assert torch.equal(touched, drawn.touched(order) > 0)
        assert torch.equal(before[~touched], after[~touched])
        # classification predicts the next code, and behind a whole SID there is none
        learns = pretraining != "classification" or order < learned.config.levels - 1
        assert torch.equal(before[touched], after[touched]) != learns
    assert not learned.w_out.weight.any()


def test_tables_never_decay_and_learn_five_times_as_fast(world: TinyWorld, finished: Pipeline, tmp_path: Path) -> None:
    for sparse in (False, True):
        pipeline = run(world, finished, tmp_path / str(sparse), {"sparse": sparse, "pretraining": "none"})
        model, recipe = pipeline._parts().assemble(), pipeline.recipe
        assert model.memory is not None
        tables = {id(table) for table in model.memory.tables}
        groups = [g for g in parameter_groups(model, options(recipe)) if tables & {id(p) for p in g.parameters}]
        assert [(g.lr, g.weight_decay, g.sparse) for g in groups] == [(5 * recipe.finetune.lr, 0.0, sparse)]

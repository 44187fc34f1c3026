"""A whole run, small: from tables to a checkpoint that the service can open, and on again after any stop."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from service.model.checkpoint import open_checkpoint
from service.model.grounded_lm import GroundedLM, load_grounded_lm
from service.model.torch_beam import TorchBeamModel
from tests.training.tiny_run import ITEMS, USERS, TinyWorld, item_row
from training import export, recommender
from training.errors import GateError, TrainingError
from training.pipeline import Pipeline
from training.progress import QuietReporter, Reporter
from training.recommender import BeamRecommender
from training.stages import RunFolder
from training.trained_model import WEIGHTS

ROOT = Path(__file__).resolve().parents[2]


def said(pipeline: Pipeline) -> list[str]:
    """Everything a run says, by name of the stage."""

    class Listening(Reporter):
        def __init__(self) -> None:
            super().__init__()
            self.lines: list[str] = []

        def say(self, line: str) -> None:
            self.lines.append(line)

    listening = Listening()
    pipeline.run = RunFolder(pipeline.run.path, listening)
    pipeline.train()
    return listening.lines


def test_a_run_ends_in_a_checkpoint_that_opens_and_recommends(finished: Pipeline) -> None:
    checkpoint = open_checkpoint(finished.run.path / "checkpoint")
    tensors = checkpoint.catalog_tensors()
    model = load_grounded_lm(checkpoint, torch.float32)
    ours = BeamRecommender(model, tensors.codes_NL, tensors.popularity_N, max_items=8, beam_width=ITEMS)
    answer = ours.recommend([(0, 1, 2)], exclude_seen=False)
    assert sorted(answer.items[0]) == list(range(ITEMS))
    assert answer.illegal == 0


def test_the_checkpoint_says_how_it_was_made(finished: Pipeline) -> None:
    manifest = open_checkpoint(finished.run.path / "checkpoint").manifest
    assert manifest.recipe == finished.recipe.model_dump(mode="json")
    assert manifest.metrics["export_max_abs_logit_difference"] == 0.0
    assert manifest.metrics["seen_excluded"]["ours"]["recall@10"] >= 0
    assert manifest.data.fingerprint == finished.data.dataset.fingerprint
    assert manifest.serving.exclude_seen
    assert [item.item_id for item in open_checkpoint(finished.run.path / "checkpoint").items()] == [
        item_row(number)["item_id"] for number in range(ITEMS)
    ]


def test_stages_hold_only_safetensors_and_json(finished: Pipeline) -> None:
    kinds = {path.suffix for path in finished.run.path.rglob("*") if path.is_file()}
    assert kinds - {".lock"} == {".csv", ".json", ".jsonl", ".safetensors"}


def test_the_histories_hold_every_interaction_in_order(finished: Pipeline) -> None:
    rows = [json.loads(line) for line in (finished.run.path / "histories.jsonl").read_text().splitlines()]
    assert len(rows) == USERS
    assert sum(len(row["items"]) for row in rows) == finished.data.dataset.num_interactions
    for row in rows:
        times = [timestamp for _, timestamp in row["items"]]
        assert times == sorted(times)


def test_training_beats_popularity_where_there_is_a_habit(world: TinyWorld, tmp_path: Path) -> None:
    pipeline = world.pipeline(tmp_path / "run", finetune={"epochs": 25, "patience": 25})
    metrics = pipeline.train()["seen_excluded"]
    assert metrics["ours"]["recall@5"] > metrics["popularity"]["recall@5"] + 0.3
    assert metrics["ours_minus_popularity"]["recall@5"][1] > 0


def test_a_second_run_makes_nothing_again(finished: Pipeline) -> None:
    again = Pipeline(finished.recipe, finished.run, finished.run.path.parent / "cache")
    lines = [line for line in said(again) if not line.startswith("data: ") or "earlier" in line]
    stages = ("data", "embed", "sids", "grounding", "prefix_memory", "finetune", "blend", "evaluate", "export")
    assert sorted(lines) == sorted(f"{stage}: done earlier" for stage in stages)


def test_a_changed_input_redoes_the_stages_behind_it_and_says_so(world: TinyWorld, tmp_path: Path) -> None:
    world.pipeline(tmp_path / "run").train()
    lines = said(world.pipeline(tmp_path / "run", finetune={"epochs": 1}))
    changed = {line.partition(":")[0] for line in lines if "its inputs changed, made again" in line}
    assert changed == {"finetune", "blend", "evaluate", "export"}


def test_stopping_early_is_said_aloud(world: TinyWorld, tmp_path: Path) -> None:
    rest = {"epochs": 9, "patience": 2, "lr": 1e-12}  # nothing moves, so no epoch is better than the first
    pipeline = world.pipeline(
        tmp_path / "run", finetune=rest, prefix_memory={"enabled": False}, blend={"enabled": False}
    )
    lines = said(pipeline)
    assert "finetune: stopped early, no gain for 2 epochs" in lines
    assert "finetune: the weights of epoch 1 are kept" in lines
    assert len(pipeline.finetuned.read_json("finetune.json")["validation_ndcg"]) == 3


def test_a_missing_checkpoint_is_exported_again(world: TinyWorld, tmp_path: Path) -> None:
    pipeline = world.pipeline(tmp_path / "run")
    pipeline.train()
    (tmp_path / "run" / "checkpoint" / "manifest.json").unlink()
    world.pipeline(tmp_path / "run").train()
    assert open_checkpoint(tmp_path / "run" / "checkpoint")


def test_a_kill_in_fine_tuning_loses_nothing(world: TinyWorld, tmp_path: Path) -> None:
    changes = {"finetune": {"epochs": 40, "patience": 40, "save_every": 1, "valid_users": 5}}
    recipe = world.toml(tmp_path / "tiny.toml", **changes)
    killed, whole = tmp_path / "killed", world.pipeline(tmp_path / "whole", **changes)
    state_file = killed / "state" / "finetune.safetensors"
    child = start_training(recipe, killed)
    while not state_file.exists() and child.poll() is None:
        time.sleep(0.01)
    time.sleep(0.2)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert state_file.exists(), "the child ended before it could be killed"
    assert not (killed / "stages" / "finetune").exists()
    resumed = start_training(recipe, killed)
    assert resumed.wait() == 0
    expected = load_file(whole.finetuned.folder / WEIGHTS)
    found = load_file(killed / "stages" / "finetune" / WEIGHTS)
    assert expected.keys() == found.keys()
    assert max(float((expected[name].float() - found[name].float()).abs().max()) for name in expected) == 0.0
    told = json.loads((killed / "stages" / "finetune" / "finetune.json").read_text())
    assert told["final_loss"] == whole.finetuned.read_json("finetune.json")["final_loss"]
    assert not state_file.exists()


def start_training(recipe: Path, out: Path) -> subprocess.Popen[bytes]:
    code = "import torch; torch.set_num_threads(1); from training.cli import app; app()"
    command = [sys.executable, "-c", code, "train", "--recipe", str(recipe), "--out", str(out)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_a_full_disk_while_exporting_leaves_the_old_checkpoint(
    world: TinyWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "write_catalog", full)
    with pytest.raises(TrainingError, match="No space left on device"):
        world.pipeline(tmp_path / "run").train()
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert not list((tmp_path / "run").glob(".checkpoint*"))
    monkeypatch.undo()
    world.pipeline(tmp_path / "run").train()
    assert open_checkpoint(tmp_path / "run" / "checkpoint")


def test_a_checkpoint_with_other_logits_is_not_exported(
    world: TinyWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = load_grounded_lm

    def shifted(*args: object) -> object:
        model = honest(*args)  # type: ignore[arg-type]
        model.sid_rows.data += 1
        return model

    monkeypatch.setattr(export, "load_grounded_lm", shifted)
    with pytest.raises(TrainingError, match="logits differ"):
        world.pipeline(tmp_path / "run").train()
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_collapsed_codes_stop_training(world: TinyWorld, tmp_path: Path) -> None:
    with pytest.raises(GateError, match=r"sids\.max_collision_rate"):
        world.pipeline(
            tmp_path / "run", sids={"levels": 1, "codes": 8, "policy": "bucket", "max_collision_rate": 0.1}
        ).train()


@pytest.mark.parametrize("policy", ["extra_level", "bucket"])
def test_every_collision_policy_goes_through(world: TinyWorld, tmp_path: Path, policy: str) -> None:
    sids = {"policy": policy, "max_collision_rate": 1.0, "codes": 16}
    pipeline = world.pipeline(tmp_path / "run", sids=sids, finetune={"epochs": 1})
    assert pipeline.train()["illegal_rate"] == 0.0
    levels = open_checkpoint(tmp_path / "run" / "checkpoint").space.levels
    assert levels == (3 if policy == "extra_level" else 2)


def test_a_run_without_a_memory_goes_through(world: TinyWorld, tmp_path: Path) -> None:
    world.pipeline(tmp_path / "run", prefix_memory={"enabled": False}, finetune={"epochs": 1}).train()
    assert open_checkpoint(tmp_path / "run" / "checkpoint").manifest.prefix_memory is None


def test_the_target_is_never_in_its_own_prompt(finished: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """IDGenRec #1: the held-out item leaked into the input text."""
    read: list[list[int]] = []

    class Overheard(TorchBeamModel):
        def __init__(self, model: GroundedLM, prompts: Sequence[Sequence[int]]) -> None:
            read.extend(list(prompt) for prompt in prompts)
            super().__init__(model, prompts)

    monkeypatch.setattr(recommender, "TorchBeamModel", Overheard)
    evaluation, model = finished.evaluation(), finished.trained[1]
    evaluation.measure(finished.recommender(), QuietReporter())
    sequences = finished.data.dataset.sequences
    assert all(example.history == sequences[example.user_id][:-1] for example in evaluation.examples)
    sids = finished.codes_NL.tolist()
    expected = [
        [*model.get_buffer("prefix_ids").tolist()]
        + [token for item in example.history[-8:] for token in model.space.token_ids(sids[item])]
        for example in evaluation.examples
    ]
    assert sorted(read) == sorted(2 * expected)

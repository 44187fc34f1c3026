"""From a run that held items out to a checkpoint with a dial, and what evaluation then says of new items."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from service.model.checkpoint import change_manifest, open_checkpoint
from tests.training.tiny_run import ITEMS, TinyWorld
from training.checkpoint_calibration import ColdStudy, open_study
from training.cli import app
from training.pipeline import Pipeline
from training.progress import QuietReporter

HELD_OUT = 16


@pytest.fixture(scope="module")
def held_out(world: TinyWorld, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    pipeline = world.pipeline(tmp_path_factory.mktemp("held_out") / "run", data={"hold_out": HELD_OUT / ITEMS})
    pipeline.train()
    return pipeline


@pytest.fixture
def checkpoint(held_out: Pipeline, tmp_path: Path) -> Path:
    return Path(shutil.copytree(held_out.run.path / "checkpoint", tmp_path / "checkpoint"))


def study(folder: Path) -> ColdStudy:
    return open_study(folder, [], folder.parent, QuietReporter(), None)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def figures(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    loaded: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return loaded


def test_the_checkpoint_knows_nothing_of_held_out_items(checkpoint: Path) -> None:
    opened, items = open_checkpoint(checkpoint), study(checkpoint).items
    known = {item.item_id for item in opened.items()}
    assert len(known) == opened.manifest.data.num_items == ITEMS - HELD_OUT
    assert {f"i{number}" for number in items.new_M} == {f"i{number}" for number in range(ITEMS)} - known


def test_new_items_get_sids_and_unit_embeddings_as_posted_ones_do(checkpoint: Path) -> None:
    items = study(checkpoint).items
    taken = {tuple(codes) for codes in open_checkpoint(checkpoint).catalog_tensors().codes_NL.tolist()}
    for sid in items.codes_NL[items.new_M].tolist():
        full = len({known for known in taken if known[0] == sid[0]}) == 8
        assert full or tuple(sid) not in taken
        taken.add(tuple(sid))
    norms = torch.from_numpy(items.embedding_NE).norm(dim=1)
    assert torch.allclose(norms, torch.ones(ITEMS), atol=1e-5)


def test_no_example_is_without_a_history_the_model_knows(checkpoint: Path) -> None:
    items = study(checkpoint).items
    for example in (*items.valid, *items.test):
        assert any(not items.is_new_N[item] for item in example.history)


def test_calibration_writes_a_dial_that_evaluation_then_uses(checkpoint: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(checkpoint, tmp_path / "other"))
    before = open_checkpoint(checkpoint).manifest
    told = figures(call("calibrate", "--checkpoint", str(checkpoint), "--into", str(other), "--max-share", "0.4"))
    assert told["written"] == [str(checkpoint), str(other)]
    for folder in (checkpoint, other):
        part = open_checkpoint(folder).manifest.smoothing.new_items
        assert part is not None
        assert (part.bias, part.text, part.max_share) == (told["dial"]["bias"], told["dial"]["text"], 0.4)
    assert open_checkpoint(checkpoint).manifest.model_version == before.model_version
    cold = figures(call("evaluate", "--checkpoint", str(checkpoint)))["cold"]
    assert cold["ours"]["cold"] == told["ours"]["cold"]
    assert cold["ours"]["exposure"]["share_of_slots"] <= 0.4
    assert set(cold["injected_exposure_ratio"]) == {"instruction", "control_tokens", "sid_tokens"}
    assert set(cold["injected_exposure_ratio_clean_histories"]) == set(cold["injected_exposure_ratio"])


def test_an_uncalibrated_checkpoint_has_the_recipe_s_dial_and_says_so(checkpoint: Path) -> None:
    smoothing = open_checkpoint(checkpoint).manifest.smoothing
    assert smoothing.new_items is not None
    assert (smoothing.new_items.bias, smoothing.new_items.text, smoothing.new_items.model) == (0.0, 1.0, 0.0)
    assert smoothing.new_items.fitted_on == "the recipe"
    assert smoothing.boost < 0.01


def test_without_a_dial_new_items_have_no_places(checkpoint: Path) -> None:
    change_manifest(checkpoint, {"smoothing": {"temperature": 0.1, "boost": 2.0}})
    cold = figures(call("evaluate", "--checkpoint", str(checkpoint)))["cold"]
    assert cold["dial"] is None
    assert cold["ours"]["exposure"]["share_of_slots"] == 0
    assert cold["ours"]["warm"]["relative_change"] == [0.0, 0.0, 0.0]


def test_a_dry_run_leaves_the_manifest_alone(checkpoint: Path) -> None:
    before = (checkpoint / "manifest.json").read_bytes()
    assert figures(call("calibrate", "--checkpoint", str(checkpoint), "--dry-run"))["written"] == []
    assert (checkpoint / "manifest.json").read_bytes() == before


def test_a_checkpoint_that_knows_every_item_is_refused_with_the_way_out(finished: Pipeline) -> None:
    result = call("calibrate", "--run", str(finished.run.path))
    assert result.exit_code == 2
    assert "nothing new; train with --set data.hold_out=0.05" in result.output


def test_calibrate_needs_to_know_what(tmp_path: Path) -> None:
    assert call("calibrate").exit_code == 2
    assert "no-such" in call("calibrate", "--checkpoint", str(tmp_path / "no-such")).output

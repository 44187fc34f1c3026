"""The commands: one JSON object on the last line, one line for an error, nothing written by a dry run."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from service.model.checkpoint import open_checkpoint
from tests.training.tiny_run import ITEMS, TinyWorld
from training.cli import app
from training.evaluate import Evaluation
from training.pipeline import Pipeline
from training.recommender import Recommended


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def figures(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    loaded: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return loaded


def test_a_dry_run_tells_the_cost_and_writes_nothing(world: TinyWorld, tmp_path: Path) -> None:
    recipe = world.toml(tmp_path / "tiny.toml")
    before = sorted(tmp_path.rglob("*"))
    told = figures(call("train", "--recipe", str(recipe), "--out", str(tmp_path / "run"), "--dry-run"))
    assert sorted(tmp_path.rglob("*")) == before
    assert told["items"] == ITEMS
    assert told["finetune_steps"] > 0
    assert told["total_minutes"] > 0
    assert told["memory_gib"] > 0


def test_train_ends_with_its_figures(world: TinyWorld, tmp_path: Path) -> None:
    recipe, out = world.toml(tmp_path / "tiny.toml"), tmp_path / "run"
    target = tmp_path / "figures.json"
    result = call(
        "train",
        "--recipe",
        str(recipe),
        "--out",
        str(out),
        "--set",
        "finetune.epochs=1",
        "--seed",
        "3",
        "--json",
        str(target),
    )
    told = figures(result)
    assert json.loads(target.read_text()) == told
    manifest = open_checkpoint(Path(told["checkpoint"])).manifest
    assert (manifest.recipe["seed"], manifest.recipe["finetune"]["epochs"]) == (3, 1)


def test_evaluating_the_checkpoint_gives_the_run_s_figures(finished: Pipeline) -> None:
    told = figures(call("evaluate", "--run", str(finished.run.path)))
    expected = finished.evaluated.read_json("metrics.json")
    same = ("seen_excluded", "seen_included", "illegal_rate", "distinct_rate", "collision_rate", "code_entropy_bits")
    for name in (*same, "teacher_forced"):
        assert told[name] == expected[name], name
    assert len(told["code_entropy_bits"]) == len(told["teacher_forced"]) == 2


def test_evaluating_says_aloud_where_ours_is_below_a_baseline(
    finished: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def worst(self: Evaluation, *_: object) -> Recommended:
        nothing: list[list[Any]] = [[] for _ in self.examples]
        return Recommended(nothing, nothing, illegal=0)

    monkeypatch.setattr(Evaluation, "_recommended", worst)
    result = call("evaluate", "--run", str(finished.run.path))
    assert {row["baseline"] for row in figures(result)["below_baselines"]} >= {"co_occurrence"}
    assert "warning: below the baseline co occurrence (seen excluded)" in result.stderr


def test_ground_reports_what_it_cost(world: TinyWorld, tmp_path: Path) -> None:
    grounding = {"objective": "lm", "options": None}
    recipe = tmp_path / "tiny.toml"
    text = world.toml(recipe, grounding=grounding).read_text()
    recipe.write_text(text.replace("options = null", "options = { steps = 3, batch_size = 4, max_text_tokens = 8 }"))
    told = figures(call("ground", "--recipe", str(recipe), "--run", str(tmp_path / "run")))
    assert (told["steps"], told["samples"]) == (3, 12)
    assert told["last_loss"] > 0
    windows = told["finetune_samples"]
    assert told["grounding_share_of_samples"] == 12 / (12 + windows)
    spent, estimated = told["wall_seconds"], told["estimated_finetune_seconds"]
    assert estimated > 0
    assert told["estimated_share_of_time"] == pytest.approx(spent / (spent + estimated))


def test_ground_measures_its_share_where_the_recipe_is_fine_tuned(
    finished: Pipeline, world: TinyWorld, tmp_path: Path
) -> None:
    recipe = world.toml(tmp_path / "tiny.toml")
    told = figures(call("ground", "--recipe", str(recipe), "--run", str(finished.run.path)))
    training = finished.evaluated.read_json("metrics.json")["training"]
    assert set(training["cpu_seconds"]) == {"embed", "sids", "grounding", "prefix_memory", "finetune", "blend"}
    assert 0 < told["grounding_share_of_cpu"] == training["grounding_share_of_cpu"] < 1
    assert told["finetune_samples"] == training["finetune_samples"] > 0
    other = ("--set", "finetune.lr=0.02")
    told = figures(call("ground", "--recipe", str(recipe), "--run", str(finished.run.path), *other))
    assert "grounding_share_of_cpu" not in told
    assert told["estimated_share_of_time"] >= 0


def test_figures_are_printed_even_where_their_file_cannot_be_written(finished: Pipeline, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    checkpoint = str(finished.run.path / "checkpoint")
    result = call("inspect", "--checkpoint", checkpoint, "--json", str(tmp_path / "file" / "figures.json"))
    assert result.exit_code == 2
    assert json.loads(result.stdout.splitlines()[-1])["items"] == ITEMS
    assert str(tmp_path / "file") in result.stderr.splitlines()[-1]
    made = tmp_path / "new" / "figures.json"
    figures(call("inspect", "--checkpoint", checkpoint, "--json", str(made)))
    assert json.loads(made.read_text())["items"] == ITEMS


def test_inspect_counts_sids(finished: Pipeline) -> None:
    told = figures(call("inspect", "--checkpoint", str(finished.run.path / "checkpoint")))
    assert told["items"] == ITEMS
    assert len(told["per_level"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--recipe", "nothing", "--out", "x"], "recipe 'nothing' is unknown"),
        (["train", "--recipe", "quickstart", "--out", "x", "--set", "sids.code=3"], "did you mean 'codes'"),
        (["train", "--recipe", "tables", "--out", "x"], "needs --items"),
        (["evaluate", "--checkpoint", "nowhere"], "not found"),
        (["evaluate"], "needs --run DIR or --checkpoint DIR"),
        (["inspect", "--checkpoint", "nowhere"], "not found"),
    ],
)
def test_errors_are_one_line_and_code_two(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len([line for line in result.stderr.splitlines() if line]) == 1

"""An experiment is checked before it runs, writes a row per arm, goes on where it stopped, compares users in pairs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.training.tiny_run import TinyWorld, build
from training.artefacts import RANKS, read_planes
from training.errors import RecipeError, TrainingError
from training.experiments.experiment import experiment_names, load_experiment
from training.experiments.results import write_results
from training.experiments.run import ExperimentRun
from training.experiments.summary import summarise
from training.progress import QuietReporter
from training.report.experiment_report import experiment_report
from training.report.run_report import MOMENTS, run_report


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TinyWorld:
    return build(tmp_path_factory.mktemp("experiment-world"))


def written(folder: Path, world: TinyWorld, **changes: str) -> Path:
    recipe = world.toml(folder / "recipe.toml", evaluate={"ks": [1, 5, 10, 20, 50], "beam_width": 50})
    fields = {"question": "Which?", "recipe": str(recipe), "reference": "mean"} | changes
    lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
    lines += ["seeds = [0, 1]", 'base = ["finetune.epochs=1"]', "[arms]"]
    lines += ['mean = ["grounding.objective=mean"]', 'random = ["grounding.objective=random"]']
    (folder / "experiment.toml").write_text("\n".join(lines))
    return folder / "experiment.toml"


@pytest.mark.parametrize("name", experiment_names())
def test_what_comes_with_the_project_can_be_run(name: str) -> None:
    assert load_experiment(name).reference in load_experiment(name).arms


def test_a_wrong_arm_is_found_before_anything_runs(tmp_path: Path, world: TinyWorld) -> None:
    path = written(tmp_path, world)
    path.write_text(path.read_text().replace("objective=random", "objectiv=random"))
    with pytest.raises(RecipeError, match="arm 'random'.*did you mean 'objective'"):
        load_experiment(str(path))
    with pytest.raises(RecipeError, match="reference 'none' is no arm"):
        load_experiment(str(written(tmp_path, world, reference="none")))
    with pytest.raises(RecipeError, match="choose .*initialisation"):
        load_experiment("nothing")


def test_arms_run_go_on_and_end_as_results(tmp_path: Path, world: TinyWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = load_experiment(str(written(tmp_path, world)))
    run = ExperimentRun(experiment, tmp_path / "out", tmp_path / "cache", QuietReporter())
    run.run(arms=["mean"], seeds=[0])
    # the sibling's stages are taken over
    monkeypatch.setattr("training.artefacts.embed_items", lambda *_, **__: pytest.fail("embedded again"))
    run.run(seeds=[0])
    assert [(row["arm"], row["seed"]) for row in run.rows()] == [("mean", 0), ("random", 0)]
    results = write_results(run, run.rows(), tmp_path / "results")
    table = (tmp_path / "results" / "results.md").read_text()
    assert "finetune.epochs=1" in table and "| random |" in table
    assert results["random"]["recall@5"]["minus_reference95"][0] == pytest.approx(
        results["random"]["recall@5"]["by_seed"][0] - results["mean"]["recall@5"]["by_seed"][0]
    )
    (run.folder("mean", 0) / "stages" / "evaluate" / RANKS).rename(tmp_path / "aside")
    with pytest.raises(TrainingError, match=r"ranks.safetensors: cannot be read.*take mean, seed 0 out of rows.jsonl"):
        write_results(run, run.rows(), None)
    (tmp_path / "aside").rename(run.folder("mean", 0) / "stages" / "evaluate" / RANKS)
    assert (tmp_path / "results" / "recall.svg").read_text().startswith("<svg")
    assert not list((tmp_path / "out").rglob("weights.safetensors"))
    page = experiment_report("Which <one>?", "mean", results)
    assert "Which &lt;one&gt;?" in page
    assert "http" not in page.replace("http://www.w3.org/", "")
    run_page = run_report(run.folder("mean", 0))
    for heading in ("Data", "Semantic IDs", "rows", "Fine-tuning", "Results", "popularity", "Teacher-forced", "Time"):
        assert heading in run_page
    assert run_page.count("<svg") >= 7
    for figure in ("RSA r", "RSA ρ", "Ours minus each", "answers that name no item", "The weights of epoch", "samples"):
        assert figure in run_page
    assert all(cost in page for cost in ("grounding samples", "fine-tuning CPU s", "RSA ρ", "seeds"))
    for text in (page, run_page):
        assert 'src="' not in text and "<link" not in text and "<script" not in text and "@import" not in text
        assert "http" not in text.replace("http://www.w3.org/", "")
    planes = read_planes(run.folder("mean", 0) / "stages" / "finetune") | read_planes(
        run.folder("mean", 0) / "stages" / "grounding"
    )
    assert {name: plane.shape for name, plane in planes.items()} == dict.fromkeys(MOMENTS, (16, 2))


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no finished stage"):
        run_report(tmp_path)


def test_differences_are_taken_in_pairs_after_the_mean_over_seeds() -> None:
    hit, miss = 0, -1
    ranks = {
        ("a", 0): np.array([hit, miss, hit, miss] * 50),
        ("a", 1): np.array([hit, hit, miss, miss] * 50),
        ("b", 0): np.array([hit, hit, hit, miss] * 50),
        ("b", 1): np.array([hit, hit, hit, miss] * 50),
    }

    def of(arm: str, seed: int) -> dict[str, NDArray[np.int64]]:
        return {"seen_excluded/ours": ranks[arm, seed]}

    summary = summarise([row(arm, seed) for arm, seed in ranks], of, "a", (1,))
    assert summary["a"]["recall@1"]["by_seed"] == [0.5, 0.5]
    assert summary["a"]["recall@1"]["interval95"][0] == 0.5
    mean, low, high = summary["b"]["recall@1"]["minus_reference95"]
    assert mean == 0.25 and 0.2 < low < 0.25 < high < 0.3  # half the users gain 0.5 whatever the seed
    assert "minus_reference95" not in summary["a"]["recall@1"]


def row(arm: str, seed: int) -> dict[str, Any]:
    moment = {"effective_rank": 1.0, "rsa": [{"pearson": 0.0, "spearman": 0.0}], "cosine_within": [0.0]}
    return {
        "arm": arm,
        "seed": seed,
        "metrics": {"teacher_forced": [0.1]},
        "finetune": {"final_loss": 1.0, "cpu_seconds": 1.0},
        "grounding": {"cpu_seconds": 1.0, "samples": 1},
        "rows": {"start": moment},
    }

"""Popularity bands share the training events, and the report tells them apart."""

import numpy as np

from training.config import EvaluateRecipe
from training.data import Example
from training.evaluate import Evaluation, Ranks, popularity_bands, warning_lines


def test_each_band_holds_about_a_third_of_the_events() -> None:
    popularity = np.random.default_rng(0).zipf(1.6, 2000).clip(max=500)
    band = popularity_bands(popularity)
    shares = [popularity[band == n].sum() / popularity.sum() for n in range(3)]
    assert all(0.25 < share < 0.42 for share in shares)
    assert popularity[band == 0].max() <= popularity[band == 1].min()
    assert popularity[band == 1].max() <= popularity[band == 2].min()


def test_no_events_at_all_leave_everything_rare() -> None:
    assert popularity_bands(np.zeros(3, np.int64)).tolist() == [0, 0, 0]


def test_a_report_has_the_recall_of_each_band() -> None:
    popularity = np.array([1, 1, 1, 3, 3])
    examples = [Example(f"u{n}", (0,), n) for n in range(5)]
    ranks = {"ours": np.array([0, -1, 3, 0, 12]), "popularity": np.array([-1, -1, -1, 0, 1])}
    evaluation = Evaluation(examples, {}, EvaluateRecipe(ks=(1, 5)), 0, popularity)
    report = evaluation.report(Ranks({"seen_excluded": ranks, "seen_included": ranks}, 0.0, 1.0))
    bands = report["by_popularity"]
    assert [bands[name]["users"] for name in ("rare", "medium", "popular")] == [3, 1, 1]
    assert bands["rare"]["seen_excluded"]["ours"]["recall@5"] == 2 / 3
    assert bands["medium"]["seen_excluded"]["ours"]["recall@1"] == 1
    assert bands["popular"]["seen_excluded"]["popularity"]["recall@1"] == 0


def test_a_report_names_the_baselines_that_ours_is_surely_below_and_no_others() -> None:
    examples = [Example(f"u{n}", (), 0) for n in range(100)]
    ours, better = np.array([5] * 20 + [-1] * 80), np.array([5] * 60 + [-1] * 40)
    ranks = {"ours": ours, "better": better, "worse": np.array([5] * 5 + [-1] * 95), "equal": ours[::-1].copy()}
    options = EvaluateRecipe(ks=(10,), bootstrap_samples=200)
    baselines = {name: lambda histories: np.zeros((1, 1)) for name in ("better", "worse", "equal")}
    evaluation = Evaluation(examples, baselines, options, 0)  # type: ignore[arg-type]
    report = evaluation.report(Ranks({"seen_excluded": ranks}, 0.0, 1.0))
    (below,) = report["below_baselines"]
    assert (below["baseline"], below["way"]) == ("better", "seen_excluded")
    (line,) = warning_lines([below])
    assert line.startswith("warning: below the baseline better (seen excluded) at recall@10 by 0.4000")

"""Evaluation of a model and of the simple baselines on the same held-out items, with and without seen items.

A hit is the held-out item itself. Every figure that is compared carries a bootstrap interval over users, and ours minus
a baseline is resampled in pairs. It takes recommendations from a `BeamRecommender` and knows nothing of training.

Shapes: U users, N items, E embedding width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from training.baselines import CoOccurrence, Popularity, Scorer, TextNeighbours, rank
from training.bootstrap import interval, paired_difference
from training.config import EvaluateRecipe
from training.data import Example, Split
from training.metrics import gains, hits, summary, target_ranks
from training.progress import Reporter
from training.recommender import BeamRecommender

OURS = "ours"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is measured on: held-out examples, the baselines that compete, the recipe's options."""

    examples: Sequence[Example]
    baselines: Mapping[str, Scorer]
    options: EvaluateRecipe
    seed: int

    def measure(self, recommender: BeamRecommender, reporter: Reporter) -> dict[str, Any]:
        """Everything, as plain data for JSON."""
        report: dict[str, Any] = {"users": len(self.examples), "beam_width": self.options.beam_width}
        for name, exclude_seen in (("seen_excluded", True), ("seen_included", False)):
            report[name] = self._one_way(recommender, exclude_seen, report, reporter)
        return report

    def _one_way(
        self, recommender: BeamRecommender, exclude_seen: bool, report: dict[str, Any], reporter: Reporter
    ) -> dict[str, Any]:
        label = "evaluate, seen items " + ("excluded" if exclude_seen else "included")
        with reporter.task(label) as progress:
            histories = [example.history for example in self.examples]
            ours = recommender.recommend(histories, exclude_seen=exclude_seen, progress=progress)
        self._count(ours.items, ours.illegal, report)
        lists = {OURS: ours.items} | {
            name: rank(scorer, self.examples, length=max(self.options.ks), exclude_seen=exclude_seen)
            for name, scorer in self.baselines.items()
        }
        targets = [example.target for example in self.examples]
        rank_U = {name: target_ranks(items, targets) for name, items in lists.items()}
        measured: dict[str, Any] = {name: self._row(ranks) for name, ranks in rank_U.items()}
        for name in self.baselines:
            measured[f"{OURS}_minus_{name}"] = self._difference(rank_U[OURS], rank_U[name])
        return measured

    def _count(self, lists: Sequence[Sequence[int]], illegal: int, report: dict[str, Any]) -> None:
        slots = max(1, sum(len(items) for items in lists))
        distinct = sum(len(set(items)) for items in lists)
        report["illegal_rate"] = max(report.get("illegal_rate", 0.0), illegal / (slots + illegal))
        report["distinct_rate"] = min(report.get("distinct_rate", 1.0), distinct / slots)

    def _row(self, rank_U: NDArray[np.int64]) -> dict[str, Any]:
        intervals = {
            name: interval(value_U, samples=self.options.bootstrap_samples, seed=self.seed).as_list()
            for name, value_U in _values(rank_U, self.options.ks).items()
        }
        return summary(rank_U, self.options.ks) | {"interval95": intervals}

    def _difference(self, ours_U: NDArray[np.int64], theirs_U: NDArray[np.int64]) -> dict[str, list[float]]:
        ours, theirs = _values(ours_U, self.options.ks), _values(theirs_U, self.options.ks)
        samples = self.options.bootstrap_samples
        return {
            name: paired_difference(ours[name], theirs[name], samples=samples, seed=self.seed).as_list()
            for name in ours
        }


def standard_baselines(
    split: Split, popularity_N: NDArray[np.int64], embedding_NE: NDArray[np.float32]
) -> dict[str, Scorer]:
    """Popularity, co-occurrence and text neighbours."""
    return {
        "popularity": Popularity(popularity_N),
        "co_occurrence": CoOccurrence(split.train, len(popularity_N)),
        "text_neighbours": TextNeighbours(embedding_NE),
    }


def sample(examples: Sequence[Example], size: int | None, seed: int) -> list[Example]:
    """``size`` examples drawn without replacement, in their order; all if there are no more."""
    if size is None or size >= len(examples):
        return list(examples)
    chosen = np.random.default_rng(seed).choice(len(examples), size, replace=False)
    return [examples[number] for number in np.sort(chosen)]


def tables(report: Mapping[str, Any], ks: Sequence[int]) -> list[Table]:
    """The report for people."""
    return [_table(report, way, ks) for way in ("seen_excluded", "seen_included")]


def _table(report: Mapping[str, Any], way: str, ks: Sequence[int]) -> Table:
    title = f"{report['users']} users, beam {report['beam_width']}, {way.replace('_', ' ')}"
    table = Table(title=title)
    rows = {name: row for name, row in report[way].items() if "_minus_" not in name}
    for heading in ("", *rows):
        table.add_column(heading.replace("_", " "), justify="right" if heading else "left")
    for metric in (f"{kind}@{k}" for kind in ("recall", "ndcg") for k in ks):
        table.add_row(metric, *(f"{row[metric]:.3f}" for row in rows.values()))
    return table


def _values(rank_U: NDArray[np.int64], ks: Sequence[int]) -> dict[str, NDArray[np.float64]]:
    return {f"recall@{k}": hits(rank_U, k) for k in ks} | {f"ndcg@{k}": gains(rank_U, k) for k in ks}

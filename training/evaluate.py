"""Evaluation of a model and of the simple baselines on the same held-out items, with and without seen items.

A hit is the held-out item itself. Every figure that is compared carries a bootstrap interval over users, and ours minus
a baseline is resampled in pairs. Everything follows from each user's target rank, which is kept, so that runs can be
compared in pairs later. It takes recommendations from a `Recommender` and knows nothing of training.

Shapes: U users, N items, E embedding width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from training.baselines import Scorer, rank
from training.bootstrap import interval, paired_difference
from training.config import EvaluateRecipe
from training.data import Example
from training.metrics import gains, hits, summary, target_ranks
from training.progress import Reporter
from training.recommender import Recommended, Recommender, SidRecommender

OURS = "ours"
MODEL_ALONE = "model_alone"
JUDGED = "recall@10"
WAYS = {"seen_excluded": True, "seen_included": False}
BANDS = ("rare", "medium", "popular")


@dataclass(frozen=True, slots=True)
class Ranks:
    """0-based target ranks int64 [U] by way and recommender, and what the lists were like over both ways.

    ``illegal_rate`` is the share of answered SIDs that name no item, ``distinct_rate`` the smallest share of distinct
    items in the lists.
    """

    by_way: Mapping[str, Mapping[str, NDArray[np.int64]]]
    illegal_rate: float
    distinct_rate: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is measured on: held-out examples, the baselines that compete, the recipe's options.

    ``popularity_N`` int64 [N] are training events per item; with them the report tells rare from popular targets.
    """

    examples: Sequence[Example]
    baselines: Mapping[str, Scorer | SidRecommender]
    options: EvaluateRecipe
    seed: int
    popularity_N: NDArray[np.int64] | None = None

    def measure(self, recommender: Recommender, reporter: Reporter) -> dict[str, Any]:
        """Everything, as plain data for JSON."""
        return self.report(self.ranks(recommender, reporter))

    def ranks(self, recommender: Recommender, reporter: Reporter) -> Ranks:
        """Let ours and the baselines recommend, without and with seen items; a blended ours also without the blend."""
        by_way: dict[str, dict[str, NDArray[np.int64]]] = {}
        illegal, distinct = [], []
        for way, exclude_seen in WAYS.items():
            ours = self._recommended(recommender, exclude_seen, reporter)
            slots = max(1, sum(len(items) for items in ours.items))
            illegal.append(ours.illegal / (slots + ours.illegal))
            distinct.append(sum(len(set(items)) for items in ours.items) / slots)
            by_way[way] = {OURS: self._target_ranks(ours.items)}
            if ours.beam is not None:
                by_way[way][MODEL_ALONE] = self._target_ranks(ours.beam.items)
            by_way[way] |= {
                name: self._target_ranks(self._ranked(scorer, exclude_seen)) for name, scorer in self.baselines.items()
            }
        return Ranks(by_way, max(illegal), min(distinct))

    def report(self, ranks: Ranks) -> dict[str, Any]:
        """Figures with intervals, by way."""
        head: dict[str, Any] = {"users": len(self.examples), "beam_width": self.options.beam_width}
        head |= {"illegal_rate": ranks.illegal_rate, "distinct_rate": ranks.distinct_rate}
        figures = {way: self._figures(rank_U) for way, rank_U in ranks.by_way.items()}
        return head | figures | {"below_baselines": below_baselines(figures)} | self._popularity(ranks)

    def _recommended(self, recommender: Recommender, exclude_seen: bool, reporter: Reporter) -> Recommended:
        label = "evaluate, seen items " + ("excluded" if exclude_seen else "included")
        with reporter.task(label) as progress:
            histories = [example.history for example in self.examples]
            return recommender.recommend(histories, exclude_seen=exclude_seen, progress=progress)

    def _ranked(self, scorer: Scorer | SidRecommender, exclude_seen: bool) -> list[list[int]]:
        if isinstance(scorer, SidRecommender):
            return scorer.recommend([example.history for example in self.examples], exclude_seen=exclude_seen).items
        return rank(scorer, self.examples, length=max(self.options.ks), exclude_seen=exclude_seen)

    def _target_ranks(self, lists: Sequence[Sequence[int]]) -> NDArray[np.int64]:
        return target_ranks(lists, [example.target for example in self.examples])

    def _figures(self, rank_U: Mapping[str, NDArray[np.int64]]) -> dict[str, Any]:
        measured: dict[str, Any] = {name: self._row(ranks) for name, ranks in rank_U.items()}
        for name in rank_U:
            if name == OURS:
                continue
            measured[f"{OURS}_minus_{name}"] = self._difference(rank_U[OURS], rank_U[name])
        return measured

    def _popularity(self, ranks: Ranks) -> dict[str, Any]:
        if self.popularity_N is None:
            return {}
        band_N = popularity_bands(self.popularity_N)
        band_U = band_N[[example.target for example in self.examples]]
        return {
            "by_popularity": {
                name: {
                    "items": int((band_N == band).sum()),
                    "users": int((band_U == band).sum()),
                    "seen_excluded": {
                        who: summary(rank_U[band_U == band], self.options.ks)
                        for who, rank_U in ranks.by_way["seen_excluded"].items()
                        if (band_U == band).any()
                    },
                }
                for band, name in enumerate(BANDS)
            }
        }

    def _row(self, rank_U: NDArray[np.int64]) -> dict[str, Any]:
        intervals = {
            name: interval(value_U, samples=self.options.bootstrap_samples, seed=self.seed).as_list()
            for name, value_U in values(rank_U, self.options.ks).items()
        }
        return summary(rank_U, self.options.ks) | {"interval95": intervals}

    def _difference(self, ours_U: NDArray[np.int64], theirs_U: NDArray[np.int64]) -> dict[str, list[float]]:
        ours, theirs = values(ours_U, self.options.ks), values(theirs_U, self.options.ks)
        samples = self.options.bootstrap_samples
        return {
            name: paired_difference(ours[name], theirs[name], samples=samples, seed=self.seed).as_list()
            for name in ours
        }


def below_baselines(figures: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The baselines that ours is below at Recall@10 by way, their paired 95 % interval being wholly below zero."""
    mark = f"{OURS}_minus_"
    return [
        {"baseline": name.removeprefix(mark), "way": way, JUDGED: row[JUDGED]}
        for way, rows in figures.items()
        for name, row in rows.items()
        if name.startswith(mark) and JUDGED in row and row[JUDGED][2] < 0
    ]


def warning_lines(below: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each baseline that ours is below."""
    lines = []
    for row in below:
        difference, low, high = row[JUDGED]
        who = f"{row['baseline'].replace('_', ' ')} ({row['way'].replace('_', ' ')})"
        lines.append(
            f"warning: below the baseline {who} at {JUDGED} by {-difference:.4f} "
            f"(95 % of the difference in {low:.4f} .. {high:.4f}); this checkpoint recommends worse than that"
        )
    return lines


def popularity_bands(popularity_N: NDArray[np.int64]) -> NDArray[np.int64]:
    """0 (rare), 1 (medium) or 2 (popular) per item, int64 [N]: each band holds about a third of all training events."""
    order = np.argsort(popularity_N, kind="stable")
    before_N = np.cumsum(popularity_N[order]) - popularity_N[order]
    band_N = np.empty(len(popularity_N), np.int64)
    band_N[order] = np.minimum(3 * before_N // max(int(popularity_N.sum()), 1), 2)
    return band_N


def sample(examples: Sequence[Example], size: int | None, seed: int) -> list[Example]:
    """``size`` examples drawn without replacement, in their order; all if there are no more."""
    if size is None or size >= len(examples):
        return list(examples)
    chosen = np.random.default_rng(seed).choice(len(examples), size, replace=False)
    return [examples[number] for number in np.sort(chosen)]


def tables(report: Mapping[str, Any], ks: Sequence[int]) -> list[Table]:
    """The report for people."""
    return [*(_table(report, way, ks) for way in WAYS), _levels_table(report)]


def _table(report: Mapping[str, Any], way: str, ks: Sequence[int]) -> Table:
    title = f"{report['users']} users, beam {report['beam_width']}, {way.replace('_', ' ')}"
    table = Table(title=title)
    rows = {name: row for name, row in report[way].items() if "_minus_" not in name}
    for heading in ("", *rows):
        table.add_column(heading.replace("_", " "), justify="right" if heading else "left")
    for metric in (f"{kind}@{k}" for kind in ("recall", "ndcg") for k in ks):
        table.add_row(metric, *(f"{row[metric]:.3f}" for row in rows.values()))
    return table


def _levels_table(report: Mapping[str, Any]) -> Table:
    rates = [f"{name} {report[name + '_rate']:.1%}" for name in ("illegal", "distinct", "collision")]
    table = Table(title=f"rates: {', '.join(rates)}")
    for heading in ("level", "teacher-forced accuracy", "code entropy, bits"):
        table.add_column(heading, justify="right")
    rows = zip(report["teacher_forced"], report["code_entropy_bits"], strict=True)
    for number, (share, bits) in enumerate(rows, 1):
        table.add_row(str(number), f"{share:.3f}", f"{bits:.2f}")
    return table


def values(rank_U: NDArray[np.int64], ks: Sequence[int]) -> dict[str, NDArray[np.float64]]:
    """Per user and metric what is averaged, float64 [U]."""
    return {f"recall@{k}": hits(rank_U, k) for k in ks} | {f"ndcg@{k}": gains(rank_U, k) for k in ks}

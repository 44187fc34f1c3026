"""Rows of an experiment to figures: means over seeds, intervals over users, every arm against the reference in pairs.

A user's value is averaged over seeds first; users are then resampled in pairs. So an interval holds the chance of the
users drawn, and the spread over seeds stands beside it.

Shapes: U users, S seeds.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.bootstrap import interval, paired_difference
from training.evaluate import OURS, values

RanksOf = Callable[[str, int], Mapping[str, NDArray[np.int64]]]
SAMPLES = 2000


def summarise(
    rows: Sequence[Mapping[str, Any]], ranks_of: RanksOf, reference: str, ks: Sequence[int], way: str = "seen_excluded"
) -> dict[str, Any]:
    """Figures per arm, as plain data.

    Args:
        rows: as `ExperimentRun.rows` returns them.
        ranks_of: target ranks by arm and seed.
        reference: the arm that others are compared with, on the seeds both have.
        ks: list lengths.
        way: with or without seen items.
    """
    seeds: dict[str, list[int]] = {}
    for row in rows:
        seeds.setdefault(str(row["arm"]), []).append(int(row["seed"]))
    per_user = {arm: _by_seed(arm, numbers, ranks_of, ks, way) for arm, numbers in seeds.items()}
    return {arm: _figures(arm, per_user, seeds, reference) | _costs(arm, rows) for arm in seeds}


def _by_seed(
    arm: str, seeds: Sequence[int], ranks_of: RanksOf, ks: Sequence[int], way: str
) -> dict[int, dict[str, NDArray[np.float64]]]:
    return {seed: values(ranks_of(arm, seed)[f"{way}/{OURS}"], ks) for seed in seeds}


def _figures(
    arm: str,
    per_user: Mapping[str, Mapping[int, Mapping[str, NDArray[np.float64]]]],
    seeds: Mapping[str, Sequence[int]],
    reference: str,
) -> dict[str, Any]:
    mine = per_user[arm]
    common = sorted(set(seeds[arm]) & set(seeds.get(reference, [])))
    figures: dict[str, Any] = {"seeds": sorted(seeds[arm])}
    for metric in next(iter(mine.values())):
        mean_U = np.mean([mine[seed][metric] for seed in seeds[arm]], 0)
        by_seed = [float(mine[seed][metric].mean()) for seed in seeds[arm]]
        found: dict[str, Any] = {"interval95": interval(mean_U, samples=SAMPLES, seed=0).as_list(), "by_seed": by_seed}
        if common and arm != reference:
            ours_U, theirs_U = (
                np.mean([per_user[name][seed][metric] for seed in common], 0) for name in (arm, reference)
            )
            found["minus_reference95"] = paired_difference(ours_U, theirs_U, samples=SAMPLES, seed=0).as_list()
        figures[metric] = found
    return figures


def _costs(arm: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    mine = [row for row in rows if row["arm"] == arm]

    def mean(read: Callable[[Mapping[str, Any]], float]) -> float:
        return float(np.mean([read(row) for row in mine]))

    levels = np.mean([row["metrics"]["teacher_forced"] for row in mine], 0)
    return {
        "teacher_forced": levels.tolist(),
        "final_loss": mean(lambda row: float(row["finetune"]["final_loss"])),
        "finetune_cpu_seconds": mean(lambda row: float(row["finetune"]["cpu_seconds"])),
        "grounding_cpu_seconds": mean(lambda row: float(row["grounding"]["cpu_seconds"])),
        "grounding_samples": mean(lambda row: float(row["grounding"]["samples"])),
        "effective_rank": _by_moment(mine, lambda moment: float(moment["effective_rank"])),
        "rsa_pearson": _by_moment(mine, lambda moment: float(np.mean([level["pearson"] for level in moment["rsa"]]))),
        "rsa_spearman": _by_moment(mine, lambda moment: float(np.mean([level["spearman"] for level in moment["rsa"]]))),
        "cosine_within": _by_moment(mine, lambda moment: float(np.mean(moment["cosine_within"]))),
    }


def _by_moment(rows: Sequence[Mapping[str, Any]], read: Callable[[Mapping[str, Any]], float]) -> dict[str, float]:
    """The mean over rows at each moment: start, grounded, fine-tuned."""
    return {moment: float(np.mean([read(row["rows"][moment]) for row in rows])) for moment in rows[0]["rows"]}

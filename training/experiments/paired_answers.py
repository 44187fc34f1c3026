"""Answers of one model about the same users under several placements of the new items, compared in pairs.

Two ways to answer: ``beam``, where new items come out of the smoothed beam (a checkpoint without a dial), and
``beside``, where the dial scores them beside it (the default). It knows neither how SIDs were chosen nor why.

Shapes: U users, N items.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.model.new_items import NewItemDial
from training.bootstrap import interval, paired_difference
from training.calibrate import CalibrationOptions, Group, blended, new_places
from training.cold_items import ColdItems
from training.cold_report import ColdReport
from training.data import Example
from training.experiments.smoothed_beam import SmoothedBeam
from training.metrics import hits, target_ranks
from training.recommender import Recommended

WAYS = ("beam", "beside")
Lists = list[list[int]]


def answer(beam: SmoothedBeam, examples: Sequence[Example], k: int, label: str) -> dict[str, Lists]:
    """The first ``k`` places of every user, by way."""
    found = beam.recommend(examples, label)
    model = trained_only(found, beam.items)
    part = beam.checkpoint.manifest.smoothing.new_items
    dial = NewItemDial(0.0, 1.0, 0.0, decay=0.7) if part is None else part.dial
    options = CalibrationOptions(k=k) if part is None else CalibrationOptions(k=k, max_share=part.max_share)
    places = new_places(beam.items, Group(examples, model), dial, k)
    return {"beam": [ids[:k] for ids in found.items], "beside": blended(model, places, options)}


def compare(
    report: ColdReport, lists: Mapping[str, Lists], base: str, examples: Sequence[Example], is_new_N: NDArray[np.bool_]
) -> dict[str, dict[str, Any]]:
    """Per arm the hit rate over users and over items, ``[mean, low, high]``, each less the base arm's, and places."""
    hit = {arm: hits(target_ranks(found, [e.target for e in examples]), report.k) for arm, found in lists.items()}
    over_items = {arm: _over_items(hit_U, examples) for arm, hit_U in hit.items()}
    rows: dict[str, dict[str, Any]] = {}
    for arm, found in lists.items():
        rows[arm] = {
            "users": len(examples),
            "items": len(over_items[arm]),
            "over_users": _mean(report, hit[arm]),
            "over_items": _mean(report, over_items[arm]),
            "share_of_slots": report.exposure(found, is_new_N)["share_of_slots"],
        }
        if arm != base:
            rows[arm]["less_base_over_users"] = _difference(report, hit[arm], hit[base])
            rows[arm]["less_base_over_items"] = _difference(report, over_items[arm], over_items[base])
    return rows


def trained_only(found: Recommended, items: ColdItems) -> Recommended:
    """Without the new items: what the model itself says."""
    new = items.is_new_N
    pairs = [
        [(item, score) for item, score in zip(ids, scores, strict=True) if not new[item]]
        for ids, scores in zip(found.items, found.scores, strict=True)
    ]
    return Recommended([[i for i, _ in user] for user in pairs], [[s for _, s in user] for user in pairs], 0)


def _over_items(hit_U: NDArray[np.float64], examples: Sequence[Example]) -> NDArray[np.float64]:
    by_item: dict[int, list[float]] = defaultdict(list)
    for hit, example in zip(hit_U.tolist(), examples, strict=True):
        by_item[example.target].append(hit)
    return np.array([np.mean(by_item[item]) for item in sorted(by_item)])


def _mean(report: ColdReport, value_U: NDArray[np.float64]) -> list[float]:
    if not len(value_U):
        return [0.0, 0.0, 0.0]
    return _rounded(interval(value_U, samples=report.samples, seed=report.seed).as_list())


def _difference(report: ColdReport, ours_U: NDArray[np.float64], base_U: NDArray[np.float64]) -> list[float]:
    if not len(ours_U):
        return [0.0, 0.0, 0.0]
    return _rounded(paired_difference(ours_U, base_U, samples=report.samples, seed=report.seed).as_list())


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values]

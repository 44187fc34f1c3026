"""The dial of new items, fitted on items that the model has never met and set by what the known items may lose.

Coefficients by maximum likelihood on validation (`new_item_fit`); then one offset is added to the bias: the largest one
at which users whose next item was known lose no more than half of the budget. Where the likelihood alone puts new items
they may be shown to nobody, and nobody learns whether they are liked; the budget says what finding out may cost. The
other half is kept for what validation does not see: the loss grows with the number of new items. The test targets are
not looked at. It is given recommendations, and knows nothing of models, checkpoints and files.

Shapes: U users, M new items, K places, F features.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.model.new_items import NewItemDial, merge, most_new_items
from training.cold_items import ColdItems
from training.cold_report import ColdReport
from training.data import Example
from training.errors import DataError
from training.new_item_fit import Fit, Trials, fit
from training.new_item_scores import NewItemScorer, ScorerOf
from training.recommender import Recommended

TEMPERATURES = (0.05, 0.07, 0.1, 0.15)
DECAYS = (0.6, 0.8)
OFFSETS = tuple(float(offset) for offset in np.arange(-3.0, 3.01, 0.25))
MIN_USERS = 20
SPENT = 0.5  # of the budget, on validation

NewPlaces = list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Group:
    """Users of one kind (next item new, or known), what the beam found for them, and how often each counts."""

    examples: Sequence[Example]
    found: Recommended
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class CalibrationOptions:
    """The first ``k`` places, the relative loss that known items may suffer, the share of places new items may take."""

    k: int = 10
    warm_loss: float = 0.02
    max_share: float = 0.2
    history: int = 10


def calibrate(
    cold_items: ColdItems,
    cold: Group,
    warm: Group,
    report: ColdReport,
    options: CalibrationOptions,
    scorer: ScorerOf = NewItemScorer,
) -> tuple[NewItemDial, dict[str, Any]]:
    """The dial and how it came about: likelihoods by shape and the trade of warm against cold by offset.

    Raises:
        DataError: too few users met new items to fit anything on.
    """
    if len(cold.examples) < MIN_USERS:
        raise DataError(
            f"only {len(cold.examples)} users came to a new item, {MIN_USERS} are needed; raise data.hold_out"
        )
    fits = _fits(cold_items, cold, warm, options, scorer)
    start, best = min(fits, key=lambda pair: pair[1].loss)
    text, model, bias = best.coefficient_F.tolist()
    dial = replace(start, bias=bias, text=text, model=model)
    curve = _curve(cold_items, cold, warm, dial, report, options, scorer)
    affordable = [r["offset"] for r in curve if r["warm_change"] >= -SPENT * options.warm_loss]
    offset = max(affordable, default=OFFSETS[0])
    told = {
        "users_with_new_item": len(cold.examples),
        "users_with_known_item": len(warm.examples),
        "losses": [{"temperature": d.temperature, "decay": d.decay, "loss": found.loss} for d, found in fits],
        "fitted_bias": bias,
        "offset": offset,
        "curve": curve,
    }
    return replace(dial, bias=bias + offset), told


def blended(found: Recommended, new: Sequence[NewPlaces], options: CalibrationOptions) -> list[list[int]]:
    """The beam's lists with new items merged in, as the service does it."""
    lists = []
    for items, scores, places in zip(found.items, found.scores, new, strict=True):
        model = list(zip(items, scores, strict=True))
        most = max(most_new_items(options.max_share, options.k), options.k - len(model))
        lists.append([item for item, _ in merge(model, places, options.k, most)])
    return lists


def new_places(
    cold_items: ColdItems, group: Group, dial: NewItemDial, k: int, scorer: ScorerOf = NewItemScorer
) -> list[NewPlaces]:
    """Each user's ``k`` best new items with their log-probabilities."""
    score_UM = scorer(cold_items, dial.temperature, None).log_probs(group.examples, group.found.by_model, dial)
    order_UK = np.argsort(-score_UM, 1, kind="stable")[:, :k]
    new_M = cold_items.new_M
    return [
        [(int(new_M[m]), float(scores[m])) for m in order if np.isfinite(scores[m])]
        for order, scores in zip(order_UK, score_UM, strict=True)
    ]


def _fits(
    cold_items: ColdItems, cold: Group, warm: Group, options: CalibrationOptions, scorer_of: ScorerOf
) -> list[tuple[NewItemDial, Fit]]:
    """The fit at every temperature and decay."""
    made = []
    for temperature in TEMPERATURES:
        scorer = scorer_of(cold_items, temperature, None)
        for decay in DECAYS:
            start = NewItemDial(0.0, 1.0, 0.0, temperature, decay, options.history)
            parts = [_trials(scorer, group, start) for group in (cold, warm)]
            joined: list[NDArray[Any]] = [
                np.concatenate([getattr(part, name) for part in parts]) for name in Trials.__slots__
            ]
            made.append((start, fit(Trials(*joined))))
    return made


def _trials(scorer: NewItemScorer, group: Group, dial: NewItemDial) -> Trials:
    text_UM, model_UM = scorer.features(group.examples, group.found.by_model, dial)
    feature_UMF = np.stack([text_UM, model_UM, np.ones_like(text_UM)], -1).astype(np.float64)
    is_next_UM = scorer.targets(group.examples)
    weight_U = np.full(len(group.examples), group.weight)
    return Trials(feature_UMF, is_next_UM, scorer.open_pairs(group.examples), weight_U)


def _curve(
    cold_items: ColdItems,
    cold: Group,
    warm: Group,
    dial: NewItemDial,
    report: ColdReport,
    options: CalibrationOptions,
    scorer: ScorerOf,
) -> list[dict[str, float]]:
    groups = {"cold": cold, "warm": warm}
    new = {name: new_places(cold_items, group, dial, options.k, scorer) for name, group in groups.items()}
    bare = [items[: options.k] for items in warm.found.items]
    rows = []
    for offset in OFFSETS:
        moved = {
            name: [[(item, min(score + offset, 0.0)) for item, score in places] for places in lists]
            for name, lists in new.items()
        }
        warm_lists = blended(warm.found, moved["warm"], options)
        cold_row = report.cold(blended(cold.found, moved["cold"], options), cold.examples)
        warm_row = report.warm(warm_lists, bare, warm.examples)
        rows.append(
            {
                "offset": offset,
                "warm_change": warm_row["relative_change"][0],
                "cold_over_users": cold_row[f"hit_rate@{options.k}_over_users"][0],
                "cold_over_items": cold_row[f"hit_rate@{options.k}_over_items"][0],
                "share_of_slots": report.exposure(warm_lists, cold_items.is_new_N)["share_of_slots"],
            }
        )
    return rows

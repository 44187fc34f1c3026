"""Outcomes of a load run and their summary: latency counts from when a request was due, not from when it was sent."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

QUANTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request: seconds from due time to answer, the HTTP status (0: no answer) and whether it was degraded."""

    latency: float
    status: int
    degraded: bool


def summarise(outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    """Counts by status, goodput in full answers a second, and latency quantiles of the full answers in milliseconds."""
    good = [outcome.latency for outcome in outcomes if outcome.status == 200 and not outcome.degraded]
    quantiles = np.percentile(good, QUANTILES) * 1000 if good else [float("nan")] * len(QUANTILES)
    return {
        "requests": len(outcomes),
        "statuses": dict(Counter(str(outcome.status) for outcome in outcomes)),
        "degraded": sum(outcome.degraded for outcome in outcomes),
        "goodput_per_second": round(len(good) / seconds, 2),
        **{f"p{q}_ms": round(float(value), 1) for q, value in zip(QUANTILES, quantiles, strict=True)},
    }

"""From a recording to figures: per phase, the capacity of a step-up, the recovery of a spike, the slopes of a soak."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import linregress

from loadtest.playback import Recording, Sent
from loadtest.traffic import Phase

QUANTILES = (50, 90, 99)
GOOD_SHARE = 0.95
SHED_SHARE = 0.01


def phase_figures(recording: Recording, phases: Sequence[Phase], deadline: float) -> list[dict[str, Any]]:
    """One row a phase: what was offered, answered in full within ``deadline`` seconds, shed, how fast, at what CPU."""
    rows, start = [], 0.0
    for phase in phases:
        sent = [one for one in recording.sent if one.call.phase == phase.name]
        asked = [one for one in sent if one.call.kind == "recommend"]
        good = [one for one in asked if one.good and one.latency <= deadline]
        row: dict[str, Any] = {
            "phase": phase.name,
            "offered_per_second": round(len(asked) / phase.seconds, 2),
            "goodput_per_second": round(len(good) / phase.seconds, 2),
            "good_share": round(len(good) / max(len(asked), 1), 4),
            "shed_share": round(sum(one.status == 503 for one in asked) / max(len(asked), 1), 4),
            "degraded": sum(one.degraded for one in asked),
            "statuses": dict(Counter(f"{one.call.kind} {one.status}" for one in sent)),
            **latencies([one for one in asked if one.status == 200]),
            "sent_late_p99_ms": _lateness(sent),
        }
        end = start + phase.seconds
        for process in ("service", "engine"):
            spent = recording.cpu_between(start, end, process)
            row[f"{process}_cpu_ms_per_call"] = round(1000 * spent / max(len(sent), 1), 2)
            row[f"{process}_cores"] = round(spent / phase.seconds, 3)
        rows.append(row)
        start = end
    return rows


def _lateness(sent: Sequence[Sent]) -> float:
    """How late this program itself was in sending: what it is at most to blame for, in milliseconds."""
    return round(float(np.percentile([one.late for one in sent], 99)) * 1000, 1) if sent else 0.0


def latencies(sent: Sequence[Sent]) -> dict[str, float]:
    """Quantiles in milliseconds from when a call was due, of whatever was answered, however late."""
    found = np.percentile([one.latency for one in sent], QUANTILES) * 1000 if sent else [float("nan")] * len(QUANTILES)
    return {f"p{q}_ms": round(float(value), 1) for q, value in zip(QUANTILES, found, strict=True)}


def holds(row: dict[str, Any]) -> bool:
    """Whether a rate is within the capacity: nearly all answered in full and in time, next to nothing shed."""
    return bool(row["good_share"] >= GOOD_SHARE and row["shed_share"] < SHED_SHARE)


def recovery_seconds(recording: Recording, spike_end: float, deadline: float, width: float = 1.0) -> float:
    """Seconds after a spike until every later second is good again; infinite if the last one is not."""
    after = [one for one in recording.sent if one.call.due >= spike_end and one.call.kind == "recommend"]
    bad = [one.call.due for one in after if not (one.good and one.latency <= deadline)]
    if not after:
        return float("nan")
    if bad and max(bad) > max(one.call.due for one in after) - width:
        return float("inf")
    return max(bad) - spike_end if bad else 0.0


def slopes(recording: Recording, warm_up: float) -> dict[str, list[float]]:
    """Growth per hour in per cent of the mean, and its standard error, of memory and files after the warm-up."""
    samples = [sample for sample in recording.samples if sample.at >= warm_up]
    at_S = np.array([sample.at for sample in samples])
    found: dict[str, list[float]] = {}
    for name in samples[0].memory:
        for what, values in (
            ("memory", [sample.memory[name] for sample in samples]),
            ("files", [sample.files[name] for sample in samples]),
        ):
            fit = linregress(at_S, np.array(values, np.float64))
            scale = 100 * 3600 / float(np.mean(values))
            found[f"{name}_{what}_percent_per_hour"] = [
                round(scale * float(value), 3) for value in np.nan_to_num((fit.slope, fit.stderr))
            ]
    return found

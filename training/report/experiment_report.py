"""The page about an experiment: its arms side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

from training.experiments.table import SHOWN
from training.report import plots
from training.report.page import Grid, Section, render


def experiment_report(question: str, reference: str, summary: Mapping[str, Any]) -> str:
    """HTML of what `training.experiments.summary.summarise` returns."""
    return render(question, [_results(summary), _against(reference, summary), _levels(summary), _rows(summary)])


def _results(summary: Mapping[str, Any]) -> Section:
    rows = tuple((arm, *(_interval(f[metric]["interval95"]) for metric in SHOWN)) for arm, f in summary.items())
    lines = {
        arm: {int(m.split("@")[1]): f[m]["interval95"] for m in f if m.startswith("recall@")}
        for arm, f in summary.items()
    }
    text = "Mean over seeds; 95 % bootstrap interval over users."
    return Section("Results", text, Grid(("arm", *SHOWN), rows), (plots.recall_by_k(lines),))


def _against(reference: str, summary: Mapping[str, Any]) -> Section:
    compared = {arm: figures for arm, figures in summary.items() if "minus_reference95" in figures[SHOWN[0]]}
    rows = tuple(
        (arm, *(_interval(figures[metric]["minus_reference95"]) for metric in SHOWN))
        for arm, figures in compared.items()
    )
    return Section(
        f"Minus {reference}, in pairs", "An interval that holds 0 is no difference.", Grid(("arm", *SHOWN), rows)
    )


def _levels(summary: Mapping[str, Any]) -> Section:
    levels = [f"level {n + 1}" for n in range(len(next(iter(summary.values()))["teacher_forced"]))]
    bars = {arm: figures["teacher_forced"] for arm, figures in summary.items()}
    rows = tuple((arm, *(f"{share:.3f}" for share in shares)) for arm, shares in bars.items())
    picture = plots.grouped_bars(levels, bars, "accuracy")
    return Section("Teacher-forced accuracy by level", "", Grid(("arm", *levels), rows), (picture,))


def _rows(summary: Mapping[str, Any]) -> Section:
    names = ("effective_rank", "cosine_within", "rsa_pearson")
    rows = tuple(
        (arm, *(" / ".join(f"{value:.2f}" for value in figures[name].values()) for name in names))
        for arm, figures in summary.items()
    )
    text = "At the start / grounded / fine-tuned."
    return Section("The new tokens' rows", text, Grid(("arm", *(name.replace("_", " ") for name in names)), rows))


def _interval(values: Sequence[float]) -> str:
    mean, low, high = values
    return f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"

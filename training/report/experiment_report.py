"""The page about an experiment: its arms side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

from training.experiments.table import SHOWN
from training.report import plots
from training.report.page import Grid, Section, render

HEADINGS = tuple(name.replace("recall", "Recall").replace("ndcg", "NDCG") for name in SHOWN)


def experiment_report(question: str, reference: str, summary: Mapping[str, Any]) -> str:
    """HTML of what `training.experiments.summary.summarise` returns."""
    sections = [_results(summary), _against(reference, summary), _levels(summary), _rows(summary), _costs(summary)]
    return render(question, sections)


def _results(summary: Mapping[str, Any]) -> Section:
    rows = tuple(
        (arm, str(len(f["seeds"])), *(_interval(f[metric]["interval95"]) for metric in SHOWN))
        for arm, f in summary.items()
    )
    lines = {
        arm: {int(m.split("@")[1]): f[m]["interval95"] for m in f if m.startswith("recall@")}
        for arm, f in summary.items()
    }
    text = "Mean over seeds, seen items excluded; 95 % bootstrap interval over users."
    return Section("Results", text, Grid(("arm", "seeds", *HEADINGS), rows), (plots.recall_by_k(lines),))


def _against(reference: str, summary: Mapping[str, Any]) -> Section:
    compared = {arm: figures for arm, figures in summary.items() if "minus_reference95" in figures[SHOWN[0]]}
    rows = tuple(
        (arm, *(_interval(figures[metric]["minus_reference95"], "+.3f") for metric in SHOWN))
        for arm, figures in compared.items()
    )
    text = "The same users and seeds, resampled in pairs. An interval that holds 0 is no difference."
    return Section(f"Each arm minus {reference}", text, Grid(("arm", *HEADINGS), rows))


def _levels(summary: Mapping[str, Any]) -> Section:
    levels = [f"level {n + 1}" for n in range(len(next(iter(summary.values()))["teacher_forced"]))]
    bars = {arm: figures["teacher_forced"] for arm, figures in summary.items()}
    rows = tuple((arm, *(f"{share:.3f}" for share in shares)) for arm, shares in bars.items())
    picture = plots.grouped_bars(levels, bars, "accuracy")
    text = "Given the right codes so far, how often the next one is the most probable of its level."
    return Section("Teacher-forced accuracy by level", text, Grid(("arm", *levels), rows), (picture,))


def _rows(summary: Mapping[str, Any]) -> Section:
    names = {"effective_rank": "effective rank", "cosine_within": "cosine within levels"}
    names |= {"rsa_pearson": "RSA r to codebooks", "rsa_spearman": "RSA ρ to codebooks"}
    rows = tuple(
        (arm, *(" / ".join(f"{value:.2f}" for value in figures[name].values()) for name in names))
        for arm, figures in summary.items()
    )
    text = "At the start / grounded / fine-tuned; means over levels and seeds."
    return Section("The new tokens' rows", text, Grid(("arm", *names.values()), rows))


def _costs(summary: Mapping[str, Any]) -> Section:
    names = ("grounding_samples", "grounding_cpu_seconds", "finetune_cpu_seconds")
    rows = tuple(
        (arm, *(f"{figures[name]:,.0f}" for name in names), f"{figures['final_loss']:.3f}")
        for arm, figures in summary.items()
    )
    headings = ("arm", "grounding samples", "grounding CPU s", "fine-tuning CPU s", "final loss, nats per item")
    return Section("Cost and loss", "Means over seeds.", Grid(headings, rows))


def _interval(values: Sequence[float], form: str = ".3f") -> str:
    mean, low, high = values
    return f"{mean:{form}} [{low:{form}}, {high:{form}}]"

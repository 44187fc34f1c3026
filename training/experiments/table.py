"""An experiment's figures as a Markdown table and a plot, for the results folder and for a reader's terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from training.report.plots import recall_by_k

SHOWN = ("recall@5", "recall@10", "recall@20", "recall@50", "ndcg@10")


def markdown(summary: Mapping[str, Any], reference: str, heading: Sequence[str]) -> str:
    """``heading`` are lines above the table: the question, the command, what was cut."""
    columns = ["arm", "seeds", *SHOWN, f"recall@10 minus {reference}", "teacher-forced", "loss", "ground / tune CPU s"]
    lines = [*heading, "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cells(arm, figures)) + " |" for arm, figures in summary.items()]
    lines += ["", *_rows_table(summary)]
    return "\n".join(lines) + "\n"


def _cells(arm: str, figures: Mapping[str, Any]) -> list[str]:
    cells = [arm, str(len(figures["seeds"]))]
    cells += [_interval(figures[metric]["interval95"]) for metric in SHOWN]
    difference = figures["recall@10"].get("minus_reference95")
    cells.append(_interval(difference, "+.3f") if difference else "")
    cells.append(" / ".join(f"{share:.3f}" for share in figures["teacher_forced"]))
    cells.append(f"{figures['final_loss']:.2f}")
    return [*cells, f"{figures['grounding_cpu_seconds']:.0f} / {figures['finetune_cpu_seconds']:.0f}"]


def _interval(values: Sequence[float], form: str = ".3f") -> str:
    mean, low, high = values
    return f"{mean:{form}} [{low:{form}}, {high:{form}}]"


def _rows_table(summary: Mapping[str, Any]) -> list[str]:
    """The new rows: effective rank, mean cosine within a level and RSA, at the start, grounded, fine-tuned."""
    lines = ["| new rows (start / grounded / fine-tuned) | effective rank | cosine within a level | RSA, Pearson |"]
    lines.append("|---|---|---|---|")
    for arm, figures in summary.items():
        cells = [
            " / ".join(f"{value:{form}}" for value in figures[name].values())
            for name, form in (("effective_rank", ".1f"), ("cosine_within", ".3f"), ("rsa_pearson", ".2f"))
        ]
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return lines


def plot(summary: Mapping[str, Any], path: Path) -> None:
    """Recall@K by K with intervals, one line per arm, as SVG."""
    lines = {
        arm: {int(name.split("@")[1]): figures[name]["interval95"] for name in figures if name.startswith("recall@")}
        for arm, figures in summary.items()
    }
    path.write_text(recall_by_k(lines), encoding="utf-8")

"""A run's rows and verdicts as Markdown: one line per cell, rivals as ratios over ours, then costs and targets."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from loadtest.engine.paired import middle, paired_ratio
from loadtest.engine.rows import Row
from loadtest.engine.targets import Verdict, find

RIVALS = ("line", "one_token", "vllm_beam", "torch_loop", "hf_generate")
HEADINGS = {
    "line": "hardware line",
    "one_token": "one-token loop",
    "vllm_beam": "vLLM beam¹",
    "torch_loop": "torch loop",
    "hf_generate": "HF generate",
}

HOW = (
    "Cost in ms per user (CPU time of all threads; wall time on a GPU), median of the rounds, and wall ms of the "
    "whole batch, of ours; then each rival's cost over ours, round by round: above 1 ours is cheaper, and the "
    "hardware line's ratio says how near ours comes to it."
)
NOTE = (
    "¹ unconstrained: it returns SIDs that do not exist, in the share in brackets. "
    "The torch contenders run eager in every row."
)


def markdown(rows: Sequence[Row], verdicts: Sequence[Verdict], facts: Mapping[str, Any]) -> str:
    """The whole document."""
    costs = [row for row in rows if row["section"] in {"costs", "served"} and row["figure"] != "profile"]
    chapters = {
        "Cells": _cells(rows),
        "Agreement": _agreement(rows),
        "Costs": _figures(costs),
        "Where time goes (torch profiler, share of the engine's thread)": _profiles(rows),
        "The constraint alone (batch 8, beam 50, all levels, CPU ms)": _constraint(rows),
        "Targets": _verdicts(verdicts),
    }
    written = [f"## {heading}\n\n{body}" for heading, body in chapters.items() if body]
    return "\n\n".join(["# The engine, measured", _facts(facts), *written]) + "\n"


def _facts(facts: Mapping[str, Any]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())


def _cells(rows: Sequence[Row]) -> str:
    lines = []
    for ours in find(rows, "cells", contender="ours"):
        place = [ours[name] for name in ("world", "mode", "batch", "beam", "prompt")]
        own = [f"{middle(ours['cost_ms']):.0f}", f"{middle(ours['wall_ms']):.0f}"]
        lines.append([*map(str, place), *own, *(_rival(rows, ours, rival) for rival in RIVALS)])
    if not lines:
        return ""
    head = ["world", "mode", "batch", "beam", "prompt", "ours, ms per user", "wall ms", *HEADINGS.values()]
    return "\n\n".join([HOW, _grid(head, lines), NOTE])


def _rival(rows: Sequence[Row], ours: Row, rival: str) -> str:
    found = find(rows, "cells", name=ours["name"], contender=rival)
    if not found:
        return ""
    ratio = paired_ratio(found[0]["cost_ms"], ours["cost_ms"])
    share = found[0].get("illegal_share")
    return f"{ratio:.2f}×" + ("" if share is None else f" ({share:.0%})")


def _agreement(rows: Sequence[Row]) -> str:
    return "\n".join(
        f"In fp32 ours ranks {row['same_ranking']} of {row['users']} users exactly as the torch loop does "
        f"(beam {row['beam']}; largest score difference {row['largest_difference']:.1e}): {row['cell']}."
        for row in find(rows, "agreement")
    )


def _figures(rows: Sequence[Row]) -> str:
    names = list(dict.fromkeys(row["figure"] for row in rows))
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    known = {(row["figure"], row["mode"]): row["value"] for row in rows}
    lines = [[name, *(_number(known.get((name, mode))) for mode in modes)] for name in names]
    return _grid(["figure", *modes], lines)


def _profiles(rows: Sequence[Row]) -> str:
    found = {row["mode"]: row["value"] for row in find(rows, "costs", figure="profile")}
    parts = list(dict.fromkeys(part for profile in found.values() for part in profile))
    lines = [[part, *(f"{profile.get(part, 0.0):.1%}" for profile in found.values())] for part in parts]
    return _grid(["part", *found], lines)


def _constraint(rows: Sequence[Row]) -> str:
    lines = [
        [
            f"{row['items']:,}",
            f"{middle(row['beam_ms']):.2f}",
            f"{middle(row['unconstrained_ms']):.2f}",
            f"{row['bytes_per_item']:.1f}",
            f"{row['build_s']:.2f}",
        ]
        for row in sorted(find(rows, "constraint"), key=lambda row: int(row["items"]))
    ]
    return _grid(["items", "constrained", "unconstrained top-k", "bytes per item", "build, CPU s"], lines)


def _verdicts(verdicts: Iterable[Verdict]) -> str:
    lines = [[one.target, one.mode, one.bound, _number(one.measured), one.verdict] for one in verdicts]
    return _grid(["target", "mode", "bound", "measured", "verdict"], lines)


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _grid(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    if not lines:
        return ""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *lines])

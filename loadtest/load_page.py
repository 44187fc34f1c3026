"""One self-contained page about a load run: latency over time, goodput and sheds, memory and open files."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtest.playback import Recording
from training.report.page import Grid, Section, render

WINDOW = 1.0
COLUMNS = (
    "offered_per_second",
    "goodput_per_second",
    "good_share",
    "shed_share",
    "p50_ms",
    "p90_ms",
    "p99_ms",
    "service_cpu_ms_per_call",
    "engine_cpu_ms_per_call",
)


def load_page(title: str, figures: Mapping[str, Any], recording: Recording) -> str:
    """HTML of what `loadtest.serve` measured; it opens offline."""
    grid = Grid(
        ("phase", *COLUMNS), tuple((row["phase"], *(str(row[c]) for c in COLUMNS)) for row in figures["phases"])
    )
    told = tuple((name, str(value)) for name, value in figures.items() if not isinstance(value, (list, dict)))
    sections = [
        Section("Phases", "Recommendations; goodput is full answers within the deadline.", grid),
        Section("Figures", "", Grid(("", "value"), told)),
        Section("Latency over time", "Quantiles per second, from when a call was due.", None, (_latency(recording),)),
        Section("Goodput and sheds", "Per second.", None, (_rates(recording),)),
        Section("Memory and open files", "By process.", None, (_memory(recording), _files(recording))),
    ]
    return render(title, sections)


def _latency(recording: Recording) -> str:
    figure, axes = _axes("seconds", "ms")
    windows = _windows(recording)
    for quantile in (50, 90, 99):
        points = [
            (at, np.percentile([s.latency for s in sent if s.good], quantile) * 1000)
            for at, sent in windows
            if any(s.good for s in sent)
        ]
        axes.plot(*zip(*points, strict=True), linewidth=1, label=f"p{quantile}")
    axes.set_yscale("log")
    axes.legend(fontsize="small")
    return _svg(figure)


def _rates(recording: Recording) -> str:
    figure, axes = _axes("seconds", "a second")
    windows = _windows(recording)
    at = [when for when, _ in windows]
    axes.plot(at, [len(sent) for _, sent in windows], linewidth=1, label="offered")
    axes.plot(at, [sum(s.good for s in sent) for _, sent in windows], linewidth=1, label="answered in full")
    axes.plot(at, [sum(s.status == 503 for s in sent) for _, sent in windows], linewidth=1, label="shed (503)")
    axes.legend(fontsize="small")
    return _svg(figure)


def _memory(recording: Recording) -> str:
    figure, axes = _axes("seconds", "MiB resident")
    for name in recording.samples[0].memory:
        axes.plot([s.at for s in recording.samples], [s.memory[name] / 2**20 for s in recording.samples], label=name)
    axes.legend(fontsize="small")
    return _svg(figure)


def _files(recording: Recording) -> str:
    figure, axes = _axes("seconds", "open files")
    for name in recording.samples[0].files:
        axes.plot([s.at for s in recording.samples], [s.files[name] for s in recording.samples], label=name)
    axes.legend(fontsize="small")
    return _svg(figure)


def _windows(recording: Recording) -> Sequence[tuple[float, list[Any]]]:
    found: dict[int, list[Any]] = {}
    for sent in recording.sent:
        if sent.call.kind == "recommend":
            found.setdefault(int(sent.call.due / WINDOW), []).append(sent)
    return [(number * WINDOW, found[number]) for number in sorted(found)]


def _axes(x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlabel=x, ylabel=y)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Figure) -> str:
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]

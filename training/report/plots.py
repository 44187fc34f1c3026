"""The report's pictures as SVG text, drawn by matplotlib; each takes plain data and returns markup for a page."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))  # equal figures, equal bytes

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.fonttype": "path", "svg.hashsalt": "groundrec", "font.size": 9})
from matplotlib import pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402


def loss_curve(
    steps: Sequence[int], losses: Sequence[float], validation: Sequence[float], epoch_ends: Sequence[int]
) -> str:
    """Training loss by step, validation NDCG@10 at the end of each epoch on a second axis."""
    figure, axes = _figure()
    axes.plot(steps, losses, linewidth=0.6, alpha=0.5, color="tab:blue")
    axes.plot(steps, _smooth(losses), linewidth=1.5, color="tab:blue")
    axes.set(xlabel="step", ylabel="loss, nats per item")
    if validation:
        right = axes.twinx()
        right.plot(epoch_ends, validation, "o--", color="tab:green", markersize=4, linewidth=1)
        right.set_ylabel("validation NDCG@10", color="tab:green")
    return _svg(figure)


def _smooth(values: Sequence[float]) -> list[float]:
    """Each value averaged with the tenth of all values that lies around it."""
    reach = len(values) // 20
    windows = (values[max(0, n - reach) : n + reach + 1] for n in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def spectra(by_moment: Mapping[str, Sequence[float]]) -> str:
    """Singular values of the new rows, as shares, at each moment."""
    figure, axes = _figure()
    for moment, shares in by_moment.items():
        axes.plot(range(1, len(shares) + 1), shares, linewidth=1, label=moment)
    axes.set(xlabel="singular value", ylabel="share", yscale="log")
    axes.set_title("singular spectrum of the new tokens' rows", fontsize="medium")
    axes.legend(fontsize="small")
    return _svg(figure)


def recall_by_k(lines: Mapping[str, Mapping[int, Sequence[float]]]) -> str:
    """Recall@K with 95 % intervals: ``lines[name][k]`` is ``[mean, low, high]``."""
    figure, axes = _figure()
    draw_recall(axes, lines)
    return _svg(figure)


def draw_recall(axes: Axes, lines: Mapping[str, Mapping[int, Sequence[float]]]) -> None:
    """The same on given axes."""
    for name, by_k in lines.items():
        ks = sorted(by_k)
        mean, low, high = (([by_k[k][place] for k in ks]) for place in range(3))
        errors = [[m - v for m, v in zip(mean, low, strict=True)], [v - m for m, v in zip(mean, high, strict=True)]]
        axes.errorbar(ks, mean, errors, label=name.replace("_", " "), marker="o", markersize=3, capsize=2, linewidth=1)
    ks = sorted({k for by_k in lines.values() for k in by_k})
    axes.set(xscale="log", xlabel="K", ylabel="Recall@K")
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.minorticks_off()
    _legend_beside(axes)


def grouped_bars(groups: Sequence[str], bars: Mapping[str, Sequence[float]], label: str) -> str:
    """One bar per name in every group."""
    figure, axes = _figure()
    width = 0.8 / max(len(bars), 1)
    for number, (name, heights) in enumerate(bars.items()):
        places = [group - 0.4 + width * (number + 0.5) for group in range(len(groups))]
        drawn = axes.bar(places, heights, width, label=name.replace("_", " "))
        if len(bars) == 1:
            axes.bar_label(drawn, fmt="{:.3g}", fontsize="small")
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel(label)
    if len(bars) > 1:
        _legend_beside(axes)
    return _svg(figure)


def planes(by_moment: Mapping[str, Sequence[Any]]) -> str:
    """Rows in a plane, a panel per moment: each moment's sequence holds one level's coordinates [K, 2] an entry."""
    figure, panels = pyplot.subplots(1, len(by_moment), figsize=(3.4 * len(by_moment), 3.4), layout="constrained")
    for axes, (moment, levels) in zip(_as_row(panels), by_moment.items(), strict=True):
        for number, plane in enumerate(levels, 1):
            axes.scatter(plane[:, 0], plane[:, 1], s=6, label=f"level {number}", alpha=0.7)
        axes.set(title=moment, xlabel="first principal component")
        axes.locator_params(nbins=4)
        axes.spines[["top", "right"]].set_visible(False)
    _as_row(panels)[0].set_ylabel("second")
    _as_row(panels)[-1].legend(fontsize="small")
    return _svg(figure)


def _legend_beside(axes: Axes) -> None:
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _as_row(panels: Any) -> list[Axes]:
    return list(panels) if hasattr(panels, "__len__") else [panels]


def _figure() -> tuple[Figure, Axes]:
    figure, axes = pyplot.subplots(figsize=(7, 3.4), layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Figure) -> str:
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata=NO_METADATA)
    pyplot.close(figure)
    text = stream.getvalue()
    return text[text.index("<svg") :]

"""The page about one training run: what was read, the SIDs, the rows, the loss, the results, and what all of it cost.

It reads the JSON that the stages left and leaves out what a run does not have (yet).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from training.artefacts import DIAGNOSTICS, read_planes
from training.errors import TrainingError
from training.report import plots
from training.report.page import Grid, Section, render
from training.training_log import LOG, VALID, read_log

MOMENTS = ("start", "grounded", "finetuned")


def run_report(run: Path) -> str:
    """HTML.

    Raises:
        TrainingError: the folder holds no finished stage.
    """
    stages = run / "stages"
    if not (stages / "data" / "data.json").exists():
        raise TrainingError(f"{run}: no finished stage to report on; is it the --out of `groundrec train`?")
    return render(f"Run {run.name}", [section for part in PARTS for section in part(run)])


def _read(run: Path, stage: str, name: str) -> dict[str, Any]:
    path = run / "stages" / stage / name
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def _data(run: Path) -> Iterator[Section]:
    facts = _read(run, "data", "data.json")
    shown = ("items", "users", "interactions", "test_users", "repeat_share")
    rows = tuple((name.replace("_", " "), _number(facts[name])) for name in shown if name in facts)
    yield Section("Data", f"{facts['name']}. {facts['license_note']}", Grid(("", "count"), rows))


def _sids(run: Path) -> Iterator[Section]:
    report = _read(run, "sids", "report.json")
    if not report:
        return
    rows = tuple(
        (
            f"level {level + 1}",
            f"{report['used'][level]} of {report['codes']}",
            f"{report['entropy_bits'][level]:.2f}",
            f"{report['perplexity'][level]:.1f}",
            f"{report['residual'][level]:.3f}",
        )
        for level in range(len(report["used"]))
    )
    text = (
        f"{report['distinct']} distinct SIDs for {report['items']} items; {report['collision_rate']:.1%} share theirs "
        f"({report['collision_rate_before']:.1%} before the collision policy, which moved {report['moved_share']:.1%})."
    )
    headings = ("", "codes used", "entropy, bits", "perplexity", "residual")
    levels = [row[0] for row in rows]
    picture = plots.grouped_bars(levels, {"entropy": report["entropy_bits"]}, "entropy, bits")
    yield Section("Semantic IDs", text, Grid(headings, rows), (picture,))


def _rows(run: Path) -> Iterator[Section]:
    moments = _read(run, "grounding", DIAGNOSTICS) | _read(run, "finetune", DIAGNOSTICS)
    if not moments:
        return
    rows = tuple(
        (
            moment,
            f"{figures['effective_rank']:.1f}",
            " / ".join(f"{value:.3f}" for value in figures["cosine_within"]),
            f"{figures['cosine_across']:.3f}",
            *(" / ".join(f"{level[kind]:.2f}" for level in figures.get("rsa", [])) for kind in ("pearson", "spearman")),
            f"{figures['norm']:.2f} ({figures['vocabulary_norm']:.2f})",
        )
        for moment, figures in moments.items()
    )
    headings = ("", "effective rank", "cosine within levels", "across", "RSA r", "RSA ρ", "norm (text's)")
    spectrum = plots.spectra({moment: figures["spectrum"] for moment, figures in moments.items()})
    text = (
        "Rows at the start, grounded and fine-tuned, level by level. Cosines near 1 and an effective rank near 1 are a "
        "collapse; RSA compares similarities of rows with those of the codebooks (Pearson r, Spearman ρ; 1: the same)."
    )
    pictures = (spectrum, *_planes(run, len(next(iter(moments.values()))["cosine_within"])))
    yield Section("The new tokens' rows", text, Grid(headings, rows), pictures)


def _planes(run: Path, levels: int) -> Iterator[str]:
    found = read_planes(run / "stages" / "grounding") | read_planes(run / "stages" / "finetune")
    if found:
        parts = {name: [part.numpy() for part in torch.chunk(found[name], levels)] for name in MOMENTS if name in found}
        yield plots.planes(parts)


def _training(run: Path) -> Iterator[Section]:
    logged = read_log(run / LOG)
    steps = [row for row in logged if "loss" in row]
    epochs = [row for row in logged if VALID in row]
    if not epochs:
        return
    rows = tuple((row["epoch"], f"{float(row['mean_loss']):.3f}", f"{float(row[VALID]):.4f}") for row in epochs)
    grid = Grid(("epoch", "mean loss, nats per item", "validation NDCG@10"), rows)
    yield Section("Fine-tuning", _speed(run, steps), grid, (_loss_curve(steps, epochs),) if steps else ())


def _speed(run: Path, steps: Sequence[Mapping[str, str]]) -> str:
    told = _read(run, "finetune", "finetune.json")
    kept = f"The weights of epoch {told['best_epoch']} were kept. " if told else ""
    rates = sorted(float(row["tokens_per_second"]) for row in steps)
    return f"{kept}{steps[-1]['step']} steps, median {rates[len(rates) // 2]:,.0f} tokens/s." if steps else kept


def _loss_curve(steps: Sequence[Mapping[str, str]], epochs: Sequence[Mapping[str, str]]) -> str:
    ends, valid = [int(row["step"]) for row in epochs], [float(row[VALID]) for row in epochs]
    return plots.loss_curve([int(row["step"]) for row in steps], [float(row["loss"]) for row in steps], valid, ends)


def _results(run: Path) -> Iterator[Section]:
    metrics = _read(run, "evaluate", "metrics.json")
    for way in ("seen_excluded", "seen_included"):
        if way in metrics:
            yield _way(metrics, way)
            yield _differences(metrics, way)
    if "teacher_forced" in metrics:
        shares = metrics["teacher_forced"]
        levels = [f"level {number + 1}" for number in range(len(shares))]
        grid = Grid(("", "accuracy"), tuple((name, f"{share:.3f}") for name, share in zip(levels, shares, strict=True)))
        picture = plots.grouped_bars(levels, {"accuracy": shares}, "accuracy")
        yield Section("Teacher-forced accuracy by level", "", grid, (picture,))
    if "by_popularity" in metrics:
        yield _popularity(metrics["by_popularity"])


def _way(metrics: Mapping[str, Any], way: str) -> Section:
    rows = {name: row for name, row in metrics[way].items() if "_minus_" not in name}
    names = list(next(iter(rows.values()))["interval95"])
    cells = tuple((_metric(m), *(_interval(row["interval95"][m]) for row in rows.values())) for m in names)
    lines = {
        name: {int(m.split("@")[1]): row["interval95"][m] for m in names if m.startswith("recall@")}
        for name, row in rows.items()
    }
    text = (
        f"{metrics['users']:,} users, beam {metrics['beam_width']}; mean and 95 % bootstrap interval over users. "
        f"{_rates(metrics)}"
    )
    return Section(_title("Results", way), text, Grid(("", *map(_words, rows)), cells), (plots.recall_by_k(lines),))


def _rates(metrics: Mapping[str, Any]) -> str:
    names = {"illegal_rate": "answers that name no item", "distinct_rate": "distinct items in a list"}
    names |= {"collision_rate": "items that share a SID"}
    return "; ".join(f"{words}: {metrics[name]:.1%}" for name, words in names.items() if name in metrics) + "."


def _differences(metrics: Mapping[str, Any], way: str) -> Section:
    pairs = {name: row for name, row in metrics[way].items() if "_minus_" in name}
    shown = [name for name in next(iter(pairs.values()), {}) if name.split("@")[1] in ("5", "10", "50")]
    cells = tuple((_words(name), *(_interval(row[m], "+.3f") for m in shown)) for name, row in pairs.items())
    text = "The same users, resampled in pairs. An interval that holds 0 is no difference."
    below = [_words(row["baseline"]) for row in metrics.get("below_baselines", ()) if row["way"] == way]
    text += f" Ours is surely below {', '.join(below)}." if below else ""
    return Section(_title("Ours minus each", way), text, Grid(("", *map(_metric, shown)), cells))


def _title(what: str, way: str) -> str:
    return f"{what}, seen items {way.removeprefix('seen_')}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _metric(name: str) -> str:
    return name.replace("recall", "Recall").replace("ndcg", "NDCG")


def _popularity(bands: Mapping[str, Any]) -> Section:
    found = {name: band for name, band in bands.items() if band["seen_excluded"]}
    recommenders = list(next(iter(found.values()))["seen_excluded"])
    bars = {who: [band["seen_excluded"][who]["recall@10"] for band in found.values()] for who in recommenders}
    rows = tuple(
        (name, str(band["items"]), str(band["users"]), *(f"{bars[who][n]:.3f}" for who in recommenders))
        for n, (name, band) in enumerate(found.items())
    )
    text = "Recall@10, seen items excluded; each band holds a third of the training events."
    picture = plots.grouped_bars(list(found), bars, "Recall@10")
    grid = Grid(("target", "items", "users", *map(_words, recommenders)), rows)
    return Section("Results by popularity of the target", text, grid, (picture,))


def _costs(run: Path) -> Iterator[Section]:
    costs = _read(run, "evaluate", "metrics.json").get("training")
    if not costs:
        return
    wall, cpu = costs["wall_seconds"], costs["cpu_seconds"]
    rows = tuple((_words(stage), f"{wall[stage]:,.1f}", f"{cpu[stage]:,.1f}") for stage in wall)
    text = f"Grounding took {costs['grounding_share_of_cpu']:.1%} of the CPU time of training"
    if "grounding_share_of_samples" in costs:
        text += (
            f" and {costs['grounding_share_of_samples']:.1%} of its samples "
            f"({costs['grounding_samples']:,} pairs, {costs['finetune_samples']:,} windows and pairs of fine-tuning)"
        )
    text += "."
    yield Section("Time", text, Grid(("stage", "wall s", "CPU s"), rows))


def _interval(values: Sequence[float], form: str = ".3f") -> str:
    mean, low, high = values
    return f"{mean:{form}} [{low:{form}}, {high:{form}}]"


def _number(value: float) -> str:
    return f"{value:.1%}" if isinstance(value, float) else f"{value:,}"


PARTS = (_data, _sids, _rows, _training, _results, _costs)

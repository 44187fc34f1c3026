"""What an experiment leaves for readers: ``results.md``, ``results.json``, ``recall.svg``, with how they were made."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from training.experiments.run import ExperimentRun
from training.experiments.summary import summarise
from training.experiments.table import markdown, plot
from training.stages import write_json


def write_results(run: ExperimentRun, rows: Sequence[Mapping[str, Any]], folder: Path | None) -> Mapping[str, Any]:
    """Figures per arm; written to ``folder`` too, if there is one."""
    experiment = run.experiment
    first = experiment.arm_recipe(experiment.reference, experiment.seeds[0], run.more)
    summary = summarise(rows, run.ranks, experiment.reference, first.evaluate.ks)
    if folder is None:
        return summary
    folder.mkdir(parents=True, exist_ok=True)
    users, beam = rows[0]["metrics"]["users"], rows[0]["metrics"]["beam_width"]
    shared = [*experiment.base, *run.more]
    heading = [
        f"# {experiment.question}",
        "",
        f"Recipe `{experiment.recipe}` with `{' '.join(shared) or 'no changes'}`; {users} test users, beam {beam}, "
        f"seen items removed; 95 % bootstrap intervals over users of each user's mean over seeds; differences to "
        f"`{experiment.reference}` resampled in pairs.",
        "",
        *(f"- `{arm}`: `{' '.join(changes) or 'no changes'}`" for arm, changes in experiment.arms.items()),
    ]
    (folder / "results.md").write_text(markdown(summary, experiment.reference, heading), encoding="utf-8")
    write_json(folder / "results.json", {"shared": shared, "users": users, "beam_width": beam, "arms": summary})
    plot(summary, folder / "recall.svg")
    return summary

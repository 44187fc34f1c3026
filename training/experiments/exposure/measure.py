"""How often injected twins are shown, and what new and known items get, by the way new items are scored.

    groundrec train --recipe quickstart --out RUN --set data.hold_out=0.2 --set finetune.epochs=1 ...
    python -m training.experiments.exposure.measure --run RUN --users 1500 --json FILE

The beams of a run that held items out are made once; each arm of `arms` is fitted on validation as `groundrec
calibrate` does, and measured on test: hit rates of users whose next item is new, the loss of the others, and the
exposure of injected titles over clean ones with twins in histories, in clean histories, and in histories of new items
only. `--arm` names arms; ``old_dial`` is the served way with the dial that was fitted for ``all``. The last line is one
JSON object.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from service.model.new_items import NewItemDial
from service.model.text_encoder import TextEncoder
from training.calibrate import CalibrationOptions, Group, blended, calibrate, new_places
from training.checkpoint_calibration import open_study
from training.cold_items import ColdItems
from training.cold_report import ColdReport
from training.experiments.exposure.arms import ARMS, SERVED, Arm
from training.injection import Encoder, Histories, InjectionDrill
from training.progress import Reporter

OLD_DIAL = "old_dial"


@dataclass(frozen=True, slots=True)
class Trial:
    """New items, users whose next item is new and others, on validation and on test, and how they are counted."""

    items: ColdItems
    valid: tuple[Group, Group]
    test: tuple[Group, Group]
    report: ColdReport
    options: CalibrationOptions
    encoder: Encoder

    def fitted(self, arm: Arm) -> NewItemDial:
        """The arm's dial, of validation."""
        return calibrate(self.items, *self.valid, self.report, self.options, arm.scorer)[0]

    def row(self, arm: Arm, dial: NewItemDial) -> dict[str, Any]:
        """What the arm does on test."""
        cold, warm = self.test
        k, lists = self.options.k, [self._lists(group, arm, dial) for group in self.test]
        bare = [found[:k] for found in warm.found.items]
        return {
            "dial": asdict(dial),
            "cold": self.report.cold(lists[0], cold.examples),
            "warm": self.report.warm(lists[1], bare, warm.examples),
            "exposure": self.report.exposure(lists[1], self.items.is_new_N),
            "clean_showings": {mode: self._clean(arm, dial, mode) for mode in get_args(Histories)},
            "injected": {mode: self._drill(arm, dial, mode).ratios(self.encoder) for mode in get_args(Histories)},
        }

    def _lists(self, group: Group, arm: Arm, dial: NewItemDial) -> list[list[int]]:
        return blended(group.found, new_places(self.items, group, dial, self.options.k, arm.scorer), self.options)

    def _clean(self, arm: Arm, dial: NewItemDial, mode: Histories) -> int:
        return int(self._drill(arm, dial, mode).shown(self.items).sum())

    def _drill(self, arm: Arm, dial: NewItemDial, mode: Histories) -> InjectionDrill:
        report = self.report
        return InjectionDrill(self.items, self.test[1], dial, report.k, mode, report.samples, report.seed, arm.scorer)


@dataclass(frozen=True, slots=True)
class RememberedTexts:
    """An encoder that embeds the same texts once; every arm asks for the same twins."""

    encoder: Encoder
    known: dict[tuple[str, ...], NDArray[np.float32]] = field(default_factory=dict)

    def encode(self, texts: Sequence[str], batch_size: int = 32) -> NDArray[np.float32]:
        """As `Encoder.encode`."""
        asked = tuple(texts)
        if asked not in self.known:
            self.known[asked] = self.encoder.encode(asked, batch_size)
        return self.known[asked]


def measure(trial: Trial, names: Sequence[str]) -> dict[str, Any]:
    """The named arms, each with its own dial, and the served way with the dial of ``all``."""
    dials = {name: trial.fitted(ARMS[name]) for name in names}
    arms = {name: trial.row(ARMS[name], dial) for name, dial in dials.items()}
    if "all" in dials:
        arms[OLD_DIAL] = trial.row(ARMS[SERVED], dials["all"])
    return {
        "new_items": len(trial.items.new_M),
        "trained_items": int((~trial.items.is_new_N).sum()),
        "users": {"cold": len(trial.test[0].examples), "warm": len(trial.test[1].examples)},
        "seed": trial.report.seed,
        "arms": arms,
    }


def main(
    run: Annotated[Path, typer.Option(help="a run with data.hold_out")],
    arm: Annotated[list[str] | None, typer.Option(help=f"of {', '.join(ARMS)}; all if not given")] = None,
    users: Annotated[int | None, typer.Option(min=1, help="users of known items that are asked")] = None,
    cache_dir: Annotated[Path, typer.Option(help="downloaded data")] = Path("~/.cache/groundrec"),
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here too")] = None,
) -> None:
    """Measure and print."""
    if unknown := set(arm or ()) - set(ARMS):
        raise typer.BadParameter(f"--arm {min(unknown)} is none of {', '.join(ARMS)}")
    torch.set_num_threads(1)
    study = open_study(run / "checkpoint", [], cache_dir.expanduser(), Reporter(), users)
    valid, test = (
        study.groups(part, label) for part, label in ((study.items.valid, "fit"), (study.items.test, "test"))
    )
    checkpoint, recipe = study.checkpoint, study.recipe
    encoder = RememberedTexts(TextEncoder(checkpoint.text_encoder_folder, checkpoint.manifest.embedding.max_tokens))
    report = ColdReport(10, recipe.evaluate.bootstrap_samples, recipe.seed)
    trial = Trial(study.items, valid, test, report, CalibrationOptions(), encoder)
    line = json.dumps({"data": checkpoint.manifest.data.name} | measure(trial, arm or list(ARMS)))
    if json_file:
        json_file.write_text(line + "\n")
    typer.echo(line)


if __name__ == "__main__":
    typer.run(main)

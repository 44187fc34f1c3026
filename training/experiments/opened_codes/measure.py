"""What opened codes bring to items of kinds that no training saw, and what they cost the others.

    groundrec train --recipe quickstart --out RUN --set sids.spare_codes=8 --set 'data.hold_out_kinds=["genres=Horror"]'
    python -m training.experiments.opened_codes.measure --run RUN --users 300 --json FILE

The held-out items are posted, codes are opened as a service would, and the same users are asked again:

- ``closed``: no opened code;
- ``opened``: items moved under opened codes whose rows are as training left them;
- ``grounded``: the rows are written as a running engine gets them (what the service does);
- ``owned``: grounded, and nothing below an opened code borrows or shares uniformly: the model's own scores stand.

Every arm by two ways (`paired_answers`), per kind, with differences to ``closed`` in pairs of users or items, and of
``grounded`` to ``opened``. The last line is one JSON object.
"""

import json
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import torch
import typer

from service.model.grounded_lm import GroundedLM, load_grounded_lm
from training.checkpoint_calibration import ColdStudy, open_study
from training.cold_items import ColdItems
from training.cold_report import ColdReport
from training.data import Example
from training.data.hold_out import has_kind
from training.evaluate import sample
from training.experiments.opened_codes.opening import Opening, Rows, open_codes
from training.experiments.paired_answers import WAYS, Lists, answer, compare
from training.experiments.smoothed_beam import SmoothedBeam
from training.progress import Reporter
from training.trained_model import torch_dtype

PLACES = 10
CLOSED, OPENED, GROUNDED, OWNED = ARMS = ("closed", "opened", "grounded", "owned")


Arms = dict[str, dict[str, Lists]]


@dataclass(frozen=True, slots=True)
class Trial:
    """A checkpoint, its new items and what was opened for them; ``boost`` is `SmoothedBeam`'s, ``rows`` `Opening`'s."""

    study: ColdStudy
    opening: Opening
    boost: float
    rows: Rows

    def answers(self, model: GroundedLM, examples: Sequence[Example]) -> Arms:
        """By arm and way. The model's rows are written when the arms that must not have them are done."""
        found: Arms = {}
        for arm in ARMS:
            if arm == GROUNDED:
                self.opening.ground(model, self.study.checkpoint, self.rows)
            items = self.study.items if arm == CLOSED else self.opening.items
            owned = self.opening.moved if arm == OWNED else frozenset()
            beam = SmoothedBeam(self.study.checkpoint, model, items, self.boost, self.study.reporter, owned)
            found[arm] = answer(beam, examples, PLACES, arm)
        return found

    def report(self, found: Arms, examples: Sequence[Example], group: Sequence[int]) -> dict[str, Any]:
        """Of the users numbered in ``group``: by way and arm."""
        recipe, is_new_N = self.study.recipe, self.study.items.is_new_N
        counted = ColdReport(PLACES, recipe.evaluate.bootstrap_samples, recipe.seed)
        users, rows = [examples[n] for n in group], dict[str, Any]()
        for way in WAYS:
            lists = {arm: [found[arm][way][n] for n in group] for arm in ARMS}
            rows[way] = compare(counted, lists, CLOSED, users, is_new_N)
            pair = {arm: lists[arm] for arm in (OPENED, GROUNDED)}
            less = compare(counted, pair, OPENED, users, is_new_N)[GROUNDED]
            rows[way][GROUNDED]["less_opened_over_users"] = less["less_base_over_users"]
        return rows


def asked(study: ColdStudy) -> list[Example]:
    """All users whose next item is new, and a sample of the others."""
    cold, warm = study.items.split(study.items.test)
    return [*cold, *sample(warm, study.users, study.recipe.seed)]


def groups(study: ColdStudy, moved: Set[int], examples: Sequence[Example]) -> dict[str, list[int]]:
    """Numbers of the users whose next item is of each kind, of any, moved, known; and those who know moved items."""
    new_N, rules = study.items.is_new_N, dict[str, Callable[[Example], bool]]()
    for kind in study.recipe.data.hold_out_kinds:
        of_kind = _of_kind(study.items, kind)
        rules[kind] = lambda example, of_kind=of_kind: example.target in of_kind  # type: ignore[misc]
    rules["all new items"] = lambda example: bool(new_N[example.target])
    rules["moved items"] = lambda example: example.target in moved
    rules["known items"] = lambda example: not new_N[example.target]
    rules["known items after a moved one"] = lambda example: (
        not new_N[example.target] and bool(moved & set(example.history))
    )
    return {name: [n for n, example in enumerate(examples) if rule(example)] for name, rule in rules.items()}


def _of_kind(items: ColdItems, kind: str) -> Set[int]:
    name, _, value = kind.partition("=")
    pairs = zip(items.new_M.tolist(), items.new_records, strict=True)
    return {number for number, record in pairs if has_kind(record, name, value)}


def measure(study: ColdStudy, boost: float, min_items: int, rows: Rows) -> dict[str, Any]:
    """All arms on the same users."""
    checkpoint = study.checkpoint
    opening = open_codes(checkpoint, study.items, min_items)
    trial, examples = Trial(study, opening, boost, rows), asked(study)
    model = load_grounded_lm(checkpoint, torch_dtype(checkpoint.manifest.lm.dtype))
    found, picked = trial.answers(model, examples), groups(study, opening.moved, examples)
    return {
        "data": checkpoint.manifest.data.name,
        "seed": study.recipe.seed,
        "trained_items": int((~study.items.is_new_N).sum()),
        "new_items": len(study.items.new_M),
        "opened_codes": [code.level for code in opening.codes],
        "moved_items": len(opening.moved),
        "boost": boost,
        "rows": rows,
        "groups": {name: trial.report(found, examples, group) for name, group in picked.items()},
    }


def main(
    run: Annotated[Path, typer.Option(help="a run with sids.spare_codes that held kinds out")],
    users: Annotated[
        int | None, typer.Option(min=1, help="users of known items that are asked; all if not given")
    ] = None,
    boost: Annotated[float, typer.Option(help="factor on what new nodes borrow in the beam")] = 1.0,
    min_items: Annotated[int, typer.Option(help="items that must share a code")] = 8,
    rows: Annotated[str, typer.Option(help="of opened codes: mixture, scaled or nearest")] = "mixture",
    cache_dir: Annotated[Path, typer.Option(help="downloaded data")] = Path("~/.cache/groundrec"),
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here too")] = None,
) -> None:
    """Measure and print."""
    if rows not in get_args(Rows):
        raise typer.BadParameter(f"--rows is one of {', '.join(get_args(Rows))}")
    torch.set_num_threads(1)
    study = open_study(run / "checkpoint", [], cache_dir.expanduser(), Reporter(), users)
    line = json.dumps(measure(study, boost, min_items, cast(Rows, rows)))
    if json_file:
        json_file.write_text(line + "\n")
    typer.echo(line)


if __name__ == "__main__":
    typer.run(main)

"""New items of a servable checkpoint: what they are worth on the test targets, and the dial fitted on validation.

The checkpoint is opened as the service would; new are the items of its recipe's source that it never met. The dial goes
into the manifest: its files, and so its model version, stay as they are.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from service.model.checkpoint import Checkpoint, change_manifest, open_checkpoint
from service.model.grounded_lm import load_grounded_lm
from service.model.new_items import NewItemDial
from service.model.text_encoder import TextEncoder
from training.baselines import TextNeighbours, rank
from training.blended_recommender import BlendedRecommender
from training.calibrate import CalibrationOptions, Group, blended, calibrate, new_places
from training.cold_items import ColdItems, read_cold_items
from training.cold_report import ColdReport
from training.config import LAST_RESORT_BOOST, Recipe, parse_recipe, with_overrides
from training.data import Example
from training.evaluate import sample
from training.injection import Histories, InjectionDrill
from training.progress import Reporter
from training.recommender import BeamRecommender, Recommender
from training.trained_model import torch_dtype


@dataclass(frozen=True, slots=True)
class ColdStudy:
    """A checkpoint and the items it never met; ``users`` limits how many users of known items are asked."""

    checkpoint: Checkpoint
    recipe: Recipe
    items: ColdItems
    reporter: Reporter
    users: int | None

    def groups(self, examples: Sequence[Example], label: str) -> tuple[Group, Group]:
        """Users whose next item is new, and a sample of the others, with what the beam found for them."""
        cold, warm = self.items.split(examples)
        picked = sample(warm, self.users, self.recipe.seed)
        recommender = self._recommender()
        made = []
        for name, chosen in (("new", cold), ("known", picked)):
            with self.reporter.task(f"{label}, next item {name}") as progress:
                histories = [example.history for example in chosen]
                exclude_seen = self.checkpoint.manifest.serving.exclude_seen
                found = recommender.recommend(histories, exclude_seen=exclude_seen, progress=progress)
            made.append(Group(chosen, found))
        return made[0], Group(made[1].examples, made[1].found, len(warm) / max(len(picked), 1))

    def fit(self, options: CalibrationOptions) -> tuple[NewItemDial, dict[str, Any]]:
        """The dial, fitted on validation.

        Raises:
            DataError: too few users met new items.
        """
        cold, warm = self.groups(self.items.valid, "calibrate")
        return calibrate(self.items, cold, warm, self._report(options.k), options)

    def measure(self, dial: NewItemDial | None, options: CalibrationOptions) -> dict[str, Any]:
        """Figures on the test targets: ours with the dial, without new items, and text neighbours of the last item."""
        cold, warm = self.groups(self.items.test, "evaluate")
        report, k = self._report(options.k), options.k
        bare = {"cold": [x[:k] for x in cold.found.items], "warm": [x[:k] for x in warm.found.items]}
        ours = bare
        if dial is not None:
            ours = {
                name: blended(group.found, new_places(self.items, group, dial, k), options)
                for name, group in (("cold", cold), ("warm", warm))
            }
        text = {name: self._neighbours(group, k) for name, group in (("cold", cold), ("warm", warm))}
        return {
            "new_items": len(self.items.new_M),
            "k": k,
            "ours": self._row(report, ours, bare, cold, warm),
            "text_neighbours": self._row(report, text, bare, cold, warm),
            "injected_exposure_ratio": {} if dial is None else self._injected(warm, dial, k),
            "injected_exposure_ratio_clean_histories": {} if dial is None else self._injected(warm, dial, k, "clean"),
            "dial": None if dial is None else asdict(dial),
            "max_share": options.max_share,
        }

    def _row(
        self,
        report: ColdReport,
        lists: dict[str, list[list[int]]],
        bare: dict[str, list[list[int]]],
        cold: Group,
        warm: Group,
    ) -> dict[str, Any]:
        return {
            "cold": report.cold(lists["cold"], cold.examples),
            "warm": report.warm(lists["warm"], bare["warm"], warm.examples),
            "exposure": report.exposure(lists["warm"], self.items.is_new_N),
        }

    def _injected(self, warm: Group, dial: NewItemDial, k: int, histories: Histories = "twins") -> dict[str, Any]:
        encoder = TextEncoder(self.checkpoint.text_encoder_folder, self.checkpoint.manifest.embedding.max_tokens)
        samples, seed = self.recipe.evaluate.bootstrap_samples, self.recipe.seed
        return InjectionDrill(self.items, warm, dial, k, histories, samples, seed).ratios(encoder)

    def _neighbours(self, group: Group, k: int) -> list[list[int]]:
        scorer = TextNeighbours(self.items.embedding_NE)
        return rank(scorer, group.examples, length=k, exclude_seen=self.checkpoint.manifest.serving.exclude_seen)

    def _report(self, k: int) -> ColdReport:
        return ColdReport(k, self.recipe.evaluate.bootstrap_samples, self.recipe.seed)

    def _recommender(self) -> Recommender:
        manifest, blend = self.checkpoint.manifest, self.checkpoint.blend()
        beam = BeamRecommender(
            load_grounded_lm(self.checkpoint, torch_dtype(manifest.lm.dtype)),
            self.items.codes_NL,
            self.items.popularity_N,
            max_items=self.checkpoint.prompt.max_items,
            beam_width=manifest.serving.beam_width,
            offered_N=~self.items.is_new_N,
            title_NT=self.items.title_NT,
        )
        return beam if blend is None else BlendedRecommender(beam, blend, self.items.row_N)


def open_study(
    folder: Path, overrides: Sequence[str], cache_dir: Path, reporter: Reporter, users: int | None
) -> ColdStudy:
    """Open a checkpoint with the new items of its source.

    Raises:
        CheckpointError: the folder is no checkpoint.
        DataError: the source has no new items.
    """
    checkpoint = open_checkpoint(folder)
    recipe = parse_recipe(with_overrides(checkpoint.manifest.recipe, overrides), f"of {folder}")
    return ColdStudy(checkpoint, recipe, read_cold_items(checkpoint, recipe, cache_dir), reporter, users)


def calibrate_checkpoint(
    study: ColdStudy, options: CalibrationOptions, into: Sequence[Path] = (), *, dry_run: bool = False
) -> tuple[dict[str, Any], list[Table]]:
    """Fit, write the dial into the study's checkpoint and into others, measure on test; figures and tables.

    Raises:
        DataError: too few users met new items.
        CheckpointError: a folder of ``into`` is no checkpoint.
    """
    others = [open_checkpoint(folder, verify=False).folder for folder in into]
    dial, told = study.fit(options)
    written = [] if dry_run else [study.checkpoint.folder, *others]
    for folder in written:
        write_dial(folder, dial, options.max_share, study.checkpoint.manifest.data.name)
    figures = study.measure(dial, options) | {"calibration": told, "written": [str(folder) for folder in written]}
    return figures, [cold_table(figures)]


def write_dial(folder: Path, dial: NewItemDial, max_share: float, fitted_on: str) -> None:
    """Put the dial into a manifest; inside the beam new items then come in only where nothing else may."""
    smoothing = open_checkpoint(folder, verify=False).manifest.smoothing
    part = asdict(dial) | {"max_share": max_share, "fitted_on": fitted_on}
    change_manifest(folder, {"smoothing": smoothing.model_dump() | {"boost": LAST_RESORT_BOOST, "new_items": part}})


def cold_table(figures: dict[str, Any]) -> Table:
    """The figures for people."""
    k = figures["k"]
    table = Table(title=f"{figures['new_items']} new items, first {k} places, 95 % intervals")
    for heading in ("", "ours", "text neighbours"):
        table.add_column(heading, justify="right" if heading else "left")
    rows = {
        "new next item, over users": ("cold", f"hit_rate@{k}_over_users"),
        "new next item, over items": ("cold", f"hit_rate@{k}_over_items"),
        "known next item": ("warm", f"hit_rate@{k}"),
        "known, relative change": ("warm", "relative_change"),
    }
    for label, (part, name) in rows.items():
        found = [figures[who][part][name] for who in ("ours", "text_neighbours")]
        table.add_row(label, *(f"{mean:.3f} ({low:.3f} to {high:.3f})" for mean, low, high in found))
    shares = [figures[who]["exposure"]["share_of_slots"] for who in ("ours", "text_neighbours")]
    table.add_row("places taken by new items", *(f"{share:.1%}" for share in shares))
    return table

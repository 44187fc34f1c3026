"""For which kinds of items a code would be opened: each kind held out of the codebooks alone, then looked for.

    python -m training.experiments.opened_codes.finding --recipe quickstart --field genres --out DIR --json FILE

Needs texts only: no model is trained. Kinds are the values of an attribute; ``--place`` takes the value at one place of
a path of categories. Random items of the same number are held out beside them: a code for those would be a false alarm.
The last line is one JSON object.

Shapes: N items, E embedding width.
"""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from service.model.codebook_growth import propose_codes, usual_shares
from training import artefacts
from training.config import Recipe, load_recipe
from training.data import CatalogItem, Dataset
from training.data.hold_out import has_kind
from training.fit_semantic_ids import fit_rkmeans
from training.pipeline import Pipeline
from training.progress import Reporter
from training.stages import RunFolder

SPARE = 8
RANDOM_DRAWS = 5


@dataclass(frozen=True, slots=True)
class Finder:
    """Holds items out of the codebooks of a recipe; ``min_items`` must share a code."""

    recipe: Recipe
    embedding_NE: NDArray[np.float32]
    min_items: int

    def codes(self, is_held_N: NDArray[np.bool_]) -> list[dict[str, Any]]:
        """The codes that would be opened when the held items were posted."""
        part, known_NE = self.recipe.sids, self.embedding_NE[~is_held_N]
        quantizer = fit_rkmeans(known_NE, part.levels, part.codes, self.recipe.seed)
        spare = [SPARE] * (part.levels - 1) + [0]
        usual = usual_shares(quantizer, known_NE)
        proposals = propose_codes(quantizer, self.embedding_NE[is_held_N], usual, spare, self.min_items)
        return [
            {
                "level": each.level,
                "items": len(each.members),
                "left_before": round(each.left_before, 3),
                "left_after": round(each.left_after, 3),
            }
            for each in proposals
        ]


def kinds(items: tuple[CatalogItem, ...], field: str, place: int | None) -> dict[str, int]:
    """Every value of an attribute with its number of items, the largest first."""
    counts: Counter[str] = Counter()
    for item in items:
        held = item.attributes.get(field, ())
        values = held if isinstance(held, tuple) else (str(held),)
        counts.update(values if place is None else values[place : place + 1])
    return dict(counts.most_common())


def study(finder: Finder, dataset: Dataset, field: str, sizes: dict[str, int]) -> dict[str, Any]:
    """Codes per kind, and for random items of the largest and the smallest of these sizes."""
    rows = []
    for kind in sizes:
        is_held_N = np.array([has_kind(item, field, kind) for item in dataset.items])
        rows.append({"kind": kind, "items": int(is_held_N.sum()), "codes": finder.codes(is_held_N)})
    drawn = []
    for draw in range(RANDOM_DRAWS):
        for size in (max(sizes.values()), min(sizes.values())):
            order_N = np.random.default_rng(draw).permutation(len(dataset.items))
            drawn.append({"items": size, "codes": len(finder.codes(order_N < size))})
    return {"data": dataset.name, "min_items": finder.min_items, "kinds": rows, "random": drawn}


def main(
    recipe: Annotated[str, typer.Option(help="whose items and sizes of codebooks are taken")],
    field: Annotated[str, typer.Option(help="the attribute whose values are kinds")],
    out: Annotated[Path, typer.Option(help="a run's folder, where embeddings are kept")],
    place: Annotated[int | None, typer.Option(help="of a list of values, the one at this place")] = None,
    least: Annotated[int, typer.Option(help="items of the smallest kind that is tried")] = 20,
    most: Annotated[int, typer.Option(help="items of the largest")] = 260,
    min_items: Annotated[int, typer.Option(help="items that must share a code")] = 8,
    cache_dir: Annotated[Path, typer.Option(help="downloaded data")] = Path("~/.cache/groundrec"),
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here too")] = None,
) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    loaded = load_recipe(recipe)
    pipeline = Pipeline(loaded, RunFolder(out, Reporter()), cache_dir.expanduser())
    with pipeline.run.locked():
        embedding_NE = artefacts.read_embedding(pipeline.embedded.folder)
    dataset = pipeline.data.dataset
    sizes = {kind: n for kind, n in kinds(dataset.items, field, place).items() if kind and least <= n <= most}
    line = json.dumps(study(Finder(loaded, embedding_NE, min_items), dataset, field, sizes))
    if json_file:
        json_file.write_text(line + "\n")
    typer.echo(line)


if __name__ == "__main__":
    typer.run(main)

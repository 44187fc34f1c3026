"""What each collision policy is worth on items held out of training.

    python -m training.experiments.collision_policies.measure --run RUN --users 300 --json FILE

Without the model: how much of the embedding the SID leaves unexplained, how full buckets are, whether the trained items
below the same prefix are those that the text is nearest to. With the model: hit rates of new and known next items by
the beam with smoothing (a checkpoint without a dial) and by the new items' own way, histories holding the SIDs that the
policy gave. RUN is a training run with ``data.hold_out``. The last line is one JSON object.

Shapes: N items, M new ones, L levels, E embedding width, U users.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from service.model.checkpoint import Checkpoint
from service.model.grounded_lm import GroundedLM, load_grounded_lm
from training.checkpoint_calibration import ColdStudy, open_study
from training.cold_items import ColdItems
from training.cold_report import ColdReport
from training.data import Example
from training.evaluate import sample
from training.experiments.collision_policies.policies import POLICIES, assign, residual
from training.experiments.paired_answers import WAYS, Lists, answer, compare
from training.experiments.smoothed_beam import SmoothedBeam
from training.progress import Reporter
from training.trained_model import torch_dtype

NEAREST = 10
PLACES = 10
BASE = "least_filled"  # what the service does


def without_model(checkpoint: Checkpoint, items: ColdItems, own_ML: NDArray[np.int64]) -> dict[str, float]:
    """Figures of the SIDs alone; ``own_ML`` are the quantiser's own."""
    new_M, known_N = items.new_M, ~items.is_new_N
    codes_ML, embedding_ME = items.codes_NL[new_M], items.embedding_NE[new_M]
    quantizer, tensor_ME = checkpoint.quantizer(), torch.from_numpy(items.embedding_NE[new_M])
    left_M = (residual(quantizer, tensor_ME, torch.from_numpy(codes_ML)) ** 2).sum(1)
    whole_M = (quantizer.project(tensor_ME) ** 2).sum(1).clamp(min=1e-12)
    size = Counter(map(tuple, items.codes_NL.tolist()))
    cosine_MN = embedding_ME @ items.embedding_NE[known_N].T
    near_MK = np.argsort(-cosine_MN, 1, kind="stable")[:, :NEAREST]
    near_MKL = items.codes_NL[known_N][near_MK]
    same_MK = (near_MKL[:, :, :-1] == codes_ML[:, None, :-1]).all(2)
    prefixes = {tuple(codes[:-1]) for codes in items.codes_NL[known_N].tolist()}
    return {
        "residual": round(float((left_M / whole_M).mean()), 4),
        "shares_a_sid": round(float(np.mean([size[tuple(sid)] > 1 for sid in codes_ML.tolist()])), 4),
        "largest_bucket": max(size[tuple(sid)] for sid in codes_ML.tolist()),
        "keeps_own_prefix": round(float((codes_ML[:, :-1] == own_ML[:, :-1]).all(1).mean()), 4),
        "prefix_is_trained": round(float(np.mean([tuple(sid[:-1]) in prefixes for sid in codes_ML.tolist()])), 4),
        "nearest_texts_under_prefix": round(float(same_MK.mean()), 4),
    }


def with_model(
    study: ColdStudy, model: GroundedLM, placements: Mapping[str, ColdItems], boost: float
) -> dict[str, dict[str, Any]]:
    """Hit rates of each policy by the beam alone and beside it, and each less `BASE`'s on the same users."""
    report = ColdReport(PLACES, study.recipe.evaluate.bootstrap_samples, study.recipe.seed)
    groups = dict(zip(("new", "known"), _users(study), strict=True))
    rows: dict[str, dict[str, Any]] = {name: {way: {} for way in WAYS} for name in placements}
    for kind, examples in groups.items():
        lists: dict[str, dict[str, Lists]] = {}
        for name, items in placements.items():
            beam = SmoothedBeam(study.checkpoint, model, items, boost, study.reporter)
            lists[name] = answer(beam, examples, PLACES, f"{name}, next item {kind}")
        for way in WAYS:
            of_way = {name: found[way] for name, found in lists.items()}
            for name, row in compare(report, of_way, BASE, examples, study.items.is_new_N).items():
                rows[name][way][kind] = row
    return rows


def measure(study: ColdStudy, boost: float) -> dict[str, Any]:
    """All policies on the same items and users; ``users`` of the study limits each kind of user, 0 asks no model."""
    checkpoint, items = study.checkpoint, study.items
    quantizer, known_N = checkpoint.quantizer(), ~items.is_new_N
    embedding_ME = items.embedding_NE[items.new_M]
    own_ML = quantizer.encode(torch.from_numpy(embedding_ME)).numpy()
    placements = {}
    for name, policy in POLICIES.items():
        codes_NL = items.codes_NL.copy()
        codes_NL[items.new_M] = assign(policy, quantizer, items.codes_NL[known_N], embedding_ME)
        placements[name] = replace(items, codes_NL=codes_NL)
    rows: dict[str, dict[str, Any]] = {
        name: {"sids": without_model(checkpoint, placed, own_ML)} for name, placed in placements.items()
    }
    if study.users != 0:
        model = load_grounded_lm(checkpoint, torch_dtype(checkpoint.manifest.lm.dtype))
        for name, found in with_model(study, model, placements, boost).items():
            rows[name] |= found
    return {
        "data": checkpoint.manifest.data.name,
        "trained_items": int(known_N.sum()),
        "new_items": len(items.new_M),
        "boost": boost,
        "base": BASE,
        "policies": rows,
    }


def _users(study: ColdStudy) -> tuple[list[Example], list[Example]]:
    cold, warm = study.items.split(study.items.test)
    seed = study.recipe.seed
    return list(sample(cold, study.users, seed)), list(sample(warm, study.users, seed))


def main(
    run: Annotated[Path, typer.Option(help="a training run that held items out")],
    users: Annotated[int, typer.Option(min=0, help="users of each kind that the model is asked for")] = 300,
    boost: Annotated[float, typer.Option(help="factor on what new nodes borrow in the beam")] = 1.0,
    cache_dir: Annotated[Path, typer.Option(help="downloaded data")] = Path("~/.cache/groundrec"),
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here too")] = None,
) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    study = open_study(run / "checkpoint", [], cache_dir.expanduser(), Reporter(), users)
    line = json.dumps(measure(study, boost))
    if json_file:
        json_file.write_text(line + "\n")
    typer.echo(line)


if __name__ == "__main__":
    typer.run(main)

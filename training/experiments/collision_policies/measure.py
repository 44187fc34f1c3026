"""What each collision policy is worth on items held out of training.

    python -m training.experiments.collision_policies.measure --run RUN --users 300 --json FILE

Without the model: how much of the embedding the SID leaves unexplained, how full buckets are, whether the trained items
below the same prefix are those that the text is nearest to. With the model: hit rates of new and known next items by
the beam with smoothing (a checkpoint without a dial) and by the new items' own way, histories holding the SIDs that the
policy gave. RUN is a training run with ``data.hold_out``. The last line is one JSON object.

Shapes: N items, M new ones, L levels, E embedding width, U users.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from service.model.beam import BeamQuery, beam_search
from service.model.checkpoint import Checkpoint
from service.model.grounded_lm import GroundedLM, load_grounded_lm
from service.model.live_trie import LiveTrie
from service.model.new_items import NewItemDial
from service.model.smoothing import SiblingMixer
from service.model.torch_beam import TorchBeamModel
from training.calibrate import CalibrationOptions, Group, blended, new_places
from training.checkpoint_calibration import ColdStudy, open_study
from training.cold_items import ColdItems
from training.cold_report import ColdReport
from training.data import Example
from training.evaluate import sample
from training.experiments.collision_policies.policies import POLICIES, assign, residual
from training.progress import Reporter
from training.recommender import Recommended
from training.trained_model import torch_dtype

NEAREST = 10
BATCH = 32
PLACES = 10


@dataclass(frozen=True, slots=True)
class SmoothedBeam:
    """The beam over trained and new items, new nodes borrowing from trained siblings, as the service's engines do."""

    checkpoint: Checkpoint
    model: GroundedLM
    items: ColdItems
    boost: float

    @torch.no_grad()
    def recommend(self, examples: Sequence[Example], reporter: Reporter, label: str) -> Recommended:
        """Ranked items per user with their scores; seen items are left out, users batched by length."""
        trie, buckets = self._trie(), self._buckets()
        items: list[list[int]] = [[] for _ in examples]
        scores: list[list[float]] = [[] for _ in examples]
        order = sorted(range(len(examples)), key=lambda user: len(examples[user].history))
        with reporter.task(label) as progress:
            for start in range(0, len(order), BATCH):
                users = order[start : start + BATCH]
                prompts = [self._prompt(examples[user]) for user in users]
                queries = [self._query(trie, buckets, examples[user]) for user in users]
                found = beam_search(TorchBeamModel(self.model, prompts), queries, log_boost=math.log(self.boost))
                for user, beams in zip(users, found, strict=True):
                    seen = set(examples[user].history)
                    for sid, score in zip(beams.codes_nL.tolist(), beams.score_n.tolist(), strict=True):
                        left = [item for item in buckets[tuple(sid)] if item not in seen]
                        items[user] += left
                        scores[user] += [score] * len(left)
                progress(start + len(users), len(order))
        return Recommended(items, scores, 0)

    def _trie(self) -> LiveTrie:
        codes_NL, new_M = self.items.codes_NL, self.items.new_M
        trained_NL, space = codes_NL[~self.items.is_new_N], self.checkpoint.space
        temperature = self.checkpoint.manifest.smoothing.temperature
        mixer = SiblingMixer(trained_NL, self.items.embedding_NE[~self.items.is_new_N], space.codes, temperature)
        new = [(tuple(codes_NL[item].tolist()), self.items.embedding_NE[item]) for item in new_M.tolist()]
        return LiveTrie.build(trained_NL, space.codes).advance([sid for sid, _ in new], (), mixer.mixes(new))

    def _buckets(self) -> dict[tuple[int, ...], list[int]]:
        found: dict[tuple[int, ...], list[int]] = defaultdict(list)
        order_N = np.lexsort((-self.items.popularity_N, self.items.is_new_N))
        for item in order_N.tolist():
            found[tuple(self.items.codes_NL[item].tolist())].append(item)
        return found

    def _prompt(self, example: Example) -> list[int]:
        return list(self.checkpoint.prompt.build([tuple(self.items.codes_NL[i].tolist()) for i in example.history]))

    def _query(self, trie: LiveTrie, buckets: dict[tuple[int, ...], list[int]], example: Example) -> BeamQuery:
        seen = set(example.history)
        sids = {tuple(self.items.codes_NL[item].tolist()) for item in seen}
        spent = sorted(sid for sid in sids if set(buckets[sid]) <= seen)
        excluded = torch.tensor(spent, dtype=torch.int64).reshape(-1, self.checkpoint.space.levels)
        return BeamQuery(trie, self.checkpoint.manifest.serving.beam_width, excluded)


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
    study: ColdStudy, beam: SmoothedBeam, cold: Sequence[Example], warm: Sequence[Example], label: str
) -> dict[str, dict[str, Any]]:
    """Hit rates by the beam alone and by the new items' own way beside the same beam."""
    report = ColdReport(PLACES, study.recipe.evaluate.bootstrap_samples, study.recipe.seed)
    part = study.checkpoint.manifest.smoothing.new_items
    dial = NewItemDial(0.0, 1.0, 0.0, decay=0.7) if part is None else part.dial
    options, lists = CalibrationOptions(k=PLACES), dict[str, dict[str, list[list[int]]]]()
    for name, examples in (("new", cold), ("known", warm)):
        found = beam.recommend(examples, study.reporter, f"{label}, next item {name}")
        model = _trained_only(found, beam.items)
        group = Group(examples, model)
        merged = blended(model, new_places(beam.items, group, dial, PLACES), options)
        lists[name] = {"beam": [ids[:PLACES] for ids in found.items], "beside": merged}
    return {
        way: {
            "new": report.cold(lists["new"][way], cold),
            "known": report.warm(lists["known"][way], lists["known"]["beside"], warm)[f"hit_rate@{PLACES}"],
            "exposure": report.exposure(lists["known"][way], beam.items.is_new_N),
        }
        for way in ("beam", "beside")
    }


def _trained_only(found: Recommended, items: ColdItems) -> Recommended:
    new = items.is_new_N
    pairs = [
        [(item, score) for item, score in zip(ids, scores, strict=True) if not new[item]]
        for ids, scores in zip(found.items, found.scores, strict=True)
    ]
    return Recommended([[i for i, _ in user] for user in pairs], [[s for _, s in user] for user in pairs], 0)


def measure(study: ColdStudy, boost: float) -> dict[str, Any]:
    """All policies on the same items and users; ``users`` of the study limits each kind of user, 0 asks no model."""
    checkpoint, items, users = study.checkpoint, study.items, study.users
    quantizer, known_N = checkpoint.quantizer(), ~items.is_new_N
    cold, warm = (sample(group, users, study.recipe.seed) for group in items.split(items.test))
    model = load_grounded_lm(checkpoint, torch_dtype(checkpoint.manifest.lm.dtype)) if users != 0 else None
    embedding_ME = items.embedding_NE[items.new_M]
    own_ML = quantizer.encode(torch.from_numpy(embedding_ME)).numpy()
    figures: dict[str, Any] = {
        "data": checkpoint.manifest.data.name,
        "trained_items": int(known_N.sum()),
        "new_items": len(items.new_M),
        "users_new": len(cold),
        "users_known": len(warm),
        "boost": boost,
        "policies": {},
    }
    for name, policy in POLICIES.items():
        codes_NL = items.codes_NL.copy()
        codes_NL[items.new_M] = assign(policy, quantizer, items.codes_NL[known_N], embedding_ME)
        placed = replace(items, codes_NL=codes_NL)
        row: dict[str, Any] = {"sids": without_model(checkpoint, placed, own_ML)}
        if model is not None:
            beam = SmoothedBeam(checkpoint, model, placed, boost)
            row |= with_model(study, beam, cold, warm, name)
        figures["policies"][name] = row
    return figures


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

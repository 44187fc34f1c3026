"""Opening codes for posted items outside a service: the same proposals, rows and moves, on arrays.

Which of it helps, others measure.

Shapes: N items, M new ones, L levels.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from service.model.checkpoint import Checkpoint
from service.model.code_rows import CodeRows
from service.model.codebook_growth import propose_codes, usual_shares
from service.model.grounded_lm import GroundedLM
from service.model.quantizer import OpenedCode, ResidualQuantizer
from service.model.semantic_ids import Sid
from training.cold_items import ColdItems

NEAREST = 1e-4  # so low a temperature of the mixture that one code is left
Rows = Literal["mixture", "scaled", "nearest"]


@dataclass(frozen=True, slots=True)
class Opening:
    """The opened codes, all items as they are placed then, and the numbers of those that moved."""

    codes: tuple[OpenedCode, ...]
    items: ColdItems
    moved: frozenset[int]

    def ground(self, model: GroundedLM, checkpoint: Checkpoint, rows: Rows = "mixture") -> None:
        """Write the codes' rows into the model, both sides, as `service.opened_codes` has an engine do it.

        ``rows`` other than the service's mixture: ``scaled``, the mixture put as far from the level's mean row as
        trained rows are on average; ``nearest``, those of the trained code whose vector has the largest cosine.
        """
        tensors, temperature = checkpoint.catalog_tensors(), checkpoint.manifest.smoothing.temperature
        books_LKD, sides = checkpoint.quantizer().codebooks_LKD, checkpoint.token_rows()
        made = CodeRows(books_LKD, tensors.codes_NL, *sides, NEAREST if rows == "nearest" else temperature)
        for code in self.codes:
            pair = [torch.tensor(row) for row in made.opened(code)]
            if rows == "scaled":
                trained_T = torch.from_numpy(np.unique(tensors.codes_NL[:, code.level]).astype(np.int64))
                first = checkpoint.space.level_start(code.level) - checkpoint.space.first_token_id
                pair = [_scaled(row_D, side[first + trained_T]) for row_D, side in zip(pair, sides, strict=True)]
            model.write_row(code.level, code.code, *pair)


def _scaled(row_D: torch.Tensor, trained_TD: torch.Tensor) -> torch.Tensor:
    mean_D = trained_TD.mean(0)
    length = (trained_TD - mean_D).norm(dim=1).mean()
    from_mean_D = row_D - mean_D
    scaled_D: torch.Tensor = mean_D + from_mean_D * length / from_mean_D.norm()
    return scaled_D


def open_codes(checkpoint: Checkpoint, items: ColdItems, min_items: int) -> Opening:
    """Open what the new items call for and move those that are nearest to an opened code."""
    quantizer, space = checkpoint.quantizer(), checkpoint.space
    usual = usual_shares(quantizer, items.embedding_NE[~items.is_new_N])
    free = [list(range(quantizer.codes, space.codes)) for _ in range(space.levels - 1)]
    spare = [*map(len, free), 0]
    proposals = propose_codes(quantizer, items.embedding_NE[items.new_M], usual, spare, min_items)
    codes = tuple(OpenedCode(each.level, free[each.level].pop(0), each.centroid_D) for each in proposals)
    moves = _moves(quantizer.with_opened(codes), items, {(code.level, code.code) for code in codes})
    codes_NL = items.codes_NL.copy()
    for item, sid in moves.items():
        codes_NL[item] = sid
    return Opening(codes, replace(items, codes_NL=codes_NL), frozenset(moves))


def _moves(quantizer: ResidualQuantizer, items: ColdItems, opened: set[tuple[int, int]]) -> dict[int, Sid]:
    """New SIDs of the items that lead through an opened code: the last code with the fewest items, nearest first."""
    embedding_ME = torch.from_numpy(items.embedding_NE[items.new_M])
    codes_ML = quantizer.encode(embedding_ME)
    distance_MK = quantizer.last_level_distances(embedding_ME, codes_ML)
    order_MK = torch.sort(distance_MK, dim=1, stable=True).indices
    taken: Counter[Sid] = Counter(_sids(items.codes_NL))
    moves: dict[int, Sid] = {}
    for row, item in reversed(list(enumerate(items.new_M.tolist()))):  # the newest first
        prefix: Sid = tuple(codes_ML[row, :-1].tolist())
        if opened & set(enumerate(prefix)):
            moves[item] = min(((*prefix, code) for code in order_MK[row].tolist()), key=lambda sid: taken[sid])
            taken[moves[item]] += 1
    return moves


def _sids(codes_NL: np.ndarray) -> Sequence[Sid]:
    return [tuple(codes) for codes in codes_NL.tolist()]

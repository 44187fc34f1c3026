"""Items that a checkpoint has never met, and the users who met them: what new items are measured and fitted on.

The items are those of the recipe's source that are not in the checkpoint's catalogue (held out of training, or newer
data). They get embedding and SID as a posted item would: the checkpoint's own text encoder, the frozen quantiser, the
nearest free last code. Items are numbered as in the source; validation is every user's last event but one, test the
last.

Shapes: N items of the source, M new ones, L levels, E embedding width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from service.model.checkpoint import Checkpoint
from service.model.item_text import item_text
from service.model.text_encoder import TextEncoder
from training.config import Recipe
from training.data import CatalogItem, Dataset, Example
from training.errors import DataError
from training.training_data import read_dataset


@dataclass(frozen=True, slots=True)
class ColdItems:
    """The source's items as a service would hold them, and examples whose history has an item the model knows.

    ``row_N`` is an item's row in the checkpoint, -1 for new items; new ones have popularity 0. ``new_records`` is what
    the M new ones say, ``title_NT`` what prompts show of all titles.
    """

    row_N: NDArray[np.int64]
    codes_NL: NDArray[np.int64]
    embedding_NE: NDArray[np.float32]
    popularity_N: NDArray[np.int64]
    valid: tuple[Example, ...]
    test: tuple[Example, ...]
    new_records: tuple[CatalogItem, ...]
    title_NT: NDArray[np.int64]

    @property
    def is_new_N(self) -> NDArray[np.bool_]:
        """Which items are new."""
        return self.row_N < 0

    @property
    def new_M(self) -> NDArray[np.int64]:
        """The new items' numbers, ascending."""
        return np.flatnonzero(self.row_N < 0)

    def split(self, examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
        """Examples with a new target, and the others."""
        new = self.is_new_N
        cold = [example for example in examples if new[example.target]]
        return cold, [example for example in examples if not new[example.target]]


def read_cold_items(checkpoint: Checkpoint, recipe: Recipe, cache_dir: Path) -> ColdItems:
    """The new items of the recipe's source.

    Raises:
        DataError: the source has no new items, or lacks items of the checkpoint.
    """
    dataset = read_dataset(recipe, cache_dir)
    row_N = _rows(checkpoint, dataset)
    tensors, new_M = checkpoint.catalog_tensors(), np.flatnonzero(row_N < 0)
    known_N = row_N >= 0
    codes_NL = np.zeros((len(row_N), checkpoint.space.levels), np.int64)
    codes_NL[known_N] = tensors.codes_NL[row_N[known_N]]
    embedding_NE = np.zeros((len(row_N), tensors.embedding_NE.shape[1]), np.float32)
    embedding_NE[known_N] = tensors.embedding_NE[row_N[known_N]]
    new_records = tuple(dataset.items[item] for item in new_M)
    embedding_NE[new_M] = _embed(checkpoint, new_records)
    codes_NL[new_M] = posted_sids(checkpoint, embedding_NE[new_M])
    popularity_N = np.where(known_N, tensors.popularity_N[np.maximum(row_N, 0)], 0)
    valid, test = (_examples(dataset, known_N, back) for back in (2, 1))
    title_NT = checkpoint.title_tokens().rows([item.title for item in dataset.items])
    return ColdItems(row_N, codes_NL, embedding_NE, popularity_N, valid, test, new_records, title_NT)


def posted_sids(checkpoint: Checkpoint, embedding_ME: NDArray[np.float32]) -> NDArray[np.int64]:
    """The SIDs that items posted in this order would get, int64 [M, L]."""
    quantizer = checkpoint.quantizer()
    taken = {tuple(codes) for codes in checkpoint.catalog_tensors().codes_NL.tolist()}
    posted = []
    for embedding_E in torch.from_numpy(embedding_ME):
        nearest = tuple(quantizer.encode(embedding_E[None])[0].tolist())
        choices = ((*nearest[:-1], code) for code in quantizer.last_level_preferences(embedding_E, nearest[:-1]))
        sid = next((choice for choice in choices if choice not in taken), nearest)
        taken.add(sid)
        posted.append(sid)
    return np.array(posted, np.int64).reshape(-1, checkpoint.space.levels)


def _rows(checkpoint: Checkpoint, dataset: Dataset) -> NDArray[np.int64]:
    row = {item.item_id: number for number, item in enumerate(checkpoint.items())}
    row_N = np.array([row.get(item.item_id, -1) for item in dataset.items], np.int64)
    missing = set(row) - {item.item_id for item in dataset.items}
    if missing:
        first = ", ".join(sorted(missing)[:3])
        raise DataError(
            f"{dataset.name}: lacks {len(missing)} items of the checkpoint, first {first}; use its own data"
        )
    if (row_N >= 0).all():
        raise DataError(
            f"{dataset.name}: every item was trained on, so there is nothing new; train with --set data.hold_out=0.05, "
            "or name newer tables with --set data.items=FILE and --set data.interactions=FILE"
        )
    return row_N


def _embed(checkpoint: Checkpoint, items: Sequence[CatalogItem]) -> NDArray[np.float32]:
    encoder = TextEncoder(checkpoint.text_encoder_folder, checkpoint.manifest.embedding.max_tokens)
    return encoder.encode([item_text(item.title, item.description, item.attributes) for item in items])


def _examples(dataset: Dataset, known_N: NDArray[np.bool_], back: int) -> tuple[Example, ...]:
    examples = []
    for user, sequence in dataset.sequences.items():
        place = len(sequence) - back
        if len(sequence) >= 3 and any(known_N[item] for item in sequence[:place]):
            examples.append(Example(user, sequence[:place], sequence[place]))
    return tuple(examples)

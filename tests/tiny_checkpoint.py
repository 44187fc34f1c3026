"""Small real checkpoints, made in a second: a random backbone of any family, random SIDs, a memory that matters."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from loadtest.synthetic_checkpoint import (
    Backbone,
    MemorySize,
    manifest_fields,
    write_language_model,
    write_memory,
)
from service.model.checkpoint import CatalogTensors, Checkpoint, ItemRecord, open_checkpoint, seal, write_catalog
from service.model.checkpoint_files import QUANTIZER
from service.model.quantizer import ResidualQuantizer
from service.model.semantic_ids import SidSpace

TEXT_WORDS = 100
EMBEDDING_WIDTH = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """What to build."""

    family: str = "llama"
    tied: bool = True
    levels: int = 3
    codes: int = 8
    items: int = 60
    hidden: int = 64
    layers: int = 2
    memory: bool = True
    max_items: int = 12
    seed: int = 0
    exclude_seen: bool = True
    spare_codes: int = 0
    title_tokens: int = 0


def build(folder: Path, shape: Shape = Shape()) -> Checkpoint:
    """Write a servable checkpoint of ``shape`` into an empty folder and open it."""
    space = SidSpace(shape.levels, shape.codes + shape.spare_codes, TEXT_WORDS)
    folder.mkdir(parents=True, exist_ok=True)
    lm = write_language_model(folder / "lm", _backbone(shape), space)
    # sampling defaults that would cut nearly all legal codes away, were anybody to follow them (MiniOneRec PR 57)
    (folder / "lm/generation_config.json").write_text('{"do_sample": true, "top_k": 1, "top_p": 0.01}')
    codes_NL = distinct_codes(shape)
    size = MemorySize(heads=2, width=16, max_rows=64)
    memory = write_memory(folder, size, space, shape.hidden, codes_NL, shape.seed) if shape.memory else None
    _write_items(folder, shape, codes_NL)
    fields = manifest_fields(
        space,
        lm,
        memory,
        prefix_ids=(1, 5, 9),
        max_items=shape.max_items,
        items=shape.items,
        embedding_width=EMBEDDING_WIDTH,
        exclude_seen=shape.exclude_seen,
    )
    fields["sid"]["spare_codes"] = shape.spare_codes
    fields["prompt"]["title_tokens"] = shape.title_tokens
    seal(folder, fields)
    return open_checkpoint(folder)


def distinct_codes(shape: Shape) -> NDArray[np.int64]:
    """``shape.items`` different SIDs [N, L], crowded enough that prefixes are shared."""
    random = np.random.default_rng(shape.seed)
    found = np.unique(random.integers(0, shape.codes, (8 * shape.items, shape.levels)), axis=0)
    return random.permutation(found)[: shape.items]


def _backbone(shape: Shape) -> Backbone:
    options: dict[str, Any] = {"head_dim": 32} if shape.family != "qwen2" else {}
    config = {
        "hidden_size": shape.hidden,
        "intermediate_size": 2 * shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.hidden // 32,
        "num_key_value_heads": 1,
        "max_position_embeddings": 256,
        "tie_word_embeddings": shape.tied,
        "initializer_range": 0.15,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    return Backbone(shape.family, TEXT_WORDS, config | options, seed=shape.seed)


def _write_items(folder: Path, shape: Shape, codes_NL: NDArray[np.int64]) -> None:
    random = np.random.default_rng(shape.seed)
    codebooks = random.normal(size=(shape.levels, shape.codes, EMBEDDING_WIDTH)).astype(np.float32)
    codebooks *= np.array([1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003], np.float32)[: shape.levels, None, None]
    embedding = sum(codebooks[level][codes_NL[:, level]] for level in range(shape.levels))
    embedding = np.asarray(embedding / np.linalg.norm(embedding, axis=1, keepdims=True), np.float32)
    save_file(ResidualQuantizer(torch.from_numpy(codebooks)).tensors(), folder / QUANTIZER)
    items = [ItemRecord(f"item-{n}", f"Title {n}", "", {"year": 1990 + n}) for n in range(shape.items)]
    popularity = np.arange(shape.items, 0, -1, dtype=np.int64)
    write_catalog(folder, items, CatalogTensors(codes_NL, embedding, popularity))

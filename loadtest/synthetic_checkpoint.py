"""Servable checkpoints of any size without training: a random backbone, random SIDs, a prefix memory that matters.

For benchmarks and tests alike: speed and exactness do not depend on what the weights have learned. The parts are
functions, so that a test builds a tiny one with items and attributes, and a benchmark one of ten million SIDs whose
items have no text (an engine reads none). Nothing here claims quality.

Shapes: N items, L levels, K codes, D model width.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from service.model.checkpoint import PREFIX_MEMORY, CatalogTensors, Checkpoint, open_checkpoint, seal, write_catalog
from service.model.checkpoint_files import CATALOG_ITEMS, QUANTIZER
from service.model.prefix_memory import PrefixMemory, PrefixMemoryConfig
from service.model.quantizer import ResidualQuantizer
from service.model.semantic_ids import SidSpace


@dataclass(frozen=True, slots=True)
class Backbone:
    """A causal LM to make: Hugging Face's ``family`` and its configuration, without the vocabulary's size.

    ``sid_row_std`` spreads the SID tokens' rows: logits over a level then spread by ``sid_row_std * sqrt(D)``.
    """

    family: str
    text_tokens: int
    config: Mapping[str, Any]
    dtype: str = "float32"
    sid_row_std: float | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class MemorySize:
    """Sizes of the prefix memory, see `PrefixMemoryConfig.sized`, and the spread of its tables and of W_out."""

    heads: int
    width: int
    max_rows: int
    table_std: float = 1.0
    out_std: float = 0.2


@dataclass(frozen=True, slots=True)
class SyntheticCheckpoint:
    """A benchmark's checkpoint; ``max_items`` bounds the history of a prompt."""

    backbone: Backbone
    levels: int
    codes: int
    items: int
    max_items: int
    memory: MemorySize | None = field(default_factory=lambda: MemorySize(4, 128, 50_021, out_std=0.02))
    seed: int = 0


def build_synthetic(folder: Path, wanted: SyntheticCheckpoint) -> Checkpoint:
    """Write the checkpoint into an empty folder and open it; its ``catalog.jsonl`` is empty: engines read no text."""
    space = SidSpace(wanted.levels, wanted.codes, wanted.backbone.text_tokens)
    folder.mkdir(parents=True)
    codes_NL = crowded_codes(space, wanted.items, wanted.seed)
    lm = write_language_model(folder / "lm", wanted.backbone, space)
    memory = None
    if wanted.memory is not None:
        memory = write_memory(folder, wanted.memory, space, lm["hidden_size"], codes_NL, wanted.seed)
    write_catalog(folder, [], CatalogTensors(codes_NL, np.ones((len(codes_NL), 1), np.float32), _ranks(len(codes_NL))))
    (folder / CATALOG_ITEMS).touch()
    codebooks = torch.randn(space.levels, space.codes, 1, generator=torch.Generator().manual_seed(wanted.seed))
    save_file(ResidualQuantizer(codebooks).tensors(), folder / QUANTIZER)
    fields = manifest_fields(space, lm, memory, prefix_ids=(1, 5, 9), max_items=wanted.max_items, items=wanted.items)
    seal(folder, fields)
    return open_checkpoint(folder, verify=False)


def crowded_codes(space: SidSpace, items: int, seed: int) -> NDArray[np.int64]:
    """``items`` different SIDs [N, L] in random order, low codes more likely, so that prefixes are shared unevenly.

    Raises:
        ValueError: the space does not hold that many (half of it at most, to keep drawing quick).
    """
    if items > space.codes**space.levels // 2:
        raise ValueError(f"{items} items need more than half of the {space.codes}^{space.levels} SIDs")
    random = np.random.default_rng(seed)
    found = np.empty(0, np.int64)
    while len(found) < items:
        drawn = (random.random((int(1.3 * items) + 10, space.levels)) ** 1.5 * space.codes).astype(np.int64)
        key = drawn @ (space.codes ** np.arange(space.levels - 1, -1, -1, dtype=np.int64))
        found = np.union1d(found, key)
    chosen = random.permutation(found)[:items]
    return np.stack([chosen // space.codes**power % space.codes for power in range(space.levels - 1, -1, -1)], 1)


def write_language_model(folder: Path, backbone: Backbone, space: SidSpace) -> dict[str, Any]:
    """Random weights and a word tokenizer with the SID tokens; returns the manifest's ``lm`` part."""
    torch.manual_seed(backbone.seed)
    vocabulary = -(-space.end_token_id // 64) * 64
    config = AutoConfig.for_model(backbone.family, vocab_size=vocabulary, **backbone.config)
    dtype: torch.dtype = getattr(torch, backbone.dtype)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
    if backbone.sid_row_std is not None:
        for module in (model.get_input_embeddings(), model.get_output_embeddings()):
            module.weight.data[space.first_token_id : space.end_token_id].normal_(std=backbone.sid_row_std)
    model.save_pretrained(folder)
    _write_tokenizer(folder, space)
    architecture = str(model.config.architectures[0] if model.config.architectures else type(model).__name__)
    return {
        "architecture": architecture,
        "vocab_size": vocabulary,
        "hidden_size": config.hidden_size,
        "num_layers": config.num_hidden_layers,
        "dtype": backbone.dtype,
    }


def write_memory(
    folder: Path, size: MemorySize, space: SidSpace, model_width: int, codes_NL: NDArray[np.int64], seed: int
) -> PrefixMemoryConfig:
    """A random prefix memory of all orders, touched by all items."""
    config = PrefixMemoryConfig.sized(
        space, orders=space.levels, heads=size.heads, width=size.width, max_rows=size.max_rows
    )
    memory = PrefixMemory(config, model_width)
    memory.reset_tables(std=size.table_std, seed=seed)
    torch.nn.init.normal_(memory.w_out.weight, std=size.out_std)
    memory.count_touches(torch.from_numpy(codes_NL))
    save_file(memory.state_dict(), folder / PREFIX_MEMORY)
    return config


def manifest_fields(
    space: SidSpace,
    lm: Mapping[str, Any],
    memory: PrefixMemoryConfig | None,
    *,
    prefix_ids: tuple[int, ...],
    max_items: int,
    items: int,
    embedding_width: int = 1,
    exclude_seen: bool = True,
) -> dict[str, Any]:
    """What `seal` wants beside the files."""
    sid = {"levels": space.levels, "codes": space.codes, "first_token_id": space.first_token_id}
    names = ("heads", "width", "rows", "inject_levels", "seed")
    data = {"name": "synthetic", "fingerprint": "0" * 64, "license_note": "made up"}
    return {
        "created_at": "2026-01-01T00:00:00Z",
        "sid": {**sid, "collision_policy": "reassign", "collision_rate": 0.0},
        "prompt": {"prefix_ids": prefix_ids, "max_items": max_items},
        "prefix_memory": None if memory is None else {name: getattr(memory, name) for name in names},
        "lm": dict(lm),
        "embedding": {"width": embedding_width, "max_tokens": 32},
        "smoothing": {"temperature": 0.1, "boost": 1.0},
        "serving": {"beam_width": 20, "exclude_seen": exclude_seen},
        "data": {**data, "num_items": items, "num_users": 0, "num_interactions": 0},
        "recipe": {},
        "metrics": {},
    }


def _ranks(items: int) -> NDArray[np.int64]:
    return np.arange(items, 0, -1, dtype=np.int64)


def _write_tokenizer(folder: Path, space: SidSpace) -> None:
    words = {f"w{number}": number for number in range(space.first_token_id)}
    words |= {token: space.first_token_id + row for row, token in enumerate(space.token_strings())}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0")  # type: ignore[no-untyped-call]
    fast.save_pretrained(folder)

"""Small real checkpoints, made in a second: a random backbone of any family, random SIDs, a memory that matters."""

import json
from dataclasses import dataclass
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

from service.model.checkpoint import (
    PREFIX_MEMORY,
    QUANTIZER,
    CatalogTensors,
    Checkpoint,
    ItemRecord,
    open_checkpoint,
    seal,
    write_catalog,
)
from service.model.prefix_memory import PrefixMemory, PrefixMemoryConfig
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


def build(folder: Path, shape: Shape = Shape()) -> Checkpoint:
    """Write a servable checkpoint of ``shape`` into an empty folder and open it."""
    torch.manual_seed(shape.seed)
    space = SidSpace(shape.levels, shape.codes, TEXT_WORDS)
    vocabulary = -(-space.end_token_id // 64) * 64
    folder.mkdir(parents=True, exist_ok=True)
    architecture = _write_lm(folder / "lm", shape, space, vocabulary)
    codes_NL = distinct_codes(shape)
    memory = _write_memory(folder, shape, space, codes_NL) if shape.memory else None
    _write_items(folder, shape, codes_NL)
    seal(folder, _manifest(shape, space, vocabulary, architecture, memory))
    return open_checkpoint(folder)


def distinct_codes(shape: Shape) -> NDArray[np.int64]:
    """``shape.items`` different SIDs [N, L], crowded enough that prefixes are shared."""
    random = np.random.default_rng(shape.seed)
    found = np.unique(random.integers(0, shape.codes, (8 * shape.items, shape.levels)), axis=0)
    return random.permutation(found)[: shape.items]


def _write_lm(folder: Path, shape: Shape, space: SidSpace, vocabulary: int) -> str:
    options: dict[str, Any] = {"head_dim": 32} if shape.family != "qwen2" else {}
    config = AutoConfig.for_model(
        shape.family,
        vocab_size=vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=2 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.hidden // 32,
        num_key_value_heads=1,
        max_position_embeddings=256,
        tie_word_embeddings=shape.tied,
        initializer_range=0.15,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        **options,
    )
    model = AutoModelForCausalLM.from_config(config).float()  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    # sampling defaults that would cut nearly all legal codes away, were anybody to follow them (MiniOneRec PR 57)
    (folder / "generation_config.json").write_text('{"do_sample": true, "top_k": 1, "top_p": 0.01}')
    words = {f"w{number}": number for number in range(TEXT_WORDS)}
    words |= {token: TEXT_WORDS + row for row, token in enumerate(space.token_strings())}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0")  # type: ignore[no-untyped-call]
    fast.save_pretrained(folder)
    return str(model.config.architectures[0] if model.config.architectures else type(model).__name__)


def _write_memory(folder: Path, shape: Shape, space: SidSpace, codes_NL: NDArray[np.int64]) -> PrefixMemoryConfig:
    config = PrefixMemoryConfig.sized(space, orders=shape.levels, heads=2, width=16, max_rows=64)
    memory = PrefixMemory(config, shape.hidden)
    memory.reset_tables(std=1.0, seed=shape.seed)
    torch.nn.init.normal_(memory.w_out.weight, std=0.2)
    memory.count_touches(torch.from_numpy(codes_NL))
    save_file(memory.state_dict(), folder / PREFIX_MEMORY)
    return config


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


def _manifest(
    shape: Shape, space: SidSpace, vocabulary: int, architecture: str, memory: PrefixMemoryConfig | None
) -> dict[str, Any]:
    return {
        "created_at": "2026-01-01T00:00:00Z",
        "sid": {
            "levels": space.levels,
            "codes": space.codes,
            "first_token_id": space.first_token_id,
            "collision_policy": "reassign",
            "collision_rate": 0.0,
        },
        "prompt": {"prefix_ids": [1, 5, 9], "max_items": shape.max_items},
        "prefix_memory": None
        if memory is None
        else {
            "heads": memory.heads,
            "width": memory.width,
            "rows": memory.rows,
            "inject_levels": memory.inject_levels,
            "seed": memory.seed,
        },
        "lm": {
            "architecture": architecture,
            "vocab_size": vocabulary,
            "hidden_size": shape.hidden,
            "num_layers": shape.layers,
            "dtype": "float32",
        },
        "embedding": {"width": EMBEDDING_WIDTH, "max_tokens": 32},
        "smoothing": {"temperature": 0.1, "boost": 1.0},
        "serving": {"beam_width": 20, "exclude_seen": shape.exclude_seen},
        "data": {
            "name": "tiny",
            "fingerprint": "0" * 64,
            "num_items": shape.items,
            "num_users": 0,
            "num_interactions": 0,
            "license_note": "made up",
        },
        "recipe": json.loads("{}"),
        "metrics": {},
    }

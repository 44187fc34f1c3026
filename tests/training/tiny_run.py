"""A whole training run in seconds: forty items, sixty users with a habit, a random two-layer LM and text encoder."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from tests.training.tiny_backbone import LETTERS, backbone, saved
from training.config import Recipe, parse_recipe
from training.pipeline import Pipeline
from training.progress import QuietReporter
from training.stages import RunFolder

ITEMS = 40
USERS = 60
WORDS = ("red", "green", "blue", "black", "white", "small", "large", "old")


@dataclass(frozen=True, slots=True)
class TinyWorld:
    """Files that a recipe names."""

    items: Path
    interactions: Path
    backbone: Path
    encoder: Path

    def raw_recipe(self, **changes: dict[str, Any]) -> dict[str, Any]:
        """A recipe as plain data, with changes by part."""
        parts: dict[str, dict[str, Any]] = {
            "data": {"source": "tables", "items": str(self.items), "interactions": str(self.interactions)},
            "embedding": {"encoder": str(self.encoder)},
            "sids": {"levels": 2, "codes": 8, "min_usage": 0.1},
            "backbone": {"spec": str(self.backbone), "layers": 2, "dtype": "float32"},
            "grounding": {"objective": "mean"},
            "prefix_memory": {"orders": 2, "heads": 2, "width": 8, "max_rows": 64, "pretrain_steps": 5},
            "prompt": {"prefix": "then: ", "max_items": 8},
            "finetune": {
                "epochs": 2,
                "batch_size": 16,
                "lr": 0.01,
                "warmup_steps": 2,
                "valid_users": 20,
                "save_every": 2,
            },
            "blend": {},
            "evaluate": {"beam_width": 10, "ks": [1, 5, 10], "bootstrap_samples": 100},
        }
        return {name: {**part, **changes.get(name, {})} for name, part in parts.items()}

    def recipe(self, **changes: dict[str, Any]) -> Recipe:
        """The same, checked."""
        return parse_recipe(self.raw_recipe(**changes), "tiny")

    def pipeline(self, out: Path, **changes: dict[str, Any]) -> Pipeline:
        """A run in ``out``."""
        return Pipeline(self.recipe(**changes), RunFolder(out, QuietReporter()), out.parent / "cache")

    def toml(self, path: Path, **changes: dict[str, Any]) -> Path:
        """The recipe as a file."""
        parts = self.raw_recipe(**changes)
        lines = [
            f"[{name}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in part.items()) for name, part in parts.items()
        ]
        path.write_text("\n".join(lines))
        return path


def build(folder: Path) -> TinyWorld:
    """Write tables, backbone and encoder."""
    folder.mkdir(parents=True, exist_ok=True)
    items, interactions = folder / "items.jsonl", folder / "interactions.csv"
    items.write_text("".join(json.dumps(item_row(number)) + "\n" for number in range(ITEMS)))
    interactions.write_text("user_id,item_id,timestamp\n" + "".join(interaction_lines()))
    lm = saved(folder / "lm", backbone())
    return TinyWorld(items, interactions, lm, _encoder(folder))


def item_row(number: int) -> dict[str, Any]:
    """An item with a telling title."""
    return {
        "item_id": f"i{number}",
        "title": f"{WORDS[number % 8]} {WORDS[number // 8]} thing {number}",
        "size": number % 3,
    }


def interaction_lines() -> list[str]:
    """Most users walk through the items in steps of one, some in steps of three."""
    random = np.random.default_rng(0)
    lines = []
    for user in range(USERS):
        start, stride, length = random.integers(0, ITEMS), 1 if user % 3 else 3, random.integers(6, 14)
        for place in range(length):
            lines.append(f"u{user},i{(start + stride * place) % ITEMS},{1000 + place}\n")
    return lines


def _encoder(folder: Path) -> Path:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    words = {"[PAD]": 0, "[UNK]": 1} | {letter: number + 2 for number, letter in enumerate(LETTERS)}
    made = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = Split("", "isolated")
    bert = folder / "bert"
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=160,
    )
    BertModel(config).save_pretrained(bert)  # type: ignore[no-untyped-call]
    PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]", model_max_length=128
    ).save_pretrained(bert)
    transformer = Transformer(str(bert))
    encoder = SentenceTransformer(modules=[transformer, Pooling(16)], device="cpu")
    encoder.save(str(folder / "encoder"), create_model_card=False)
    return folder / "encoder"

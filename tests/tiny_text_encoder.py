"""A sentence-transformers folder with a small random model, so that services ground items without a download."""

from pathlib import Path
from string import ascii_lowercase

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from service.model.checkpoint import Checkpoint, copy_text_encoder, open_checkpoint, seal
from tests.tiny_checkpoint import EMBEDDING_WIDTH

LETTERS = ascii_lowercase + "0123456789"


def write_text_encoder(folder: Path) -> Path:
    """It reads letters and digits, so texts that differ in them embed differently; returns its folder."""
    width = EMBEDDING_WIDTH
    pieces = ["[PAD]", "[UNK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    config = BertConfig(
        vocab_size=len(pieces), hidden_size=width, num_hidden_layers=1, num_attention_heads=1, intermediate_size=width
    )
    BertModel(config).save_pretrained(folder / "bert")  # type: ignore[no-untyped-call]
    tokenizer = Tokenizer(WordPiece({piece: n for n, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = Lowercase()
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", model_max_length=64
    ).save_pretrained(folder / "bert")
    modules = [Transformer(str(folder / "bert")), Pooling(width)]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder / "encoder"), create_model_card=False)
    return folder / "encoder"


def with_text_encoder(checkpoint: Checkpoint, folder: Path) -> Checkpoint:
    """The checkpoint with such an encoder inside, sealed again."""
    copy_text_encoder(write_text_encoder(folder), checkpoint.folder)
    seal(checkpoint.folder, checkpoint.manifest.model_dump(exclude={"files", "model_version"}))
    return open_checkpoint(checkpoint.folder)

"""A servable checkpoint: a folder of safetensors and JSON under a sha256 manifest, and nothing else.

    manifest.json              the contract, see `manifest`
    lm/                        config.json, model.safetensors, tokenizer.json, tokenizer_config.json
    prefix_memory.safetensors  tables, W_out, touch counts (absent without a memory)
    quantizer.safetensors      codebooks and, for RQ-VAE, its encoder
    neighbours.safetensors     who keeps company with whom, see `blend` (absent without one)
    catalog.jsonl              item_id, title, description, attributes, one item a line
    catalog.safetensors        codes int32 [N, L], embeddings float32 [N, E], popularity int64 [N]
    text_encoder/              a sentence-transformers folder

No pickle, no code, no hub. Every defect is a `CheckpointError` that names the file. It loads no language model.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from service.errors import CheckpointError
from service.model.blend import NONE, STORED, Blend, Neighbours
from service.model.checkpoint_files import (
    CATALOG_ITEMS,
    CATALOG_TENSORS,
    LM_FOLDER,
    MANIFEST,
    QUANTIZER,
    file_entry,
    listed_files,
    prove_files,
    read_manifest,
)
from service.model.item_text import AttributeValue
from service.model.manifest import SCHEMA_VERSION, Manifest
from service.model.prefix_memory import PrefixMemory, PrefixMemoryConfig
from service.model.prompt import PromptTemplate
from service.model.quantizer import ResidualQuantizer
from service.model.semantic_ids import SidSpace
from service.model.title_tokens import TitleTokens, load_title_tokens

TEXT_ENCODER_FOLDER = "text_encoder"
PREFIX_MEMORY = "prefix_memory.safetensors"
NEIGHBOURS = "neighbours.safetensors"
LANGUAGE_MODEL = "lm/model.safetensors"
INPUT_ROWS, OUTPUT_ROWS = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True)
class ItemRecord:
    """An item as the catalogue knows it."""

    item_id: str
    title: str
    description: str
    attributes: Mapping[str, AttributeValue]


@dataclass(frozen=True, slots=True)
class CatalogTensors:
    """In the order of ``catalog.jsonl``: codes int [N, L], unit embeddings float32 [N, E], popularity int64 [N]."""

    codes_NL: NDArray[np.integer]
    embedding_NE: NDArray[np.float32]
    popularity_N: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified checkpoint. Large parts are loaded on request."""

    folder: Path
    manifest: Manifest
    space: SidSpace
    prompt: PromptTemplate

    @property
    def lm_folder(self) -> Path:
        """A Hugging Face model folder with the extended vocabulary."""
        return self.folder / LM_FOLDER

    @property
    def text_encoder_folder(self) -> Path:
        """The sentence-transformers folder that embeds item text."""
        return self.folder / TEXT_ENCODER_FOLDER

    def items(self) -> list[ItemRecord]:
        """The catalogue the model was trained with.

        Raises:
            CheckpointError: a line is no item, an id occurs twice, or there are not as many as the manifest says.
        """
        path = self.folder / CATALOG_ITEMS
        with path.open(encoding="utf-8") as lines:
            items = [_item(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]
        if len({item.item_id for item in items}) != len(items):
            raise CheckpointError(f"{path}: an item id occurs twice; export the checkpoint again")
        if len(items) != self.manifest.data.num_items:
            raise CheckpointError(f"{path}: {len(items)} items, the manifest says {self.manifest.data.num_items}")
        return items

    def catalog_tensors(self) -> CatalogTensors:
        """Codes, embeddings and popularity of `items`.

        Raises:
            CheckpointError: the arrays do not fit the manifest, or hold NaN.
        """
        stored = _load_tensors(self.folder / CATALOG_TENSORS, ("codes", "embeddings", "popularity"))
        tensors = CatalogTensors(*(stored[name].numpy() for name in ("codes", "embeddings", "popularity")))
        _check_catalog(tensors, self.manifest, self.folder / CATALOG_TENSORS)
        return tensors

    @property
    def trained_codes(self) -> int:
        """How many codes of each level have a codebook vector; those behind them are spare."""
        return self.space.codes - self.manifest.sid.spare_codes

    def token_rows(self) -> tuple[Tensor, Tensor]:
        """Input and output embedding rows of the SID tokens, float32 [L * K, D] each; a tied head has the same twice.

        Raises:
            CheckpointError: the language model's file does not hold them.
        """
        path = self.folder / LANGUAGE_MODEL
        rows = slice(self.space.first_token_id, self.space.end_token_id)
        try:
            with safe_open(path, "pt") as stored:
                names = set(stored.keys())
                given: Tensor = stored.get_slice(INPUT_ROWS)[rows].float()
                said: Tensor = stored.get_slice(OUTPUT_ROWS)[rows].float() if OUTPUT_ROWS in names else given
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path}: the rows of the SID tokens cannot be read: {error}") from error
        if min(len(given), len(said)) < self.space.num_tokens:
            raise CheckpointError(f"{path}: the vocabulary ends before the SID tokens do")
        return given, said

    def title_tokens(self) -> TitleTokens:
        """What prompts show of titles: nothing, unless the model was trained with them."""
        return load_title_tokens(self.lm_folder, self.prompt.title_tokens)

    def quantizer(self) -> ResidualQuantizer:
        """The frozen quantiser.

        Raises:
            CheckpointError: its shape does not fit the SID space, or it holds NaN.
        """
        path = self.folder / QUANTIZER
        quantizer = ResidualQuantizer.from_tensors(_load_tensors(path, ("codebooks",)))
        wanted = (self.space.levels, self.trained_codes, self.manifest.embedding.width)
        if (quantizer.levels, quantizer.codes, quantizer.embedding_width) != wanted:
            raise CheckpointError(f"{path}: the codebooks do not have the manifest's levels, codes and width {wanted}")
        return quantizer

    def blend(self) -> Blend | None:
        """What answers are blended with, or None for a checkpoint whose model answers alone.

        Raises:
            CheckpointError: the neighbours do not fit the catalogue.
        """
        part = self.manifest.blend
        if part is None:
            return None
        path = self.folder / NEIGHBOURS
        neighbours = Neighbours.from_tensors(_load_tensors(path, list(STORED)))
        _check_neighbours(neighbours, self.manifest.data.num_items, path)
        return Blend(neighbours, self.catalog_tensors().embedding_NE, part.weights)

    def prefix_memory(self) -> PrefixMemory | None:
        """The prefix memory, or None for a checkpoint without one."""
        return load_prefix_memory(self.folder, self.manifest)

    def prove_contents(self) -> None:
        """Load every part once but the two language models: seconds before an engine would stumble over one.

        Raises:
            CheckpointError: a part does not fit the manifest.
        """
        self.quantizer(), self.prefix_memory(), self.items(), self.catalog_tensors(), self.blend()


def open_checkpoint(folder: Path, *, verify: bool = True) -> Checkpoint:
    """Read the manifest and prove that the files are those it lists.

    Args:
        folder: the checkpoint.
        verify: hash every file; without it only presence and size are checked.

    Raises:
        CheckpointError: the folder is not a whole, untampered checkpoint of a schema this code reads.
    """
    manifest = prove_files(folder, verify=verify)
    space = SidSpace(manifest.sid.levels, manifest.sid.codes, manifest.sid.first_token_id)
    part = manifest.prompt
    return Checkpoint(
        folder, manifest, space, PromptTemplate(space, part.prefix_ids, part.max_items, part.title_tokens)
    )


def load_prefix_memory(folder: Path, manifest: Manifest) -> PrefixMemory | None:
    """Build the memory the manifest describes and load its tensors.

    Raises:
        CheckpointError: the tensors do not fit.
    """
    part = manifest.prefix_memory
    if part is None:
        return None
    config = PrefixMemoryConfig(
        manifest.sid.levels, manifest.sid.codes, part.heads, part.width, part.rows, part.inject_levels, part.seed
    )
    memory = PrefixMemory(config, manifest.lm.hidden_size)
    path = folder / PREFIX_MEMORY
    try:
        memory.load_state_dict(_load_tensors(path, ("w_out.weight",)))
    except RuntimeError as error:
        raise CheckpointError(f"{path}: does not fit the manifest: {str(error).splitlines()[-1].strip()}") from error
    return memory.requires_grad_(False).eval()


def write_catalog(folder: Path, items: Sequence[ItemRecord], tensors: CatalogTensors) -> None:
    """Write ``catalog.jsonl`` and ``catalog.safetensors``."""
    with (folder / CATALOG_ITEMS).open("w", encoding="utf-8") as lines:
        for item in items:
            row = {name: getattr(item, name) for name in ItemRecord.__slots__} | {"attributes": dict(item.attributes)}
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")
    save_file(
        {
            "codes": torch.from_numpy(tensors.codes_NL.astype(np.int32)),
            "embeddings": torch.from_numpy(np.ascontiguousarray(tensors.embedding_NE)),
            "popularity": torch.from_numpy(tensors.popularity_N),
        },
        folder / CATALOG_TENSORS,
    )


def seal(folder: Path, fields: Mapping[str, Any]) -> Manifest:
    """Hash every file of ``folder`` and write its manifest; ``fields`` are the manifest's other parts.

    The model version is the digest of the file digests, so equal content has an equal version. Everybody may read the
    files afterwards: safetensors writes them for the owner alone, and the service runs as another user.
    """
    for name in listed_files(folder):
        (folder / name).chmod(0o644)
    files = {name: file_entry(folder / name) for name in sorted(listed_files(folder)) if name != MANIFEST}
    digest = hashlib.sha256("".join(f"{name}{entry.sha256}" for name, entry in files.items()).encode())
    manifest = Manifest.model_validate({**fields, "model_version": digest.hexdigest()[:12], "files": files})
    _write_manifest(folder, manifest)
    return manifest


def change_manifest(folder: Path, fields: Mapping[str, Any]) -> Manifest:
    """Replace parts of a checkpoint's manifest as a whole; its files, and so its model version, stay.

    Raises:
        CheckpointError: the folder has no manifest that this code reads.
    """
    changed = read_manifest(folder).model_dump() | {"schema_version": SCHEMA_VERSION} | dict(fields)
    manifest = Manifest.model_validate(changed)
    _write_manifest(folder, manifest)
    return manifest


def migrate_checkpoint(folder: Path, *, dry_run: bool = False) -> tuple[int, int]:
    """Bring a checkpoint's manifest to the newest schema; returns the schema version before and after.

    Raises:
        CheckpointError: the checkpoint cannot be served as it is, so there is nothing sound to migrate.
    """
    before = open_checkpoint(folder).manifest.schema_version
    if before != SCHEMA_VERSION and not dry_run:
        change_manifest(folder, {})
        open_checkpoint(folder)
    return before, SCHEMA_VERSION


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    temporary = folder / f".{MANIFEST}.tmp"
    temporary.write_text(manifest.model_dump_json(indent=1), encoding="utf-8")
    os.replace(temporary, folder / MANIFEST)


def copy_text_encoder(source: Path, folder: Path) -> None:
    """Copy what a sentence-transformers folder needs to load (JSON and safetensors only)."""
    for path in source.rglob("*"):
        if path.suffix in {".json", ".safetensors"}:
            target = folder / TEXT_ENCODER_FOLDER / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def _item(line: str, place: str) -> ItemRecord:
    try:
        item = ItemRecord(**json.loads(line))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{place}: not an item: {error}") from None
    texts = (item.item_id, item.title, item.description)
    if not all(isinstance(text, str) for text in texts) or not isinstance(item.attributes, dict):
        raise CheckpointError(f"{place}: item_id, title and description must be text, attributes an object")
    return item


def _check_catalog(tensors: CatalogTensors, manifest: Manifest, path: Path) -> None:
    items, levels = tensors.codes_NL.shape
    if levels != manifest.sid.levels or items != manifest.data.num_items:
        raise CheckpointError(f"{path}: {items} items of {levels} levels do not fit the manifest")
    if tensors.embedding_NE.shape != (items, manifest.embedding.width) or tensors.popularity_N.shape != (items,):
        raise CheckpointError(f"{path}: embeddings or popularity do not have one row per item")
    if items and not 0 <= tensors.codes_NL.min() <= tensors.codes_NL.max() < manifest.sid.codes:
        raise CheckpointError(f"{path}: a code lies outside 0..{manifest.sid.codes - 1}")


def _check_neighbours(neighbours: Neighbours, items: int, path: Path) -> None:
    near_NQ = neighbours.neighbour_NQ
    if near_NQ.shape != neighbours.strength_NQ.shape or {len(near_NQ), len(neighbours.log_density_N)} != {items}:
        raise CheckpointError(
            f"{path}: does not have one row for each of the {items} items; export the checkpoint again"
        )
    if near_NQ.size and not NONE <= near_NQ.min() <= near_NQ.max() < items:
        raise CheckpointError(f"{path}: a neighbour lies outside 0..{items - 1}")


def _load_tensors(path: Path, wanted: Sequence[str]) -> dict[str, Tensor]:
    try:
        stored = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: not a readable safetensors file: {error}") from error
    for name in wanted:
        if name not in stored:
            raise CheckpointError(f"{path}: holds no tensor {name!r}")
    for name, tensor in stored.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"{path}: tensor {name!r} holds NaN or infinity")
    return dict(stored)

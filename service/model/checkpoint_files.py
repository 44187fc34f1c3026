"""The files of a checkpoint are those its manifest lists: present, of their size and sha256, and fit for each other.

It imports no torch, so that a damaged folder is refused before anything heavy is loaded; what lies inside the tensors
is `checkpoint`'s. A file is hashed once per process as long as it is not written to.
"""

import hashlib
import json
from functools import lru_cache
from pathlib import Path

from pydantic import ValidationError

from service.errors import CheckpointError
from service.model.manifest import READABLE_VERSIONS, FileEntry, Manifest

MANIFEST = "manifest.json"
LM_FOLDER = "lm"
QUANTIZER = "quantizer.safetensors"
CATALOG_ITEMS = "catalog.jsonl"
CATALOG_TENSORS = "catalog.safetensors"

_ALLOWED_SUFFIXES = {".json", ".jsonl", ".safetensors"}
_REQUIRED = (f"{LM_FOLDER}/config.json", f"{LM_FOLDER}/model.safetensors", QUANTIZER, CATALOG_ITEMS, CATALOG_TENSORS)


def prove_files(folder: Path, *, verify: bool = True) -> Manifest:
    """The manifest of a folder whose files are those it lists.

    Args:
        folder: the checkpoint.
        verify: hash every file; without it only presence and size are checked.

    Raises:
        CheckpointError: the folder is not a whole, untampered checkpoint of a schema this code reads.
    """
    manifest = read_manifest(folder)
    for name in _REQUIRED:
        if name not in manifest.files:
            raise CheckpointError(f"{folder / MANIFEST}: lists no {name}; export the checkpoint again")
    _check_files(folder, manifest, verify=verify)
    end = manifest.sid.first_token_id + manifest.sid.levels * manifest.sid.codes
    if end > manifest.lm.vocab_size:
        raise CheckpointError(
            f"{folder / MANIFEST}: SID tokens end at {end}, the vocabulary at {manifest.lm.vocab_size}"
        )
    _check_language_model(folder, manifest)
    _check_tokenizer(folder, manifest)
    _check_prompt(folder, manifest)
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """The manifest alone, its schema checked.

    Raises:
        CheckpointError: it is missing, unreadable or of another schema version.
    """
    path = folder / MANIFEST
    try:
        raw = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path}: not found; --checkpoint must name a folder made by `groundrec train`") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version not in READABLE_VERSIONS:
        readable = " and ".join(str(known) for known in READABLE_VERSIONS)
        raise CheckpointError(f"{path}: schema version {version!r}, this program reads {readable}")
    try:
        return Manifest.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise CheckpointError(f"{path}: {place}: {first['msg']}") from error


def _check_files(folder: Path, manifest: Manifest, *, verify: bool) -> None:
    present = listed_files(folder) - {MANIFEST}
    for name in sorted(present - set(manifest.files)):
        raise CheckpointError(f"{folder / name}: not listed in the manifest; remove it or export the checkpoint again")
    for name, entry in manifest.files.items():
        path = folder / name
        if Path(name).suffix not in _ALLOWED_SUFFIXES or ".." in Path(name).parts or Path(name).is_absolute():
            raise CheckpointError(f"{path}: a checkpoint holds only JSON and safetensors inside its folder")
        if name not in present:
            raise CheckpointError(f"{path}: listed in the manifest but missing")
        if path.stat().st_size != entry.bytes:
            raise CheckpointError(
                f"{path}: {path.stat().st_size} bytes, the manifest says {entry.bytes}; copy it again"
            )
        if verify and _sha256(path) != entry.sha256:
            raise CheckpointError(f"{path}: its sha256 is not the manifest's; the file was changed or damaged")


def _check_language_model(folder: Path, manifest: Manifest) -> None:
    path = folder / LM_FOLDER / "config.json"
    config = json.loads(path.read_bytes())
    for key, wanted in (
        ("vocab_size", manifest.lm.vocab_size),
        ("hidden_size", manifest.lm.hidden_size),
        ("num_hidden_layers", manifest.lm.num_layers),
    ):
        if config.get(key) != wanted:
            raise CheckpointError(f"{path}: {key} is {config.get(key)}, the manifest says {wanted}")


def _check_tokenizer(folder: Path, manifest: Manifest) -> None:
    """Another model's tokenizer would read titles with other ids, and cannot say the SIDs that this one learned."""
    name = f"{LM_FOLDER}/tokenizer.json"
    if name not in manifest.files:
        if manifest.prompt.title_tokens:
            raise CheckpointError(f"{folder / name}: missing, and prompts show titles; export the checkpoint again")
        return
    try:
        raw = json.loads((folder / name).read_bytes())
        vocabulary = raw["model"]["vocab"]
        known = set(vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary)))
        known |= {token["id"] for token in raw["added_tokens"]}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CheckpointError(f"{folder / name}: not a readable tokenizer: {error!r}") from error
    first = manifest.sid.first_token_id
    missing = set(range(first, first + manifest.sid.levels * manifest.sid.codes)) - known
    if missing:
        raise CheckpointError(
            f"{folder / name}: lacks {len(missing)} of the SID tokens, {min(missing)} first; it is another model's"
        )


def _check_prompt(folder: Path, manifest: Manifest) -> None:
    if not all(0 <= token < manifest.lm.vocab_size for token in manifest.prompt.prefix_ids):
        raise CheckpointError(f"{folder / MANIFEST}: prompt.prefix_ids lie outside the vocabulary")
    path = folder / LM_FOLDER / "config.json"
    positions = json.loads(path.read_bytes()).get("max_position_embeddings")
    item_tokens = manifest.sid.levels + manifest.prompt.title_tokens
    longest = len(manifest.prompt.prefix_ids) + manifest.prompt.max_items * item_tokens + manifest.sid.levels
    if positions is not None and longest > positions:
        raise CheckpointError(
            f"{folder / MANIFEST}: prompt.max_items {manifest.prompt.max_items} of {item_tokens} tokens "
            f"needs {longest} positions, {path.name} allows {positions}"
        )


def listed_files(folder: Path) -> set[str]:
    """Paths of all files below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def file_entry(path: Path) -> FileEntry:
    """What the manifest says of a file."""
    return FileEntry(sha256=_sha256(path), bytes=path.stat().st_size)


def _sha256(path: Path) -> str:
    try:
        state = path.stat()
        return _digest(path.resolve(), state.st_ino, state.st_mtime_ns, state.st_ctime_ns, state.st_size)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}; let the service's user read it") from error


@lru_cache(maxsize=256)
def _digest(path: Path, *state: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

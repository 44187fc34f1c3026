"""A checkpoint is whole and untouched, or it is refused with one line that names the file."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from service.errors import CheckpointError
from service.model.checkpoint import Checkpoint, change_manifest, open_checkpoint, seal
from service.model.checkpoint_files import read_manifest
from service.model.grounded_lm import load_grounded_lm
from tests.tiny_checkpoint import Shape, build, distinct_codes

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return build(tmp_path_factory.mktemp("original") / "checkpoint")


@pytest.fixture
def copy(original: Checkpoint, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original.folder, tmp_path / "copy"))


def reseal(folder: Path) -> None:
    """Make a tampered folder consistent again, so that a later check must find the fault."""
    raw = json.loads((folder / "manifest.json").read_bytes())
    seal(folder, {key: value for key, value in raw.items() if key not in {"files", "model_version"}})


def test_what_was_written_is_read_back(original: Checkpoint) -> None:
    tensors = original.catalog_tensors()
    assert np.array_equal(tensors.codes_NL, distinct_codes(Shape()))
    assert [item.item_id for item in original.items()] == [f"item-{n}" for n in range(60)]
    assert original.items()[3].attributes == {"year": 1993}
    assert original.quantizer().codes == 8
    memory = original.prefix_memory()
    assert memory is not None and int(memory.touched(0).sum()) == 60 * 2


def test_equal_content_has_an_equal_version(original: Checkpoint, tmp_path: Path) -> None:
    again = build(tmp_path / "again")
    other = build(tmp_path / "other", Shape(seed=1))
    assert again.manifest.model_version == original.manifest.model_version
    assert other.manifest.model_version != original.manifest.model_version


def flip_bit(folder: Path) -> None:
    path = folder / "lm" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def truncate(folder: Path) -> None:
    path = folder / "catalog.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def overwrite(name: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / name).write_bytes(b"")

    return edit


def edit_manifest(**changes: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_bytes()) | changes))

    return edit


def edit_tensor(file: str, name: str, value: float) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        stored = load_file(folder / file)
        stored[name].view(-1)[0] = value
        save_file(stored, folder / file)
        reseal(folder)

    return edit


def forget_a_sid_token(folder: Path) -> None:
    path = folder / "lm" / "tokenizer.json"
    raw = json.loads(path.read_bytes())
    vocabulary = raw["model"]["vocab"]
    del vocabulary[max(vocabulary, key=vocabulary.get)]
    path.write_text(json.dumps(raw))
    reseal(folder)


def show_titles_without_a_tokenizer(folder: Path) -> None:
    (folder / "lm" / "tokenizer.json").unlink()
    edit_manifest(prompt={"prefix_ids": [1], "max_items": 4, "title_tokens": 2})(folder)
    reseal(folder)


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing manifest": (lambda folder: (folder / "manifest.json").unlink(), r"manifest\.json: not found"),
    "empty manifest": (overwrite("manifest.json"), r"manifest\.json: cannot be read"),
    "newer manifest": (
        edit_manifest(schema_version=5),
        r"manifest\.json: schema version 5, this program reads 1 and 2 and 3 and 4",
    ),
    "another model's tokenizer": (forget_a_sid_token, r"tokenizer\.json: lacks 1 of the SID tokens, 123 first"),
    "titles, and nothing to read them": (show_titles_without_a_tokenizer, r"tokenizer\.json: missing, and prompts"),
    "unknown field": (edit_manifest(surprise=1), r"manifest\.json: surprise"),
    "flipped bit": (flip_bit, r"model\.safetensors: its sha256"),
    "truncated": (truncate, r"catalog\.safetensors: \d+ bytes"),
    "missing file": (lambda folder: (folder / "quantizer.safetensors").unlink(), r"quantizer\.safetensors: listed"),
    "extra pickle": (overwrite("evil.pkl"), r"evil\.pkl: not listed"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_folder_is_refused_by_name(fault: str, copy: Path) -> None:
    damage, message = FAULTS[fault]
    damage(copy)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(copy)


def test_a_checkpoint_of_the_first_schema_opens_and_has_no_dial_for_new_items(copy: Path) -> None:
    edit_manifest(schema_version=1)(copy)
    assert open_checkpoint(copy).manifest.smoothing.new_items is None


def test_a_new_dial_leaves_files_and_model_version_as_they_are(copy: Path) -> None:
    before = open_checkpoint(copy).manifest
    dial = {"bias": -0.5, "text": 1.0, "model": 0.2, "temperature": 0.1, "decay": 0.8, "history": 10}
    smoothing = before.smoothing.model_dump() | {"new_items": {**dial, "max_share": 0.3, "fitted_on": "a test"}}
    edit_manifest(schema_version=1)(copy)
    change_manifest(copy, {"smoothing": smoothing})
    after = open_checkpoint(copy).manifest
    assert after.smoothing.new_items is not None and after.smoothing.new_items.bias == -0.5
    assert (after.model_version, after.files, after.schema_version) == (before.model_version, before.files, 4)


def test_a_dial_that_makes_no_sense_is_not_written(copy: Path) -> None:
    before = (copy / "manifest.json").read_bytes()
    with pytest.raises(ValueError, match="temperature"):
        change_manifest(copy, {"smoothing": {"temperature": 0.0, "boost": 1.0}})
    assert (copy / "manifest.json").read_bytes() == before


def test_another_user_may_read_what_was_sealed(original: Checkpoint) -> None:
    modes = {path.stat().st_mode & 0o777 for path in original.folder.rglob("*") if path.is_file()}
    assert modes == {0o644}


def test_a_file_that_may_not_be_read_is_named(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    def refuse(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == "quantizer.safetensors":
            raise PermissionError(13, "Permission denied")
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CheckpointError, match=r"quantizer\.safetensors: cannot be read: Permission denied"):
        open_checkpoint(copy)


def test_a_pickle_is_refused_even_when_the_manifest_lists_it(copy: Path) -> None:
    (copy / "weights.bin").write_bytes(b"x")
    reseal(copy)
    with pytest.raises(CheckpointError, match=r"weights\.bin: a checkpoint holds only JSON and safetensors"):
        open_checkpoint(copy)


def test_a_language_model_of_another_shape_is_refused(copy: Path) -> None:
    path = copy / "lm" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"vocab_size": 999}))
    reseal(copy)
    with pytest.raises(CheckpointError, match="vocab_size is 999"):
        open_checkpoint(copy)


def test_nan_in_the_embeddings_is_refused(copy: Path) -> None:
    edit_tensor("catalog.safetensors", "embeddings", float("nan"))(copy)
    with pytest.raises(CheckpointError, match=r"catalog\.safetensors: tensor 'embeddings' holds NaN"):
        open_checkpoint(copy).catalog_tensors()


def test_codes_outside_the_codebook_are_refused(copy: Path) -> None:
    edit_tensor("catalog.safetensors", "codes", 8)(copy)
    with pytest.raises(CheckpointError, match=r"catalog\.safetensors: a code lies outside 0\.\.7"):
        open_checkpoint(copy).catalog_tensors()


def test_the_wrong_codebook_is_refused(copy: Path) -> None:
    save_file({"codebooks": torch.zeros(3, 4, 8)}, copy / "quantizer.safetensors")
    reseal(copy)
    with pytest.raises(CheckpointError, match=r"quantizer\.safetensors: the codebooks do not have"):
        open_checkpoint(copy).quantizer()


def test_a_catalogue_that_does_not_fit_is_refused_by_line(copy: Path) -> None:
    path = copy / "catalog.jsonl"
    lines = path.read_text().splitlines()
    for text, message in (
        ("\n".join([*lines[:-1], "junk"]), r"catalog\.jsonl:60: not an item"),
        ("\n".join(lines[:-1]), r"59 items, the manifest says 60"),
        ("\n".join([*lines[:-1], lines[0]]), "an item id occurs twice"),
        ("\n".join([*lines[:-1], lines[-1].replace('"item-59"', "59")]), r"catalog\.jsonl:60: item_id"),
    ):
        path.write_text(text)
        reseal(copy)
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint(copy).items()


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({"prefix_ids": [10**9], "max_items": 12}, "prefix_ids lie outside the vocabulary"),
        ({"prefix_ids": [1], "max_items": 90_000}, r"of 3 tokens needs 270004 positions, config\.json allows 256"),
    ],
)
def test_a_prompt_the_model_cannot_read_is_refused(prompt: dict[str, object], message: str, copy: Path) -> None:
    edit_manifest(prompt=prompt)(copy)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(copy)


def test_the_manifest_alone_can_be_read(original: Checkpoint) -> None:
    assert read_manifest(original.folder).sid.levels == 3


@pytest.mark.parametrize("tied", [True, False])
def test_llamafactory_7997_and_transformers_45236_the_padded_vocabulary_survives(tied: bool, tmp_path: Path) -> None:
    checkpoint = build(tmp_path / "checkpoint", Shape(tied=tied))
    model = load_grounded_lm(checkpoint, torch.float32)
    assert checkpoint.manifest.lm.vocab_size % 64 == 0
    assert model.sid_rows.shape == (24, 64)
    assert (model.sid_head is None) == tied
    assert model.level_head(2).shape == (8, 64)


def test_a_damaged_file_is_told_before_torch_is_imported(copy: Path) -> None:
    flip_bit(copy)
    program = (
        "import sys; from service.cli import main\n"
        "try: main()\n"
        "except SystemExit as ended: print(ended.code, 'torch' in sys.modules, file=sys.stdout)"
    )
    command = [sys.executable, "-c", program, "serve", "--checkpoint", str(copy)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.stdout.split() == ["2", "False"]
    assert "model.safetensors: its sha256 is not the manifest's" in answer.stderr


def test_a_file_that_was_written_to_is_hashed_again(copy: Path) -> None:
    open_checkpoint(copy)
    flip_bit(copy)
    with pytest.raises(CheckpointError, match="its sha256 is not"):
        open_checkpoint(copy)

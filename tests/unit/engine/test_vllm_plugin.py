"""Only the vLLM whose private interfaces were checked is used, and an unknown backbone is refused by name."""

import dataclasses
import shutil
import sys
from pathlib import Path

import pytest

from service.engine import vllm_plugin
from service.engine.base import EngineOptions
from service.engine.vllm_engine import start_vllm_engine
from service.engine.vllm_plugin import grounded_architecture
from service.errors import CheckpointError, StartupError, VersionError
from tests.tiny_checkpoint import build

pytestmark = pytest.mark.filterwarnings("ignore")
OPTIONS = EngineOptions("float32", 8, 0.25, 1, 1.0)


def test_the_pinned_version_is_installed_and_accepted() -> None:
    assert vllm_plugin.installed_version() == vllm_plugin.SUPPORTED_VLLM
    vllm_plugin.check_version()


@pytest.mark.parametrize(("found", "message"), [("0.33.0", "vLLM 0.33.0 is installed"), (None, "not installed")])
async def test_another_vllm_is_refused_before_anything_starts(
    found: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_plugin, "installed_version", lambda: found)
    with pytest.raises(VersionError, match=message):
        await start_vllm_engine(build(tmp_path / "checkpoint"), OPTIONS)


def test_a_backbone_without_a_grounded_class_is_refused(tmp_path: Path) -> None:
    checkpoint = build(tmp_path / "checkpoint")
    manifest = checkpoint.manifest.model_copy(
        update={"lm": checkpoint.manifest.lm.model_copy(update={"architecture": "MambaForCausalLM"})}
    )
    with pytest.raises(
        CheckpointError, match="cannot serve architecture MambaForCausalLM here; known: GemmaForCausalLM"
    ):
        grounded_architecture(dataclasses.replace(checkpoint, manifest=manifest))


async def test_what_the_engine_process_refuses_is_the_error_of_this_process(tmp_path: Path) -> None:
    checkpoint = build(tmp_path / "checkpoint")
    (checkpoint.lm_folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors: listed in the manifest but missing"):
        await start_vllm_engine(checkpoint, OPTIONS)


async def test_an_engine_process_that_dies_at_its_start_is_a_startup_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(StartupError, match="ended before it was ready"):
        await start_vllm_engine(build(tmp_path / "checkpoint"), OPTIONS)

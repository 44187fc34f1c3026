"""Tables travel alone, meet only the SIDs they were made for, and attach to any backbone without moving it at first."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from typer.testing import CliRunner

from service.model.grounded_lm import GroundedLM
from service.model.prefix_memory import PrefixMemory, PrefixMemoryConfig
from service.model.semantic_ids import SidSpace
from tests.training.tiny_backbone import backbone
from tests.training.tiny_run import TinyWorld
from training.backbone import FAMILIES, add_sid_tokens
from training.cli import app
from training.errors import TrainingError
from training.pipeline import Pipeline
from training.prefix_memory.registry import build
from training.prefix_memory.tables import load_tables, save_tables
from training.tiger import Tiger, TigerOptions

SPACE = SidSpace(3, 8, 0)


def codes() -> NDArray[np.int64]:
    return np.unique(np.random.default_rng(0).integers(0, 8, (30, 3)), axis=0)


def filled(kind: str = "hashed", inject: tuple[int, ...] | None = None) -> PrefixMemory:
    torch.manual_seed(0)
    config = PrefixMemoryConfig.sized(SPACE, orders=3, heads=2, width=32, max_rows=512, inject_levels=inject)
    made = build(kind, config, codes())
    made.reset_tables(1.0, 0)
    made.count_touches(torch.from_numpy(codes()))
    return made


@pytest.mark.parametrize("kind", ["hashed", "exact", "full_prefix", "transformer"])
def test_a_file_gives_back_the_memory_without_its_w_out(kind: str, tmp_path: Path) -> None:
    made = filled(kind)
    made.attach(16, 1.0)
    save_tables(made, codes(), tmp_path / "memory.safetensors")
    found = load_tables(tmp_path / "memory.safetensors", codes())
    found.attach(24)
    seen = torch.from_numpy(codes())
    torch.testing.assert_close(found.item_memory(seen), made.item_memory(seen))
    assert found.item_embeddings(seen).shape == (len(seen), 3, 24)
    assert not found.item_embeddings(seen).any()
    found.attach(24, 0.01, seed=3)
    assert 0 < found.w_out.weight.std().item() < 0.02


def test_other_sids_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "memory.safetensors"
    save_tables(filled(), codes(), path)
    swapped = codes()[::-1].copy()
    with pytest.raises(TrainingError, match=r"memory\.safetensors: these tables belong to other SIDs"):
        load_tables(path, swapped)


def test_a_damaged_or_missing_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"no tensors")
    for name in ("bad", "missing"):
        with pytest.raises(TrainingError, match=f"{name}: no prefix memory"):
            load_tables(tmp_path / name, codes())
    assert not list(tmp_path.glob(".*"))


def attached(made: PrefixMemory, width: int, std: float) -> PrefixMemory:
    made.attach(width, std)
    return made


@pytest.mark.parametrize("family", FAMILIES)
def test_it_attaches_to_every_family(family: str, tmp_path: Path) -> None:
    save_tables(filled(inject=(1,)), codes(), tmp_path / "memory")
    base = backbone(family)
    space = add_sid_tokens(base, 3, 8)
    rows = torch.randn(space.num_tokens, base.width) * 0.1
    item_BNL = torch.from_numpy(codes()[:8]).view(2, 4, 3)

    def made(std: float | None) -> GroundedLM:
        memory = None if std is None else attached(load_tables(tmp_path / "memory", codes()), base.width, std)
        return GroundedLM(base.model, space, (1, 2), rows.clone(), None, memory)

    plain, silent, speaking = made(None), made(0.0), made(0.1)
    inputs = plain.embed_sequences(item_BNL)
    assert torch.equal(silent.embed_sequences(item_BNL), inputs)
    assert torch.equal(silent.hidden(silent.embed_sequences(item_BNL)), plain.hidden(inputs))
    moved_T = (speaking.embed_sequences(item_BNL) != inputs).any(-1).all(0)
    assert moved_T.tolist() == [False, False] + [False, True, False] * 4
    assert not torch.allclose(speaking.hidden(speaking.embed_sequences(item_BNL)), plain.hidden(inputs))
    loss = silent.hidden(silent.embed_sequences(item_BNL)).square().sum()
    loss.backward()  # type: ignore[no-untyped-call]
    assert silent.memory is not None
    gradient = silent.memory.w_out.weight.grad
    assert gradient is not None
    assert gradient.any()


def test_it_attaches_to_the_encoder_decoder(tmp_path: Path) -> None:
    save_tables(filled(inject=(1,)), codes(), tmp_path / "memory")
    item_BNL, next_BL = torch.from_numpy(codes()[:8]).view(2, 4, 3), torch.from_numpy(codes()[8:10])
    known_BN = torch.ones(2, 4, dtype=torch.bool)
    options = TigerOptions(width=16, layers=1, heads=2, dropout=0.0)

    def logits(std: float | None) -> tuple[Tensor, Tensor]:
        memory = None if std is None else attached(load_tables(tmp_path / "memory", codes()), 16, std)
        torch.manual_seed(1)
        tiger = Tiger(SPACE, options, memory)
        return torch.stack(tiger.level_logits(item_BNL, known_BN, next_BL)), tiger.embed_items(item_BNL)

    plain, silent, speaking = logits(None), logits(0.0), logits(0.1)
    assert torch.equal(plain[0], silent[0])
    assert not torch.allclose(plain[0], speaking[0])
    moved_BNL = (plain[1] != speaking[1]).any(-1)
    assert moved_BNL[..., 1].all()
    assert not moved_BNL[..., [0, 2]].any()


@pytest.mark.parametrize("pretrained", [False, True])
def test_a_runs_memory_is_exported_and_attached_by_another_recipe(
    finished: Pipeline, world: TinyWorld, tmp_path: Path, pretrained: bool
) -> None:
    out = tmp_path / "carried.safetensors"
    command = ["memory", "export", str(finished.run.path), "--out", str(out)]
    result = CliRunner().invoke(app, [*command, *(["--pretrained"] if pretrained else [])])
    assert result.exit_code == 0, result.output
    carried = load_tables(out, finished.codes_NL)
    trained = finished.trained[1].memory
    assert trained is not None
    same = all(torch.equal(a, b) for a, b in zip(carried.tables, trained.tables, strict=True))
    assert same != pretrained
    changes: dict[str, dict[str, Any]] = {"prefix_memory": {"tables": str(out)}, "finetune": {"epochs": 1}}
    heir = world.pipeline(tmp_path / "heir", **changes)
    assert heir.remembered.read_json("memory.json") == {"tables": str(out)}
    parts = heir._parts()
    assert parts.memory is not None
    assert all(torch.equal(a, b) for a, b in zip(carried.tables, parts.memory.tables, strict=True))
    others = world.pipeline(tmp_path / "others", sids={"codes": 16, "min_usage": 0.1}, **changes)
    with pytest.raises(TrainingError, match="other SIDs"):
        others.remembered  # noqa: B018

"""Synthetic checkpoints are servable, exact in their numbers, and refuse what cannot be drawn."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from loadtest.engine.grid import World
from loadtest.synthetic_checkpoint import build_synthetic, crowded_codes
from service.model.checkpoint import open_checkpoint
from service.model.grounded_lm import load_grounded_lm
from service.model.semantic_ids import SidSpace

WANTED = World("tiny", 500, "bfloat16", max_prompt=33).checkpoint


def test_a_synthetic_checkpoint_opens_verified_and_its_model_scores(tmp_path: Path) -> None:
    checkpoint = build_synthetic(tmp_path / "made", WANTED)
    opened = open_checkpoint(checkpoint.folder)  # verifies every digest
    assert opened.manifest.lm.dtype == "bfloat16"
    assert opened.manifest.data.num_items == len(opened.catalog_tensors().codes_NL) == 500
    assert opened.prompt.max_items == 11
    model = load_grounded_lm(opened, torch.bfloat16)
    hidden = model.hidden(model.embed_tokens(torch.tensor([[1, 5, 9, *opened.space.token_ids((1, 2, 3))]])))
    spread = model.level_logits(hidden[0, -1], 0).std()
    assert 0.1 < float(spread) < 10  # neither all alike nor one that takes all


def test_the_memory_can_be_left_out(tmp_path: Path) -> None:
    assert build_synthetic(tmp_path / "made", replace(WANTED, memory=None)).prefix_memory() is None


def test_equal_wishes_give_equal_bytes(tmp_path: Path) -> None:
    one, other = (build_synthetic(tmp_path / name, WANTED).manifest for name in ("one", "other"))
    assert one.model_version == other.model_version


def test_shapes_have_the_sizes_they_are_named_after(tmp_path: Path) -> None:
    checkpoint = build_synthetic(tmp_path / "made", WANTED)
    config = json.loads((checkpoint.lm_folder / "config.json").read_text())
    assert (config["hidden_size"], config["num_hidden_layers"], config["num_key_value_heads"]) == (64, 2, 1)
    assert config["rope_parameters"]["rope_theta"] == 100_000.0


def test_codes_are_distinct_within_bounds_and_crowded() -> None:
    space = SidSpace(3, 16, 10)
    codes_NL = crowded_codes(space, 1000, seed=1)
    assert codes_NL.shape == (1000, 3) == np.unique(codes_NL, axis=0).shape
    assert codes_NL.min() >= 0 and codes_NL.max() < 16
    low, high = (codes_NL[:, 0] < 4).mean(), (codes_NL[:, 0] >= 12).mean()
    assert low > 1.2 * high


def test_more_items_than_the_space_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="half of the"):
        crowded_codes(SidSpace(2, 4, 0), 9, seed=0)

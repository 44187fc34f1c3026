"""Embeddings come in item order, from a named encoder, and bad ones are refused by item."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from service.model.checkpoint import TEXT_ENCODER_FOLDER, copy_text_encoder
from service.model.grounded_lm import load_lm
from service.model.text_encoder import TextEncoder
from tests.tiny_checkpoint import Shape, build
from tests.training.tiny_backbone import WIDTH, backbone
from training import embed
from training.data.dataset import CatalogItem
from training.errors import TrainingError

ITEMS = [CatalogItem("b", "Boat", "", {"year": 1999.0}), CatalogItem("a", "A"), CatalogItem("c", "Cup", "for tea")]


class StubEncoder:
    """Embeds a text as its length; two of them are not a number."""

    def __init__(self, folder: Path, max_tokens: int) -> None:
        self.broken = folder.name == "broken"

    def encode(self, texts: list[str]) -> NDArray[np.float32]:
        made = np.array([[len(text), 1] for text in texts], np.float32)
        return np.asarray(np.where(self.broken & (made > 5), np.nan, made), np.float32)


def test_items_are_embedded_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "TextEncoder", StubEncoder)
    seen: list[int] = []
    made = embed.embed_items(ITEMS, Path("whole"), progress=lambda done, total, note="": seen.append(done))
    assert made[:, 0].tolist() == [len(text) for text in embed.texts(ITEMS)]
    assert seen[-1] == 3


def test_the_text_is_title_attributes_description() -> None:
    assert embed.texts(ITEMS) == ["Boat. year: 1999", "A", "Cup. for tea"]


def test_embeddings_that_are_no_numbers_are_refused_by_item(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "TextEncoder", StubEncoder)
    with pytest.raises(TrainingError, match="2 embeddings are not finite, first of items b, c"):
        embed.embed_items(ITEMS, Path("broken"))


def test_items_without_text_are_refused_by_name() -> None:
    with pytest.raises(TrainingError, match="1 items have no text, first x"):
        embed.texts([*ITEMS, CatalogItem("x", " \u200b ")])


def test_an_encoder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"not 'minilm', 'backbone:NAME' or a folder with a modules\.json"):
        embed.resolve_encoder(str(tmp_path), cache_dir=tmp_path)


@pytest.mark.parametrize("layer", [0, -1])
def test_pooling_does_not_see_the_padding(layer: int) -> None:
    made, words = backbone(), ["boat", "a much longer text than that"]
    poolings: tuple[embed.Pooling, ...] = ("mean", "last")
    for pooling in poolings:
        together = embed.embed_with_backbone(made, words, layer=layer, pooling=pooling)
        alone = embed.embed_with_backbone(made, words[:1], layer=layer, pooling=pooling)
        assert together.shape == (2, WIDTH)
        assert np.allclose(together[0], alone[0], atol=1e-5)


def test_layer_zero_is_the_embeddings() -> None:
    made = backbone()
    rows = made.input_rows[made.tokenize(["boat"])[0]]
    assert np.allclose(embed.embed_with_backbone(made, ["boat"], layer=0)[0], rows.mean(0).numpy(), atol=1e-6)
    assert torch.is_grad_enabled()


@pytest.mark.filterwarnings("ignore")
def test_the_frozen_backbone_can_be_the_encoder_and_travels_with_the_checkpoint(tmp_path: Path) -> None:
    folder = build(tmp_path / "checkpoint", Shape(memory=False)).lm_folder
    encoder = embed.resolve_encoder(f"backbone:{folder}", cache_dir=tmp_path)
    assert embed.resolve_encoder(f"backbone:{folder}", cache_dir=tmp_path) == encoder
    copy_text_encoder(encoder, tmp_path / "copy")
    found = TextEncoder(tmp_path / "copy" / TEXT_ENCODER_FOLDER).encode(["w3 w4 w5", "w9"])
    tokens = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        states = load_lm(folder, torch.float32).base_model(input_ids=tokens).last_hidden_state[0].mean(0)
    assert found.shape == (2, 64)
    assert torch.allclose(torch.from_numpy(found[0]), states / states.norm(), atol=1e-5)


def test_a_backbone_encoder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"no folder with a config\.json"):
        embed.resolve_encoder(f"backbone:{tmp_path}", cache_dir=tmp_path)

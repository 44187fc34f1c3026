"""The drill counts what users are shown: an encoder that listens to instructions is found out."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from service.model.new_items import NewItemDial
from tests.training.test_calibrate import NEW, world
from training.injection import INJECTIONS, InjectionDrill


class Encoder:
    """Embeds "title n" as the n-th new item, and moves towards everybody's history when told to by ``word``."""

    def __init__(self, own_ME: NDArray[np.float32], towards_E: NDArray[np.float32], word: str) -> None:
        self._own_ME, self._towards_E, self._word = own_ME, towards_E, word

    def encode(self, texts: Sequence[str], batch_size: int = 32) -> NDArray[np.float32]:
        rows = []
        for text in texts:
            own_E = self._own_ME[int(text.split("title ")[1].split()[0].rstrip("."))]
            moved_E = own_E + 2 * self._towards_E if self._word in text else own_E
            rows.append(moved_E / np.linalg.norm(moved_E))
        return np.array(rows, np.float32)


@pytest.mark.parametrize(("word", "fooled"), [("nothing is called so", set[str]()), ("Ignore all", {"instruction"})])
def test_only_an_encoder_that_obeys_shows_twins_more_often(word: str, fooled: set[str]) -> None:
    items, _, warm = world()
    new_ME = items.embedding_NE[items.new_M]
    towards_E = items.embedding_NE[[example.history[-1] for example in warm.examples]].mean(0)
    encoder = Encoder(new_ME, towards_E / np.linalg.norm(towards_E), word)
    drilled = InjectionDrill(items, warm, NewItemDial(2.0, 1.0, 0.0), 10).ratios(encoder)
    assert all(low <= ratio <= high for ratio, low, high in drilled.values())
    ratios = {name: ratio for name, (ratio, _, _) in drilled.items()}
    assert set(ratios) == set(INJECTIONS) and len(new_ME) == NEW
    assert {name for name, ratio in ratios.items() if ratio > 1.1} == fooled
    assert all(ratios[name] == pytest.approx(1.0, abs=0.01) for name in set(ratios) - fooled)

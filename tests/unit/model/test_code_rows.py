"""The rows of an opened code lie where the rows of the likest trained codes lie."""

import numpy as np
import pytest
import torch

from service.model.code_rows import CodeRows
from service.model.quantizer import OpenedCode

LEVELS, CODES, SPARE, WIDTH, EMBEDDING = 2, 4, 2, 6, 4
BOOKS = torch.eye(CODES, EMBEDDING).repeat(LEVELS, 1, 1)


def rows(temperature: float, trained: list[list[int]]) -> tuple[CodeRows, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    given, said = (torch.randn(LEVELS * (CODES + SPARE), WIDTH, generator=random) for _ in range(2))
    return CodeRows(BOOKS, np.array(trained), given, said, temperature), given, said


ALL = [[code, code] for code in range(CODES)]


@pytest.mark.parametrize("level", [0, 1])
def test_a_code_like_one_trained_code_gets_its_rows_on_both_sides(level: int) -> None:
    made, given, said = rows(0.01, ALL)
    input_D, output_D = made.opened(OpenedCode(level, CODES, (0.0, 0.0, 3.0, 0.0)))
    row = level * (CODES + SPARE) + 2
    assert input_D == pytest.approx(given[row].tolist(), abs=1e-5)
    assert output_D == pytest.approx(said[row].tolist(), abs=1e-5)


def test_a_code_between_two_gets_their_mean(level: int = 0) -> None:
    made, given, _ = rows(0.01, ALL)
    input_D, _ = made.opened(OpenedCode(level, CODES, (1.0, 1.0, 0.0, 0.0)))
    assert input_D == pytest.approx(given[:2].mean(0).tolist(), abs=1e-5)


def test_codes_that_no_item_was_trained_with_lend_nothing() -> None:
    made, given, _ = rows(0.01, [[0, 0], [1, 1]])
    input_D, _ = made.opened(OpenedCode(0, CODES, (0.0, 0.1, 9.0, 0.0)))
    assert input_D == pytest.approx(given[1].tolist(), abs=0.5)
    assert np.linalg.norm(np.array(input_D) - given[2].numpy()) > 1


def test_a_closed_code_gets_back_what_the_checkpoint_has() -> None:
    made, given, said = rows(0.01, ALL)
    assert made.trained(1, CODES) == (given[2 * CODES + SPARE].tolist(), said[2 * CODES + SPARE].tolist())

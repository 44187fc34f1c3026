"""The frozen quantiser is the nearest-residual rule, and survives the checkpoint."""

import torch

from service.model.quantizer import ResidualQuantizer


def quantizer(encoder: bool = False) -> ResidualQuantizer:
    generator = torch.Generator().manual_seed(0)
    layers = tuple(
        (torch.randn(n, m, generator=generator), torch.randn(n, generator=generator)) for n, m in ((7, 5), (4, 7))
    )
    return ResidualQuantizer(torch.randn(3, 6, 4, generator=generator), layers if encoder else ())


def test_codes_are_the_nearest_of_what_is_left() -> None:
    made, x = quantizer(), torch.randn(20, 4)
    codes, distances = made.encode_with_distances(x)
    for row in range(20):
        residual = x[row]
        for level in range(3):
            gaps = ((residual - made.codebooks_LKD[level]) ** 2).sum(1)
            assert int(codes[row, level]) == int(gaps.argmin())
            residual = residual - made.codebooks_LKD[level][codes[row, level]]
            assert torch.allclose(distances[row, level], (residual**2).sum(), atol=1e-4)


def test_preferences_start_with_the_items_own_code_and_cover_the_level() -> None:
    made, x = quantizer(), torch.randn(1, 4)
    codes = made.encode(x)[0].tolist()
    order = made.last_level_preferences(x[0], codes[:-1])
    assert order[0] == codes[-1]
    assert sorted(order) == list(range(6))


def test_the_encoder_is_applied_and_stored() -> None:
    made, x = quantizer(encoder=True), torch.randn(20, 5)
    again = ResidualQuantizer.from_tensors(made.tensors())
    assert made.embedding_width == again.embedding_width == 5
    assert torch.equal(made.encode(x), again.encode(x))
    (w0, b0), (w1, b1) = made.encoder
    assert torch.allclose(made.project(x), torch.relu(x @ w0.T + b0) @ w1.T + b1, atol=1e-5)

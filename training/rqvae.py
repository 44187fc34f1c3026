"""RQ-VAE codebooks: an MLP autoencoder with a residual vector quantiser (vector-quantize-pytorch) in its middle.

Only the encoder and the codebooks are kept, as a `ResidualQuantizer` that reproduces the codes; the decoder served to
train.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from vector_quantize_pytorch import ResidualVQ

from service.model.quantizer import ResidualQuantizer

# Too few steps leave the encoder's first levels on a handful of codes: a small catalogue needs many epochs.
MIN_STEPS = 1500
MIN_EPOCHS = 20
BATCH = 256
LEARNING_RATE = 1e-3
LATENT = 64


def fit_rqvae(embedding_NE: NDArray[np.float32], levels: int, codes: int, seed: int) -> ResidualQuantizer:
    """Train on embeddings [N, E]; deterministic for a seed on one thread."""
    torch.manual_seed(seed)
    data = torch.from_numpy(np.ascontiguousarray(embedding_NE, dtype=np.float32))
    width = data.shape[1]
    encoder, decoder = _mlp([width, 256, 128, LATENT]), _mlp([LATENT, 128, 256, width])
    quantizer = ResidualVQ(
        dim=LATENT,
        num_quantizers=levels,
        codebook_size=codes,
        kmeans_init=True,
        kmeans_iters=10,
        commitment_weight=0.25,
        decay=0.99,
        threshold_ema_dead_code=1,
    )
    optimizer = torch.optim.AdamW([*encoder.parameters(), *decoder.parameters()], lr=LEARNING_RATE)
    for _ in range(max(MIN_EPOCHS, MIN_STEPS // -(-len(data) // BATCH))):
        for rows in torch.split(torch.randperm(len(data)), BATCH):
            _step(data[rows], encoder, decoder, quantizer, optimizer)
    return _frozen(encoder, quantizer)


def _step(
    x: Tensor, encoder: nn.Module, decoder: nn.Module, quantizer: nn.Module, optimizer: torch.optim.AdamW
) -> None:
    quantized, _, commitment = quantizer(encoder(x)[None])
    loss = ((decoder(quantized[0]) - x) ** 2).sum(-1).mean() + commitment.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def _mlp(widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for narrow, wide in zip(widths[:-1], widths[1:], strict=True):
        layers += [nn.Linear(narrow, wide), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _frozen(encoder: nn.Sequential, quantizer: ResidualVQ) -> ResidualQuantizer:
    linear = [layer for layer in encoder if isinstance(layer, nn.Linear)]
    layers = tuple((layer.weight.detach().clone(), layer.bias.detach().clone()) for layer in linear)
    codebooks: Tensor = quantizer.codebooks.detach().clone().float()
    return ResidualQuantizer(codebooks, layers)

"""TIGER (arXiv 2305.05065): an encoder-decoder reads the SIDs of a history and writes the next item's, code by code.

T5 blocks of transformers under SID rows of its own; the prefix memory is added to the input embeddings of encoder and
decoder, as the language models have it (arXiv 2606.00324). It is a baseline of evaluation and the model that the memory
is pre-trained with. The user's id token of the paper is left out: our other arms do not know users either.

Shapes: B sequences, N items, L levels, K codes, S encoder tokens (N * L), R prefixes, n codes so far, D width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import T5Config, T5Model

from service.model.prefix_memory import PrefixMemory
from service.model.semantic_ids import SidSpace

ROW_STD = 0.5


@dataclass(frozen=True, slots=True)
class TigerOptions:
    """Sizes of the encoder-decoder."""

    width: int = 64
    layers: int = 2
    heads: int = 4
    dropout: float = 0.1


class Tiger(nn.Module):
    """``rows`` float [L * K, D] are input rows, ``head`` output rows, ``start`` [D] is what the decoder begins with."""

    def __init__(self, space: SidSpace, options: TigerOptions, memory: PrefixMemory | None = None) -> None:
        super().__init__()
        self.space, self.memory = space, memory
        width = options.width
        self.t5 = T5Model(_config(options))
        self.t5.shared.requires_grad_(False)  # a vocabulary that is never read: all inputs are embeddings
        self.rows = nn.Parameter(torch.randn(space.num_tokens, width) * ROW_STD)
        self.head = nn.Parameter(torch.randn(space.num_tokens, width) * width**-0.5)
        self.start = nn.Parameter(torch.randn(width) * ROW_STD)

    def embed_items(self, codes: Tensor) -> Tensor:
        """Code prefixes int [..., n] -> input embeddings with prefix memory, [..., n, D]."""
        embedded = F.embedding(self.space.rows(codes), self.rows)
        return embedded if self.memory is None else embedded + self.memory.item_embeddings(codes)

    def encode(self, codes_BNL: Tensor, known_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states [B, S, D] of histories and which of them are real, bool [B, S]."""
        mask_BS = known_BN.repeat_interleave(codes_BNL.shape[-1], 1)
        inputs = self.embed_items(codes_BNL).flatten(1, 2)
        return self.t5.encoder(inputs_embeds=inputs, attention_mask=mask_BS.long()).last_hidden_state, mask_BS

    def decode(self, codes_Rn: Tensor, hidden_RSD: Tensor, mask_RS: Tensor) -> Tensor:
        """Hidden states that predict the codes 0..n after the prefixes' histories, [R, n + 1, D]."""
        first = self.start.expand(len(codes_Rn), 1, -1)
        inputs = torch.cat([first, self.embed_items(codes_Rn)], 1) if codes_Rn.shape[1] else first
        decoded: Tensor = self.t5.decoder(
            inputs_embeds=inputs,
            encoder_hidden_states=hidden_RSD,
            encoder_attention_mask=mask_RS.long(),
            use_cache=False,
        ).last_hidden_state
        return decoded

    def level_head(self, level: int) -> Tensor:
        """The K output rows of one level, [K, D]."""
        return self.head[level * self.space.codes : (level + 1) * self.space.codes]

    def level_logits(self, codes_BNL: Tensor, known_BN: Tensor, next_BL: Tensor) -> list[Tensor]:
        """Per level the logits of the next item's code given its codes so far, [B, K]."""
        hidden_BLD = self.decode(next_BL[:, :-1], *self.encode(codes_BNL, known_BN))
        return [F.linear(hidden_BLD[:, level], self.level_head(level)) for level in range(self.space.levels)]


def tiger_loss(logits: list[Tensor], next_BL: Tensor) -> Tensor:
    """Cross-entropy of a next item in nats: summed over levels, averaged over the batch."""
    return torch.stack([F.cross_entropy(level_BK, next_BL[:, n]) for n, level_BK in enumerate(logits)]).sum()


def _config(options: TigerOptions) -> T5Config:
    return T5Config(
        vocab_size=2,
        d_model=options.width,
        d_kv=options.width // options.heads,
        d_ff=4 * options.width,
        num_layers=options.layers,
        num_decoder_layers=options.layers,
        num_heads=options.heads,
        dropout_rate=options.dropout,
        feed_forward_proj="relu",
    )

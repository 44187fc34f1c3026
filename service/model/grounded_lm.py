"""The recommender as a torch module: a causal LM, the SID rows it was extended with, and the prefix memory.

The same class is fine-tuned, evaluated and, as the reference, served. The SID rows are a matrix of their own, so that
training moves them (and only them, while grounding) without touching the text vocabulary; an untied head has a second
one. It works on any Hugging Face decoder whose base model takes ``inputs_embeds`` (Llama, Qwen2, Qwen3, Gemma).

Shapes: B sequences, N items, L levels, T tokens, P prompt prefix tokens, K codes, D model width.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, PreTrainedModel

from service.model.checkpoint import Checkpoint
from service.model.item_blocks import code_positions, token_order
from service.model.prefix_memory import PrefixMemory, current_item_prefix
from service.model.semantic_ids import SidSpace


class GroundedLM(nn.Module):
    """``sid_rows`` float [L * K, D] are input rows, and output rows too unless ``sid_head`` is given (untied head)."""

    def __init__(
        self,
        lm: PreTrainedModel,
        space: SidSpace,
        prefix_ids: tuple[int, ...],
        sid_rows: Tensor,
        sid_head: Tensor | None = None,
        memory: PrefixMemory | None = None,
    ) -> None:
        super().__init__()
        self.lm = lm
        self.space = space
        self.memory = memory
        self.sid_rows = nn.Parameter(sid_rows)
        self.sid_head = None if sid_head is None else nn.Parameter(sid_head)
        self.register_buffer("prefix_ids", torch.tensor(prefix_ids), persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the SID rows, which is the dtype of the inputs."""
        return self.sid_rows.dtype

    def level_head(self, level: int) -> Tensor:
        """The K output rows of one level, [K, D]."""
        rows = self.sid_rows if self.sid_head is None else self.sid_head
        return rows[level * self.space.codes : (level + 1) * self.space.codes]

    def embed_items(self, codes: Tensor) -> Tensor:
        """Code prefixes int [..., n] -> their tokens' input embeddings with prefix memory, [..., n, D]."""
        embedded = F.embedding(self.space.rows(codes), self.sid_rows) * self._embedding_scale()
        return embedded if self.memory is None else embedded + self.memory.item_embeddings(codes).to(embedded.dtype)

    def embed_prefix(self) -> Tensor:
        """The fixed prompt prefix, [P, D]."""
        embedded: Tensor = self.lm.get_input_embeddings()(self.get_buffer("prefix_ids"))
        return embedded.to(self.dtype)

    def embed_sequences(self, codes_BNL: Tensor, title_BNT: Tensor | None = None) -> Tensor:
        """Prefix and items side by side, [B, P + N * L, D]; positions of padding items hold code 0 and mean nothing.

        With ``title_BNT``, token ids of titles and -1 behind their ends, each item is followed by its title, and the
        length is that of the longest sequence.
        """
        prefix = self.embed_prefix().expand(codes_BNL.shape[0], -1, -1)
        items = self.embed_items(codes_BNL)
        if title_BNT is None:
            return torch.cat([prefix, items.flatten(1, 2)], 1)
        titles = self.lm.get_input_embeddings()(title_BNT.clamp(min=0)).to(self.dtype)
        blocks_BMD = torch.cat([items, titles], 2).flatten(1, 2)
        order_BM = token_order(self.space.levels, title_BNT)
        return torch.cat([prefix, blocks_BMD.gather(1, order_BM[..., None].expand(-1, -1, blocks_BMD.shape[2]))], 1)

    def predicting_positions(self, codes_BNL: Tensor, title_BNT: Tensor | None = None) -> Tensor:
        """Where in `embed_sequences` each code is predicted: the token before it, int64 [B, N, L]."""
        nothing = codes_BNL.new_empty((*codes_BNL.shape[:2], 0)) if title_BNT is None else title_BNT
        return self.get_buffer("prefix_ids").numel() - 1 + code_positions(self.space.levels, nothing)

    def embed_tokens(self, token_BT: Tensor) -> Tensor:
        """Any token ids [B, T] -> input embeddings, each SID token's memory found by looking back, [B, T, D]."""
        text = self.lm.get_input_embeddings()(token_BT.clamp(max=self.space.first_token_id - 1)).to(self.dtype)
        row = (token_BT - self.space.first_token_id).clamp(0, self.space.num_tokens - 1)
        is_sid = (token_BT >= self.space.first_token_id) & (token_BT < self.space.end_token_id)
        sid = F.embedding(row, self.sid_rows) * self._embedding_scale()
        return torch.where(is_sid[..., None], sid, text) + self._looked_back_memory(token_BT)

    def hidden(self, inputs_BTD: Tensor) -> Tensor:
        """Final hidden states of whole, right-padded sequences under the causal mask, [B, T, D]."""
        hidden: Tensor = self.lm.base_model(inputs_embeds=inputs_BTD, use_cache=False).last_hidden_state
        return hidden

    def level_logits(self, hidden: Tensor, level: int, codes: Tensor | None = None) -> Tensor:
        """Logits over one level's codes, float32 [..., K].

        ``codes`` int [..., level] are the codes before it; a memory with an output bias needs them.
        """
        logits = F.linear(hidden, self.level_head(level)).float()
        bias = None if codes is None else self.code_bias(codes)
        return logits if bias is None else logits + bias

    def code_bias(self, codes: Tensor) -> Tensor | None:
        """What the memory of code prefixes [..., n] adds to the next code's logits, float32 [..., K], if anything."""
        bias = None if self.memory is None else self.memory.next_code_bias(codes)
        return None if bias is None else bias.float()

    @torch.no_grad()
    def write_row(self, level: int, code: int, input_D: Tensor, output_D: Tensor) -> None:
        """Replace one token's input and output row; a tied head is untied by the first pair that differs.

        Raises:
            ValueError: there is no such token, or a row is not D finite floats.
        """
        if not (0 <= level < self.space.levels and 0 <= code < self.space.codes):
            raise ValueError(f"no token of level {level} and code {code}")
        for row_D in (input_D, output_D):
            if row_D.shape != self.sid_rows.shape[1:] or not torch.isfinite(row_D).all():
                raise ValueError(f"an embedding row must be {self.sid_rows.shape[1]} finite floats")
        if self.sid_head is None and not torch.equal(input_D, output_D):
            self.sid_head = nn.Parameter(self.sid_rows.clone(), requires_grad=self.sid_rows.requires_grad)
        row = self.space.level_start(level) - self.space.first_token_id + code
        self.sid_rows[row] = input_D.to(self.dtype)
        if self.sid_head is not None:
            self.sid_head[row] = output_D.to(self.dtype)

    def _looked_back_memory(self, token_BT: Tensor) -> Tensor | float:
        if self.memory is None:
            return 0.0
        length = max(self.space.levels - 1, 1)
        previous = [F.pad(token_BT, (n, 0), value=-1)[:, : token_BT.shape[1]] for n in range(1, length + 1)]
        prefix = current_item_prefix(self.space, token_BT.flatten(), torch.stack(previous, -1).flatten(0, 1))
        return self.memory.token_embeddings(*prefix).view(*token_BT.shape, -1).to(self.dtype)

    def _embedding_scale(self) -> float:
        # Gemma multiplies its embeddings by sqrt(D) inside the embedding module; the SID rows bypass that module
        scale = getattr(self.lm.get_input_embeddings(), "scalar_embed_scale", 1.0)
        return float(scale)


def load_grounded_lm(checkpoint: Checkpoint, dtype: torch.dtype) -> GroundedLM:
    """The reference model of a checkpoint, in eval mode, without gradients."""
    lm = load_lm(checkpoint.lm_folder, dtype)
    space = checkpoint.space
    rows = slice(space.first_token_id, space.end_token_id)
    embedding: Tensor = lm.get_input_embeddings().get_parameter("weight").data
    sid_rows = embedding[rows].clone()
    head: Tensor = lm.get_parameter("lm_head.weight").data
    sid_head = None if head.data_ptr() == embedding.data_ptr() else head[rows].clone()
    memory = checkpoint.prefix_memory()
    model = GroundedLM(
        lm, space, checkpoint.prompt.prefix_ids, sid_rows, sid_head, None if memory is None else memory.to(dtype)
    )
    return model.requires_grad_(False).eval()


def load_lm(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """A local Hugging Face causal LM with eager attention (SDPA's CPU backward is slow), no hub, no remote code."""
    # a folder that the manifest answers for, never a name on the hub
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(  # nosec B615
        folder, dtype=dtype, attn_implementation="eager", local_files_only=True, trust_remote_code=False
    )
    return model

"""Attention of ragged beams over shared prompts, in plain torch: it runs wherever the tensors lie, and knows no vLLM.

All beams of a user read the same prompt; a beam owns only a few rows of its own. So one batched product covers all
beams of a group of similar users against their prompts, a tiny one each beam's own rows, and one softmax joins them.
Users differ in prompt length and in live beams: neighbours are padded into a group for as long as the padding costs
less than the calls that another group would need.

Shapes: U users of a group, W beams of its fullest user, R rows (live beams, those of a user side by side), H key-value
heads, G queries per key-value head, X = U * H, P prompt tokens, n own rows, D head width, N layers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# what one more group costs in calls, in (beam, prompt token) pairs of one layer; measured, see README.md
GROUP_COST = 5000

PromptReader = Callable[[str, Sequence[int], int], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Grid:
    """Where the rows of a group lie at one level: its users side by side, padded to the fullest one.

    ``row_UW`` names the row of each cell (a hole repeats some row) and ``cell_R`` the cell of each row; both are None
    when there are no holes.
    """

    rows: slice
    width: int
    row_UW: Tensor | None = None
    cell_R: Tensor | None = None

    def spread(self, rows_R: Tensor) -> Tensor:
        """Rows [R, ...] of this group to cells [U, W, ...]."""
        if self.row_UW is None:
            return rows_R.view(-1, self.width, *rows_R.shape[1:])
        return rows_R[self.row_UW]

    def collect(self, cells_UW: Tensor) -> Tensor:
        """The inverse of `spread`."""
        rows = cells_UW.flatten(0, 1)
        return rows if self.cell_R is None else rows[self.cell_R]


@dataclass(frozen=True, slots=True)
class PromptGroup:
    """Neighbouring users with their prompts' keys and values, padded to one length.

    ``layers`` maps a layer to keys [X, D, P] and values [X, P, D]; ``bias_UP`` is 0 or -inf behind a prompt's end, None
    when all are equally long.
    """

    users: range
    layers: dict[str, tuple[Tensor, Tensor]]
    bias_UP: Tensor | None

    def attend(self, layer: str, grid: Grid, query_RHGD: Tensor, own: tuple[Tensor, Tensor]) -> Tensor:
        """Softmax attention of this group's scaled queries over prompt and own rows [R, H, n, D], [R, H, G, D]."""
        key_XDP, value_XPD = self.layers[layer]
        own_key_RHnD, own_value_RHnD = own
        heads, width = query_RHGD.shape[1], query_RHGD.shape[3]
        query = grid.spread(query_RHGD).transpose(1, 2)
        users, _, beams, group, _ = query.shape
        score = torch.bmm(query.reshape(users * heads, beams * group, width), key_XDP)
        score = score.view(users, heads, beams, group, -1)
        if self.bias_UP is not None:
            score = score + self.bias_UP[:, None, None, None]
        own_score = grid.spread(query_RHGD @ own_key_RHnD.transpose(2, 3)).transpose(1, 2)
        weight = torch.softmax(torch.cat([score, own_score], -1), -1)
        length = score.shape[-1]
        read = torch.bmm(weight.view(users * heads, beams * group, -1)[..., :length], value_XPD)
        read = read.view(users, heads, beams, group, width).transpose(1, 2)
        return grid.collect(read) + grid.collect(weight[..., length:].transpose(1, 2)) @ own_value_RHnD


class BeamKV:
    """Keys and values of one beam search: the prompts' by group, the beams' own per level as [N, 2, R, H, D].

    Args:
        layers: names of the attention layers.
        widths: beam width per user.
        lengths: prompt tokens per user.
        read: ``read(layer, users, length)``, those users' keys [X, D, P] and values [X, P, D]; anything behind an end.
    """

    def __init__(
        self, layers: Sequence[str], widths: Sequence[int], lengths: Sequence[int], read: PromptReader
    ) -> None:
        self._number = {layer: number for number, layer in enumerate(layers)}
        self._groups = [_read_group(layers, users, lengths, read) for users in similar_neighbours(widths, lengths)]
        self._grids: list[Grid] = []
        self._own: list[Tensor] = []

    def advance(self, user_R: Tensor, parent_R: Tensor) -> None:
        """Begin a level: row r belongs to ``user_R[r]`` (int64, ascending) and continues old row ``parent_R[r]``."""
        self._own = [own.index_select(2, parent_R) for own in self._own]
        self._grids = _grids([group.users for group in self._groups], user_R, parent_R.device)
        key, _ = next(iter(self._groups[0].layers.values()))
        heads = key.shape[0] // len(self._groups[0].users)
        self._own.append(key.new_empty(len(self._number), 2, user_R.numel(), heads, key.shape[1]))

    def attend(self, layer: str, query_RHGD: Tensor, key_RHD: Tensor, value_RHD: Tensor) -> Tensor:
        """Keep this level's keys and values of a layer; attention of scaled queries over all there is, [R, H, G, D]."""
        number = self._number[layer]
        self._own[-1][number, 0], self._own[-1][number, 1] = key_RHD, value_RHD
        key = torch.stack([own[number, 0] for own in self._own], 2)
        value = torch.stack([own[number, 1] for own in self._own], 2)
        read = [
            group.attend(layer, grid, query_RHGD[grid.rows], (key[grid.rows], value[grid.rows]))
            for group, grid in zip(self._groups, self._grids, strict=True)
            if grid.width
        ]
        return read[0] if len(read) == 1 else torch.cat(read)


def similar_neighbours(widths: Sequence[int], lengths: Sequence[int]) -> list[range]:
    """Cut users, in their order, into groups for which padding and calls together cost least.

    A group costs `GROUP_COST` plus users x widest x longest (beam, prompt token) pairs.
    """
    best, start = [0.0], [0]
    for end in range(1, len(widths) + 1):
        widest, longest, least = 0, 0, (float("inf"), 0)
        for first in range(end - 1, -1, -1):
            widest, longest = max(widest, widths[first]), max(longest, lengths[first])
            least = min(least, (best[first] + GROUP_COST + (end - first) * widest * longest, first))
        best.append(least[0])
        start.append(least[1])
    groups, end = [], len(widths)
    while end:
        groups.append(range(start[end], end))
        end = start[end]
    return groups[::-1]


def _read_group(layers: Sequence[str], users: range, lengths: Sequence[int], read: PromptReader) -> PromptGroup:
    length_U = torch.tensor([lengths[user] for user in users])
    longest = int(length_U.max())
    tensors = {layer: read(layer, users, longest) for layer in layers}
    if int(length_U.min()) == longest:
        return PromptGroup(users, tensors, None)
    key, _ = tensors[layers[0]]
    hole_UP = (torch.arange(longest) >= length_U[:, None]).to(key.device)
    hole_XP = hole_UP.repeat_interleave(key.shape[0] // len(users), 0)
    for key, value in tensors.values():
        # memory behind a prompt's end may hold anything, NaN too, and 0 * NaN would spread through the product
        key.masked_fill_(hole_XP[:, None], 0)
        value.masked_fill_(hole_XP[..., None], 0)
    return PromptGroup(users, tensors, torch.zeros_like(hole_UP, dtype=key.dtype).masked_fill(hole_UP, float("-inf")))


def _grids(groups: Sequence[range], user_R: Tensor, device: torch.device) -> list[Grid]:
    counts = torch.bincount(user_R, minlength=groups[-1].stop).tolist()
    grids, first = [], 0
    for users in groups:
        own = counts[users.start : users.stop]
        rows = slice(first, first + sum(own))
        first = rows.stop
        grids.append(_grid(rows, own, device))
    return grids


def _grid(rows: slice, counts: Sequence[int], device: torch.device) -> Grid:
    width = max(counts)
    if min(counts) == width:
        return Grid(rows, width)
    count_U = torch.tensor(counts)
    first_U = torch.cumsum(count_U, 0) - count_U
    place_W = torch.arange(width)
    real_UW = place_W < count_U[:, None]
    row_UW = torch.where(real_UW, first_U[:, None] + place_W, 0)
    return Grid(rows, width, row_UW.to(device), torch.nonzero(real_UW.flatten())[:, 0].to(device))

"""The processes of one training run: who is first, what each takes of a batch, and how they speak.

`accelerate` reads what `torchrun` or `accelerate launch` left for it and sets the processes up; gradients are DDP's or
FSDP's business (`trainee.py`). A few words and numbers go over a group of their own on gloo, so that they need no GPU.
The first process makes all stages; the others wait for its word. It knows nothing of models or stages.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from training.errors import PeerError, TrainingError

T = TypeVar("T")
# the others wait while the first one embeds and grounds; a process that dies is noticed at once, by its socket
PATIENCE = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Share:
    """The ``rank``-th of ``count`` parts."""

    rank: int = 0
    count: int = 1

    def of(self, items: Sequence[T]) -> list[T]:
        """Every ``count``-th item, so that batches sorted by length are shared evenly; may be empty."""
        return list(items[self.rank :: self.count])

    def scale(self, part: int, whole: int) -> float:
        """The factor on a mean over ``part`` terms that makes the processes' average the mean over ``whole``."""
        return self.count * part / whole


@dataclass(frozen=True, slots=True)
class Sharding:
    """What an accelerate configuration for FSDP asks for: see `trainee.py`."""

    reshard_after_forward: bool
    offload: bool


@dataclass(frozen=True, slots=True)
class Processes:
    """This process among ``share.count``; one process, on the CPU, unless a launcher said otherwise."""

    share: Share = Share()
    device: torch.device = torch.device("cpu")
    sharding: Sharding | None = None
    group: Any = None

    @property
    def is_first(self) -> bool:
        """Whether this one makes stages, writes files and talks to people."""
        return self.share.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """The values added up over all processes, float64; every process must call."""
        if self.share.count == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        with peers_named():
            dist.all_reduce(total, group=self.group)
        return [float(value) for value in total]

    def from_first(self, value: T) -> T:
        """The first process's plain ``value``, in every process; the others wait for it."""
        if self.share.count == 1:
            return value
        box = [value]
        with peers_named():
            dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]


ALONE = Processes()


@contextmanager
def joined() -> Iterator[Processes]:
    """This process's place in the run, for as long as the block runs.

    Raises:
        TrainingError: the launcher asks for a kind of sharding that does not work here.
    """
    from accelerate import PartialState

    state = PartialState(cpu=not torch.cuda.is_available(), timeout=PATIENCE)
    count = int(state.num_processes)
    if count == 1:
        _refuse_sharding_alone()
        yield ALONE
        return
    group = dist.new_group(backend="gloo", timeout=PATIENCE)
    yield Processes(Share(int(state.process_index), count), torch.device(state.device), _sharding(), group)
    # after an error the others may be gone already: then the process just ends
    state.destroy_process_group()


@contextmanager
def peers_named() -> Iterator[None]:
    """Turn what a collective says when another process died into a `PeerError`."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error).lower():
            raise PeerError("another process of this run ended; its line, or the launcher's, says why") from error
        raise


@contextmanager
def named(processes: Processes) -> Iterator[None]:
    """Name the process in its errors, so that the line says whose they are."""
    try:
        yield
    except PeerError:
        raise
    except TrainingError as error:
        raise TrainingError(f"process {processes.share.rank} of {processes.share.count}: {error}") from error


def _sharding() -> Sharding | None:
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.environment import parse_flag_from_env
    from torch.distributed.fsdp import CPUOffloadPolicy

    if not parse_flag_from_env("ACCELERATE_USE_FSDP"):
        return None
    plugin = FullyShardedDataParallelPlugin()
    if plugin.fsdp_version != 2:
        raise TrainingError(
            f"fsdp_version {plugin.fsdp_version}: only 2 works; start from training/accelerate/fsdp.yaml"
        )
    offload = isinstance(plugin.cpu_offload, CPUOffloadPolicy)
    if offload and not torch.cuda.is_available():
        raise TrainingError("fsdp_offload_params: there is no GPU to offload from; set it to false")
    return Sharding(bool(plugin.reshard_after_forward), offload)


def _refuse_sharding_alone() -> None:
    from accelerate.utils.environment import parse_flag_from_env

    if parse_flag_from_env("ACCELERATE_USE_FSDP"):
        raise TrainingError("FSDP needs at least 2 processes; set num_processes, or launch without the configuration")

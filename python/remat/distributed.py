"""Data-parallel training: this process among others, started by `remat launch`, torchrun, srun or mpirun.

    remat.distributed.init()
    session = remat.Session(graph, loss, optimizer="adamw")    # starts with rank 0's parameters
    session.step(x=my_rows, y=my_rows, lr=1e-3)                # gradients are averaged over ranks

Sessions that train and are made after init() belong to the job, and every rank makes the same calls. Without a launcher
init() makes a job of one rank. torch.distributed may be initialised beside it, or not.
"""

from __future__ import annotations

import ctypes as c
import os
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _abi
from ._library import check, invalid, lib


class Job:
    """The job that init() joined. It is left when neither init's caller nor a session needs it."""

    def __init__(self, pointer: c.c_void_p) -> None:
        self._pointer = pointer
        weakref.finalize(self, _leave, pointer, os.getpid())

    @property
    def ranks(self) -> Any:
        return lib.remat_job_ranks(self._pointer)


def _leave(pointer: c.c_void_p, process: int) -> None:
    if os.getpid() == process:
        lib.remat_leave(pointer)


_job: Job | None = None


def init(
    backend: str | None = None,
    init_method: str | None = None,
    world_size: int = 0,
    rank: int = 0,
    *,
    timeout_ms: int = 0,
    rows: int = 0,
    grad_compress: str | None = None,
    deterministic_world: bool = False,
    shard_optimizer: bool = False,
    fused_update: bool = False,
    first_bucket_bytes: int = 0,
    bucket_bytes: int = 0,
) -> None:
    """Joins the other ranks (remat_join) and returns when all are there. Rank and size come from the launcher.

    backend: "local" (one host), "mpi", "gloo"; None: chosen. init_method: where ranks meet; None: "env://".
    rows: of this rank's batch, its weight in the mean; 0: all ranks have as many. timeout_ms: 0: ten minutes.
    """
    global _job
    if _job is not None:
        raise invalid("this process has joined a job already; call remat.distributed.leave first")
    config = _abi.remat_job_config(
        struct_bytes=c.sizeof(_abi.remat_job_config),
        backend=backend.encode() if backend else None,
        init_method=init_method.encode() if init_method else None,
        world_size=world_size,
        rank=rank,
        timeout_ms=timeout_ms,
        rows=rows,
        grad_compress=grad_compress.encode() if grad_compress else None,
        deterministic_world=deterministic_world,
        shard_optimizer=shard_optimizer,
        fused_update=fused_update,
        first_bucket_bytes=first_bucket_bytes,
        bucket_bytes=bucket_bytes,
    )
    pointer = c.c_void_p()
    check(lib.remat_join(c.byref(config), c.byref(pointer)))
    _job = Job(pointer)


def leave() -> None:
    """Leaves the job as soon as its sessions are gone. Sessions that are made from now on train alone."""
    global _job
    _job = None


def is_initialized() -> bool:
    return _job is not None


def _joined() -> Job:
    if _job is None:
        raise invalid("this process has joined no job; call remat.distributed.init first")
    return _job


def rank() -> int:
    return int(lib.remat_job_rank(_joined()._pointer))


def world_size() -> int:
    return int(lib.remat_job_size(_joined()._pointer))


def all_reduce(values: ArrayLike) -> NDArray[np.float64]:
    """Sums numbers over ranks; the same bits on all. Collective."""
    summed = np.array(values, dtype=np.float64)
    pointer = summed.ctypes.data_as(c.POINTER(c.c_double))
    check(lib.remat_job_sum(_joined()._pointer, pointer, summed.size))
    return summed


def share_buffers(session: Any) -> None:
    """Copies rank 0's buffers, such as running statistics, to every rank. Collective."""
    check(lib.remat_job_share_buffers(_joined()._pointer, session._pointer))


class Sampler:
    """Which samples this rank sees, in which order: PyTorch's DistributedSampler, index for index."""

    def __init__(self, n: int, *, shuffle: bool = True, drop_last: bool = False, seed: int = 0) -> None:
        config = _abi.remat_sampler_config(
            struct_bytes=c.sizeof(_abi.remat_sampler_config),
            n=n,
            replicas=world_size() if is_initialized() else 1,
            rank=rank() if is_initialized() else 0,
            shuffle=shuffle,
            drop_last=drop_last,
            seed=seed,
        )
        self._pointer = c.c_void_p()
        check(lib.remat_sampler_create(c.byref(config), c.byref(self._pointer)))
        weakref.finalize(self, lib.remat_sampler_free, self._pointer)

    def set_epoch(self, epoch: int) -> None:
        """Draws the order anew."""
        lib.remat_sampler_set_epoch(self._pointer, epoch)

    def __len__(self) -> int:
        return int(lib.remat_sampler_count(self._pointer))

    def __iter__(self) -> Iterator[int]:
        for k in range(len(self)):
            yield int(lib.remat_sampler_at(self._pointer, k))

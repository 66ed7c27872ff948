"""The one exception of this package."""

from __future__ import annotations

from ._abi import Status as Status


class Error(Exception):
    """A call of the library failed.

    status: why, as in remat.h: INVALID, MEMORY, INFEASIBLE, MISSING, DEVICE, PEER, IO or INTERNAL.
    sentence: what is wrong, with numbers, and what to do.
    smallest_budget: after INFEASIBLE the smallest memory_budget that would work, in bytes; else None.
    """

    def __init__(self, status: Status, sentence: str, smallest_budget: int | None = None) -> None:
        super().__init__(status, sentence, smallest_budget)
        self.status, self.sentence, self.smallest_budget = status, sentence, smallest_budget

    def __str__(self) -> str:
        return self.sentence

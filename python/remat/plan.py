"""The plan of a session's step, to read."""

from __future__ import annotations

import ctypes as c
import json
from typing import Any

from . import _abi
from ._library import check, fields, lib, text


class Plan:
    """What a session's step will keep, recompute and take. Prints as `remat plan` does.

    Attributes are the members of remat_plan_summary: bytes are exact (budgeted_bytes is what memory_budget limits),
    times are predictions in nanoseconds.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        summary = _abi.remat_plan_summary()
        check(lib.remat_session_plan(session._pointer, c.byref(summary)))
        self._summary = fields(summary)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._summary:
            raise AttributeError(f"a plan has no {name}; it has {', '.join(self.__dict__.get('_summary', ()))}")
        return self._summary[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._summary]

    def __str__(self) -> str:
        return text(lib.remat_plan_describe(self._session._pointer))

    def __repr__(self) -> str:
        return f"<remat.Plan {self.strategy}: {self.budgeted_bytes} bytes, {self.recompute_factor:.3g} x forward>"

    @property
    def stages(self) -> list[dict[str, Any]]:
        """What is kept of each stage."""
        return list(json.loads(text(lib.remat_plan_stages_json(self._session._pointer))))

    @property
    def peak(self) -> dict[str, Any]:
        """What is alive at the peak."""
        return dict(json.loads(text(lib.remat_plan_peak_json(self._session._pointer))))

    @property
    def steps(self) -> str:
        """The plan's program, one RUN, FREE, SAVE or LOAD a line: a config's plan_steps."""
        return text(lib.remat_plan_steps_text(self._session._pointer))

"""The plan of a session's step, to read and to look at."""

from __future__ import annotations

import ctypes as c
import html
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _abi
from ._library import check, fields, lib, text

_LIVE = [kind.name.lower() for kind in _abi.Live if kind != _abi.Live.KINDS]


class Plan:
    """What a session's step will keep, recompute and take. Prints as `remat plan` does; a notebook shows a picture.

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
    def convolutions(self) -> list[dict[str, Any]]:
        """How the GPU computes each convolution; empty on other devices."""
        return list(json.loads(text(lib.remat_plan_convolutions_json(self._session._pointer))))

    @property
    def steps(self) -> str:
        """The plan's program, one RUN, FREE, SAVE or LOAD a line: a config's plan_steps."""
        return text(lib.remat_plan_steps_text(self._session._pointer))

    @property
    def timeline(self) -> dict[str, NDArray[Any]]:
        """Bytes alive at each line of the program: begin_ns (predicted), and bytes of states, saved, gradients, scratch."""
        points = self._points(lib.remat_plan_timeline, _abi.remat_live_point)
        live = np.array([p.bytes[: len(_LIVE)] for p in points], dtype=np.uint64).reshape(-1, len(_LIVE))
        begin = np.array([p.begin_ns for p in points], dtype=np.uint64)
        return {"begin_ns": begin, **{name: live[:, i] for i, name in enumerate(_LIVE)}}

    def pareto(self) -> list[dict[str, Any]]:
        """What each strategy would take: bytes, predicted time, and whether no other beats it in both (frontier)."""
        return [fields(p) for p in self._points(lib.remat_plan_pareto, _abi.remat_pareto_point)]

    def _points(self, function: Any, kind: type[c.Structure]) -> list[Any]:
        points, count = c.POINTER(kind)(), c.c_int64()
        check(function(self._session._pointer, c.byref(points), c.byref(count)))
        try:
            return [kind.from_buffer_copy(points[i]) for i in range(count.value)]
        finally:
            lib.remat_text_free(points)

    def svg(self, width: int = 720, height: int = 260) -> str:
        """Bytes alive during a step, by kind, over those that stay; the dashed line is the budget of activations."""
        return _draw(self, width, height)

    def _repr_html_(self) -> str:
        return f"{self.svg()}<pre>{html.escape(str(self))}</pre>"


# ---- The picture ----------------------------------------------------------------------------------------------------

_COLOURS = {"resident": "#c7ccd1", "states": "#4c78a8", "saved": "#72b7b2", "gradients": "#e45756", "scratch": "#f2b950"}
_LEFT, _TOP, _BOTTOM = 70, 26, 28


def _size(count: float) -> str:
    unit = 0
    while count >= 1024 and unit < 4:
        count, unit = count / 1024, unit + 1
    return f"{count:.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"


def _columns(plan: Plan, count: int) -> NDArray[np.float64]:
    """For each of `count` moments, the bytes by kind at the highest point until the next."""
    line = plan.timeline
    live = np.stack([line[name] for name in _LIVE], axis=1).astype(np.float64)
    end = max(float(plan.step_ns), float(line["begin_ns"][-1]) + 1.0)
    at = np.minimum(line["begin_ns"].astype(np.float64) / end * count, count - 1).astype(int)
    shown, last = np.zeros((count, live.shape[1])), live[0]
    order = np.lexsort((live.sum(axis=1), at))  # the last of a column is its highest
    highest = dict(zip(at[order].tolist(), order.tolist(), strict=True))
    for x in range(count):
        shown[x] = live[highest[x]] if x in highest else last
        last = live[np.flatnonzero(at == x)[-1]] if x in highest else last
    return shown


def _draw(plan: Plan, width: int, height: int) -> str:
    columns = _columns(plan, width - _LEFT - 10)
    resident = float(plan.planned_peak_bytes - plan.activations_peak_bytes)
    top = 1.08 * max(float(plan.planned_peak_bytes), 1.0)

    def y(count: Any) -> Any:
        return height - _BOTTOM - np.asarray(count) / top * (height - _TOP - _BOTTOM)

    parts, below = [], np.zeros(len(columns))
    layers = [("resident", np.full(len(columns), resident)), *zip(_LIVE, columns.T, strict=True)]
    for i, (name, count) in enumerate(layers):
        above = below + count
        edge = [f"{_LEFT + x},{v:.1f}" for x, v in enumerate(y(above))]
        edge += [f"{_LEFT + x},{v:.1f}" for x, v in reversed(list(enumerate(y(below))))]
        parts.append(f'<polygon points="{" ".join(edge)}" fill="{_COLOURS[name]}"/>')
        parts.append(f'<rect x="{_LEFT + 110 * i}" y="6" width="10" height="10" fill="{_COLOURS[name]}"/>')
        parts.append(f'<text x="{_LEFT + 110 * i + 14}" y="15">{name}</text>')
        below = above
    for count in (0.0, float(plan.planned_peak_bytes)):
        parts.append(f'<text x="{_LEFT - 6}" y="{y(count) + 4:.1f}" text-anchor="end">{_size(count)}</text>')
    if plan.memory_budget:
        limit = y(min(float(plan.memory_budget - plan.workspace_bytes - plan.tables_bytes), top))
        parts.append(f'<path d="M{_LEFT} {limit:.1f}H{width - 10}" stroke="black" stroke-dasharray="5 4"/>')
    took = f"{plan.step_ns / 1e6:.4g} ms predicted, {plan.recompute_factor:.3g} x forward"
    parts.append(f'<text x="{width - 10}" y="{height - 8}" text-anchor="end">{took}</text>')
    style = 'font-family="sans-serif" font-size="12"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" {style}>{"".join(parts)}</svg>'

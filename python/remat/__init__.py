"""Remat: training within a byte budget, with exact back-propagation.

    graph = remat.Graph()
    x = graph.input("x", "f32", "sequence", (T, B, C))
    ...
    session = remat.Session(graph, loss, memory_budget="64MiB", optimizer="adamw")
    result = session.step(x=x_batch, y=y_batch, lr=1e-3)
"""

from . import distributed
from ._builders import Config
from ._compile import compile
from ._library import build
from .errors import Error, Status
from .graph import Cell, Graph, Init, Value, constant, normal, uniform, zeros
from .plan import Plan
from .session import Arrays, Result, Session, correct
from .state import State, load

__version__ = str(build()["version"])
__all__ = [
    "Arrays", "Cell", "Config", "Error", "Graph", "Init", "Plan", "Result", "Session", "State", "Status", "Value",
    "build", "compile", "constant", "correct", "distributed", "load", "normal", "uniform", "zeros",
]  # fmt: skip

"""Training states: what `remat train --save=DIR` writes, and files of weights."""

from __future__ import annotations

import json
import os
import pathlib
import re
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _abi
from .errors import Error

Arrays = dict[str, NDArray[np.float32]]
_SHARD = re.compile(r"(.*)\[(\d+):(\d+)\]")


def _io(sentence: str) -> Error:
    return Error(_abi.Status.IO, sentence)


def read_safetensors(path: str | os.PathLike[str]) -> Arrays:
    """The f32 arrays of a safetensors file, by name."""
    data = pathlib.Path(path).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    arrays = {}
    for name, about in json.loads(data[8:start]).items():
        if name == "__metadata__":
            continue
        if about["dtype"] != "F32":
            raise _io(f"{path}: {name} is {about['dtype']}; only F32 can be read here: use Session.load")
        first, last = about["data_offsets"]
        arrays[name] = np.frombuffer(data[start + first : start + last], "<f4").reshape(about["shape"])
    return arrays


class State:
    """A training state of `remat train`.

    info: state.json, with its `flags`; step, last_lr: where training stopped. parameters: with buffers, by name.
    optimizer_state, states: as a session has them. Session.load continues from its folder.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.info: dict[str, Any] = json.loads((path / "state.json").read_text())
        for name, wanted in self.info["files"].items():
            data = (path / name).read_bytes()
            if len(data) != wanted["bytes"] or zlib.crc32(data) != wanted["crc32"]:
                raise _io(f"{path / name} is damaged: its size or checksum is not that of state.json")
        self.step, self.last_lr = int(self.info["step"]), float(self.info["last_lr"])
        self.weights_file = path / "model.safetensors"
        self.parameters = read_safetensors(self.weights_file)
        self.states = self._arrays("carried*.safetensors")
        self.optimizer_state = self._joined(self._arrays("optimizer*.safetensors"))

    def _arrays(self, pattern: str) -> Arrays:
        return {k: v for file in sorted(self.path.glob(pattern)) for k, v in read_safetensors(file).items()}

    def _joined(self, arrays: Arrays) -> Arrays:
        """Shards NAME[FIRST:LAST] of several ranks as whole arrays, which are flat."""
        shards: dict[str, list[tuple[int, NDArray[np.float32]]]] = {}
        whole = {name: array for name, array in arrays.items() if not _SHARD.fullmatch(name)}
        for name, array in arrays.items():
            if match := _SHARD.fullmatch(name):
                shards.setdefault(match[1], []).append((int(match[2]), array.ravel()))
        for name, parts in shards.items():
            whole[name] = np.concatenate([array for _, array in sorted(parts, key=lambda part: part[0])])
        return whole

    def __repr__(self) -> str:
        return f"<remat.State {self.path}, step {self.step}, {len(self.parameters)} arrays>"


def load(path: str | os.PathLike[str]) -> State:
    """Reads the newest training state in the folder of `remat train --save`, or the state itself. Checks checksums."""
    folder = pathlib.Path(path)
    if not (folder / "state.json").exists():
        steps = [p for p in folder.glob("step-*") if re.fullmatch(r"step-\d+", p.name)]
        if not steps:
            raise _io(f"{folder} has no training state; give a folder of `remat train --save`")
        folder = max(steps, key=lambda p: int(p.name[5:]))
    return State(folder)

"""Sessions: the plan of a training step, its arrays, and running it (remat/session.h)."""

from __future__ import annotations

import ctypes as c
import os
import re
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _abi, _library, distributed, state
from ._builders import Config
from ._library import invalid, lib
from .errors import Error
from .graph import Graph, Value
from .plan import Plan

_Kind = _abi.Kind
_DTYPES: dict[int, np.dtype[Any]] = {
    _abi.Dtype.F32: np.dtype("float32"),
    _abi.Dtype.F64: np.dtype("float64"),
    _abi.Dtype.I32: np.dtype("int32"),
}
_KINDS = {
    "inputs": _Kind.INPUT,
    "parameters": _Kind.PARAM,
    "gradients": _Kind.GRADIENT,
    "optimizer_state": _Kind.OPTIMIZER,
    "outputs": _Kind.OUTPUT,
    "states": _Kind.CARRIED,
    "output_gradients": _Kind.OUTPUT_GRADIENT,
    "buffers": _Kind.BUFFER,
}
_CALLS = {
    "call remat_write for it": "give its values",
    "remat_gradients": "forward_backward",
}
# PyTorch's defaults that are not remat_config's; the program `remat` has the same.
_USUAL: dict[str, dict[str, Any]] = {"adagrad": {"epsilon": 1e-10}, "adadelta": {"epsilon": 1e-6, "alpha": 0.9}}
Values = Mapping[str, Value] | Sequence[Value] | Value
Inputs = Mapping[str, ArrayLike]


class Result(NamedTuple):
    """What a pass returns."""

    loss: float
    """The mean over all that counts, of all ranks; before the last micro step, and of evaluate, of this rank."""
    grad_norm: float
    """The 2-norm of all gradients before clipping; 0 where nothing was updated."""
    counted: float
    """What the loss is a mean over: targets that count, or the sum of their class weights; 0: no such count."""
    arena_peak_bytes: int
    recomputed_stages: int

    def __float__(self) -> float:
        return self.loss


def size(given: float | str) -> int:
    """Bytes of a size such as 4096, "64KiB", "1.5GiB" or "2GB"."""
    bytes = _parse_size(given) if isinstance(given, str) else given
    if not 0 <= bytes < 2**64:  # false for NaN, too
        raise invalid(f"{given!r} is not a size such as 4096, '64KiB', '1.5GiB' or '2GB'")
    return int(bytes)


def _parse_size(given: str) -> float:
    """-1: it is no size."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?) ?(?:([KMGT])(i?))?B?", given)
    if not match:
        return -1
    number, unit, binary = match.groups()
    base = 1024 if binary else 1000
    return float(number) * float(base ** (" KMGT".index(unit) if unit else 0))


def check(status: int) -> None:
    """Raises the library's last error, with the names of methods instead of C functions."""
    try:
        _library.check(status)
    except Error as error:
        sentence = error.sentence
        for name, call in _CALLS.items():
            sentence = sentence.replace(name, call)
        methods = re.sub(r"\bremat_(step|update|evaluate|forward|backward)\b", r"\1", sentence)
        raise Error(error.status, methods, error.smallest_budget) from None


def _names(values: Values, first: int = 0) -> dict[str, Value]:
    if isinstance(values, Mapping):
        return dict(values)
    return {f"output.{i}": v for i, v in enumerate([values] if isinstance(values, Value) else values, first)}


def _text(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))})"


class _Memory:
    """Memory of a session, for NumPy. It keeps the session alive."""

    def __init__(self, owner: _Handle, address: int, array: _Array) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3, "data": (address, False), "shape": array.shape, "typestr": array.dtype.str,
        }  # fmt: skip


class _Lock:
    """A lock that a child of fork makes anew: a thread that the child lacks may hold it."""

    def __init__(self) -> None:
        self._lock, self._process = threading.RLock(), os.getpid()

    def __enter__(self) -> None:
        if self._process != os.getpid():
            self._lock, self._process = threading.RLock(), os.getpid()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class _Handle:
    """A remat_session, freed when neither a Session nor a view of an array needs it."""

    def __init__(self, pointer: c.c_void_p, keep: list[Any], device: str, lock: _Lock) -> None:
        self.pointer, self.device, self.lock = pointer, device, lock
        self.external: dict[tuple[str, str], NDArray[Any]] = {}
        keep.append(self.external)
        weakref.finalize(self, _free, pointer, os.getpid(), keep)


def _free(pointer: c.c_void_p, process: int, keep: list[Any]) -> None:
    if os.getpid() == process:  # a child of fork has a copy that is not its own to free
        lib.remat_session_free(pointer)
    keep.clear()  # what the session used: external memory, other ranks


@dataclass(frozen=True)
class _Array:
    name: str
    index: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    bytes: int

    def convert(self, given: Any) -> NDArray[Any]:
        """The array in this shape and dtype; refuses other shapes, and values that the dtype cannot hold."""
        array = np.asarray(given.detach() if hasattr(given, "detach") else given)
        if array.dtype != self.dtype:
            array = self._cast(array)
        if array.shape != self.shape:
            raise invalid(f"{self.name} has the shape {_text(self.shape)}, but {_text(array.shape)} was given")
        return np.ascontiguousarray(array)

    def _cast(self, array: NDArray[Any]) -> NDArray[Any]:
        if not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise invalid(f"{self.name} is {self.dtype}, but {array.dtype} was given; convert it")
        if self.dtype.kind == "i" and array.size:
            limits, lowest, highest = np.iinfo(self.dtype), array.min(), array.max()
            wrong = lowest if lowest < limits.min else highest
            if wrong < limits.min or wrong > limits.max:
                raise invalid(f"{self.name} is {self.dtype}, which cannot hold {wrong}")
        with np.errstate(over="ignore"):
            cast = array.astype(self.dtype)
        if self.dtype.kind == "f" and not np.isfinite(cast).all():
            wrong = array[np.isinf(cast) & np.isfinite(array)]
            if wrong.size:
                raise invalid(f"{self.name} is {self.dtype}, which cannot hold {wrong[0]}")
        return cast


class Arrays(Mapping[str, NDArray[Any]]):
    """Arrays of one kind, by name. An array is a view of the session's memory: writing to it writes to the session.

    `arrays[name] = values` writes a whole array. On a GPU arrays are copies, which only that changes.
    """

    def __init__(self, handle: _Handle, kind: int, names: Sequence[str] = ()) -> None:
        self._handle, self._kind = handle, kind
        self._views: dict[str, NDArray[Any]] = {}
        self._arrays = {array.name: array for array in self._list(names)}

    def _list(self, names: Sequence[str]) -> Iterator[_Array]:
        info = _abi.remat_array()
        for i in range(lib.remat_count(self._handle.pointer, self._kind)):
            check(lib.remat_array_info(self._handle.pointer, self._kind, i, c.byref(info)))
            name = names[i] if names else (info.name or b"").decode()
            shape = tuple(info.dim[: info.rank])
            if info.count != int(np.prod(shape)):
                shape = (info.count,)  # the part that this rank holds
            yield _Array(name, i, shape, _DTYPES[info.dtype], info.bytes)

    def _array(self, name: str) -> _Array:
        try:
            return self._arrays[name]
        except KeyError:
            known = ", ".join(self._arrays) or "none"
            raise KeyError(f"there is no {name!r}; there are: {known}") from None

    def __getitem__(self, name: str) -> NDArray[Any]:
        array = self._array(name)
        if self._kind == _Kind.OUTPUT:  # refuses an output that has not been computed
            check(lib.remat_read_part(self._handle.pointer, self._kind, array.index, 0, None, 0))
        if self._handle.device == "cuda":
            return self._copy(array)
        if name not in self._views:
            address = c.c_void_p()
            check(lib.remat_array_memory(self._handle.pointer, self._kind, array.index, c.byref(address)))
            memory = _Memory(self._handle, address.value or 0, array)
            self._views[name] = np.asarray(memory) if address.value else np.empty(array.shape, array.dtype)
        return self._views[name]

    def _copy(self, array: _Array) -> NDArray[Any]:
        copy = np.empty(array.shape, array.dtype)
        check(lib.remat_read(self._handle.pointer, self._kind, array.index, copy.ctypes.data, array.bytes))
        copy.flags.writeable = False
        return copy

    def __setitem__(self, name: str, values: ArrayLike) -> None:
        array = self._array(name)
        data = array.convert(values)
        with self._handle.lock:
            check(lib.remat_write(self._handle.pointer, self._kind, array.index, data.ctypes.data, array.bytes))

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{a.name!r}: {a.dtype} {_text(a.shape)}" for a in self._arrays.values()) + "}"


class Session:
    """A network's training step: planned within memory_budget, checked, and placed before the first step.

    graph, loss: the network, and the scalar that a step minimises; None for inference, or for a loss of your own.
    outputs: values that evaluate() keeps whole: {name: value}, or a value or list ("output.0", "output.1", ..).
    differentiated: outputs whose gradients you give to backward(). Without loss (and inference) all outputs are.
    share: a session whose parameters, optimizer state and arena this one uses: an evaluation, another length or batch.
    external: arrays that lie in memory of yours: {"parameters": {name: array}, "gradients": {..}}; None instead of an
        array: set_external() gives it before the first pass.
    alone: train without the other ranks of remat.distributed.
    config: members of remat_config by their names (remat.Config). A memory_budget alone means strategy="optimal",
        segments alone strategy="segments".

    Arrays by name, as NumPy views: inputs, parameters, gradients, buffers, outputs, output_gradients, states (carried,
    of stateful sessions), optimizer_state. A session, and those that share with it, may be called from several threads;
    they run one after the other. After remat.distributed.init() a session that trains belongs to the job: all ranks
    make it, and start with the parameters of rank 0.
    """

    inputs: Arrays
    parameters: Arrays
    gradients: Arrays
    optimizer_state: Arrays
    outputs: Arrays
    states: Arrays
    output_gradients: Arrays
    buffers: Arrays
    _handle: _Handle

    def __init__(
        self,
        graph: Graph,
        loss: Value | None = None,
        *,
        outputs: Values = (),
        differentiated: Values = (),
        share: Session | None = None,
        external: Mapping[str, Mapping[str, NDArray[Any] | None]] | None = None,
        alone: bool = False,
        **config: Unpack[Config],
    ) -> None:
        if loss is None and not config.get("inference") and not differentiated:
            outputs, differentiated = (), outputs
        self._graph, self._loss, self._config, self._alone = graph, loss, config, alone
        self._differentiated = _names(differentiated)
        self._outputs = _names(outputs, len(self._differentiated))
        self._lock: _Lock = share._lock if share else _Lock()
        self._given: dict[str, set[str]] = {}  # inputs by the method that they were given to
        keep: list[Any] = [share._handle] if share else []
        struct = self._struct(config, keep)
        struct.share = share._pointer.value if share else None
        mine = [(kind, name, array) for kind, arrays in (external or {}).items() for name, array in arrays.items()]
        entries = [_abi.remat_external(_external_kind(kind), name.encode(), None) for kind, name, _ in mine]
        struct.external, struct.n_external = (_abi.remat_external * len(entries))(*entries), len(entries)
        job = None if alone or config.get("inference") or config.get("plan_only") else distributed._job
        struct.ranks = job.ranks if job else None
        pointer = c.c_void_p()
        value = _abi.remat_value(graph._id(loss) if loss is not None else 0)
        check(lib.remat_session_create(graph._pointer, value, c.byref(struct), c.byref(pointer)))
        keep.append(job)
        self._handle = _Handle(pointer, keep, config.get("device", "cpu"), self._lock)
        self._list_arrays()
        for kind, name, array in mine:
            if array is not None and not config.get("plan_only"):
                self.set_external(kind, name, array)
        if job and not share:
            check(lib.remat_job_begin(job._pointer, pointer))

    def _struct(self, config: Config, keep: list[Any]) -> _abi.remat_config:
        struct = _abi.remat_config(struct_bytes=c.sizeof(_abi.remat_config))
        check(lib.remat_config_defaults(c.byref(struct)))
        if "strategy" not in config and "plan_steps" not in config:
            wanted = "segments" if config.get("segments") else "optimal" if config.get("memory_budget") else "none"
            struct.strategy = wanted.encode()
        for name, value in {**_USUAL.get(config.get("optimizer") or "", {}), **config}.items():
            if name not in Config.__annotations__:
                raise TypeError(f"a session has no setting {name!r}; it has {', '.join(Config.__annotations__)}")
            _set(struct, name, value)
        outputs = [self._graph._id(v) for v in [*self._differentiated.values(), *self._outputs.values()]]
        struct.outputs = (_abi.remat_value * len(outputs))(*(_abi.remat_value(i) for i in outputs))
        struct.n_outputs, struct.n_differentiated = len(outputs), len(self._differentiated)
        return struct

    def _list_arrays(self) -> None:
        self._result = _abi.remat_step_result()
        for name, kind in _KINDS.items():
            names = [*self._differentiated, *self._outputs] if kind == _Kind.OUTPUT else []
            names = [*self._differentiated] if kind == _Kind.OUTPUT_GRADIENT else names
            setattr(self, name, Arrays(self._handle, kind, names))

    @property
    def _pointer(self) -> c.c_void_p:
        return self._handle.pointer

    def resized(self, timesteps: int | None = None, rows: int | None = None, **config: Unpack[Config]) -> Session:
        """A session of the same network for another length or batch, which shares parameters, optimizer state and
        arena: session.resized(timesteps=500), session.resized(rows=7, inference=True). config: what differs."""
        plan = self.plan
        lengths = None if timesteps is None else (int(plan.timesteps), timesteps)
        batches = None if rows is None else (int(plan.batch), rows)
        settings: Config = {**self._config, **config}
        return Session(
            self._graph.resized(lengths, batches) if lengths or batches else self._graph,
            self._loss,
            outputs=self._outputs if not settings.get("inference") else {**self._differentiated, **self._outputs},
            differentiated={} if settings.get("inference") else self._differentiated,
            share=self,
            alone=self._alone,
            **settings,
        )

    # ---- Passes

    def _write(self, call: str, inputs: Inputs) -> None:
        for name in inputs:
            if name not in self.inputs:
                raise invalid(f"the session has no input {name!r}; it has {', '.join(self.inputs) or 'none'}")
        given = self._given.setdefault(call, set())
        for name in sorted(given - inputs.keys() if inputs else ()):
            raise invalid(f"{call} was given {name!r} before, but not now; give it each time, or write "
                          f"session.inputs[{name!r}] once")
        given.update(inputs)
        for name, values in inputs.items():
            self.inputs[name] = values

    def _run(self, function: Any, *arguments: Any) -> Result:
        result = self._result
        check(function(self._pointer, *arguments, c.byref(result)))
        return Result(result.loss, result.grad_norm, result.counted, result.arena_peak_bytes, result.recomputed_stages)

    def step(self, *, lr: float, **inputs: ArrayLike) -> Result:
        """Forward, backward, clipping and the update, for inputs by their names. Without any, all keep their
        values. An input that was given once comes with the others each time; `session.inputs[name] = values` writes
        one for good."""
        with self._lock:
            self._write("step", inputs)
            return self._run(lib.remat_step, lr)

    def forward_backward(self, **inputs: ArrayLike) -> Result:
        """Forward and backward, without an update: one micro step, remat_gradients. Then call update."""
        with self._lock:
            self._write("forward_backward", inputs)
            return self._run(lib.remat_gradients)

    def update(self, lr: float) -> Result:
        """Clips gradients and updates parameters."""
        with self._lock:
            return self._run(lib.remat_update, lr)

    def evaluate(self, **inputs: ArrayLike) -> Result:
        """Forward only, without dropout. Then read `outputs`."""
        with self._lock:
            self._write("evaluate", inputs)
            return self._run(lib.remat_evaluate)

    def forward(self, **inputs: ArrayLike) -> dict[str, NDArray[Any]]:
        """The first half of a step with a loss of your own. Returns the differentiated outputs, as views."""
        with self._lock:
            self._write("forward", inputs)
            check(lib.remat_forward(self._pointer))
            return {name: self.outputs[name] for name in self._differentiated}

    def backward(self, gradients: ArrayLike | Mapping[str, ArrayLike] | None = None) -> Result:
        """The second half: `gradients` are of your loss, by the outputs' names, or of the only one. Then read
        `gradients`, those of inputs included, or call update. None: `output_gradients` were written already."""
        with self._lock:
            if gradients is not None and not isinstance(gradients, Mapping):
                if len(self._differentiated) != 1:
                    raise invalid(f"give gradients by name: {{{', '.join(map(repr, self._differentiated))}}}")
                gradients = {next(iter(self._differentiated)): gradients}
            for name, values in (gradients or {}).items():
                self.output_gradients[name] = values
            return self._run(lib.remat_backward)

    # ---- Arrays

    def set_external(self, kind: str, name: str, array: NDArray[Any]) -> None:
        """Replaces the memory of an external array from the next pass on. kind: "parameters", "gradients", .."""
        index = _external_kind(kind)
        arrays: Arrays = getattr(self, kind)
        wanted = arrays._array(name)
        if array.dtype != wanted.dtype or array.shape != wanted.shape:
            raise invalid(
                f"{name} is {wanted.dtype} {_text(wanted.shape)}, but {array.dtype} {_text(array.shape)} was given"
            )
        with self._lock:
            address = _address(name, array)
            check(lib.remat_set_external(self._pointer, index, wanted.index, address, array.nbytes))
            arrays._views[name] = self._handle.external[kind, name] = array

    def save(self, path: str | os.PathLike[str], *, training: bool = False) -> None:
        """Writes parameters and buffers to a safetensors file; with training=True all that training continues from."""
        with self._lock:
            check(lib.remat_save(self._pointer, os.fsencode(path), int(training)))

    def load(self, path: str | os.PathLike[str], *, training: bool = False) -> None:
        """Reads what save() wrote, a safetensors file of PyTorch with the same names and shapes, or a folder of
        `remat train --save`. With training=True training continues from there, with the same bits."""
        with self._lock:
            if os.path.isdir(path):
                self._restore(state.load(path), training)
            else:
                check(lib.remat_load(self._pointer, os.fsencode(path), int(training)))

    def _restore(self, saved: state.State, training: bool) -> None:
        arrays = {"optimizer_state": saved.optimizer_state, "states": saved.states} if training else {}
        for kind, values in arrays.items():
            mine: Arrays = getattr(self, kind)
            if set(mine) != set(values):
                wrong = ", ".join(sorted(set(mine) ^ set(values)))
                raise invalid(f"the {kind} of {saved.path} and of this session are not the same: {wrong}")
        check(lib.remat_load(self._pointer, os.fsencode(saved.weights_file), _abi.Contents.WEIGHTS))
        for kind, values in arrays.items():
            for name, value in values.items():
                getattr(self, kind)[name] = value.reshape(getattr(self, kind)._array(name).shape)
        if training:
            self.step_count, self.last_lr = saved.step, saved.last_lr

    def copy_parameters(self, other: Session) -> None:
        """Copies every parameter and buffer from the array of its name in the other session."""
        with self._lock:
            check(lib.remat_copy_parameters(self._pointer, other._pointer))

    # ---- Settings that may change

    def train_only(self, names: str | Iterable[str] | None) -> None:
        """From the next update on, only parameters whose names begin like one of these are trained; None: all."""
        joined = names if names is None or isinstance(names, str) else ",".join(names)
        with self._lock:
            check(lib.remat_train_only(self._pointer, None if joined is None else joined.encode()))

    def set_dropout(self, sample: int | None) -> None:
        """Dropout in evaluations, with masks drawn by `sample`; None: none."""
        with self._lock:
            check(lib.remat_set_dropout(self._pointer, -1 if sample is None else sample))

    def set_sequence_end(self, timesteps: int, end: int) -> None:
        """From the next pass on, skips tiles of sequences of `timesteps` timesteps that start at `end` or later."""
        with self._lock:
            check(lib.remat_set_sequence_end(self._pointer, timesteps, end))

    @property
    def step_count(self) -> int:
        """Updates so far."""
        return int(lib.remat_step_count(self._pointer))

    @step_count.setter
    def step_count(self, steps: int) -> None:
        lib.remat_set_step_count(self._pointer, steps)

    @property
    def last_lr(self) -> float:
        return float(lib.remat_last_lr(self._pointer))

    @last_lr.setter
    def last_lr(self, lr: float) -> None:
        lib.remat_set_last_lr(self._pointer, lr)

    # ---- The rest

    @property
    def plan(self) -> Plan:
        """What the step keeps, recomputes and takes; prints as `remat plan` does."""
        return Plan(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise invalid("a session cannot be copied or pickled; save() writes its parameters to a file")

    def __repr__(self) -> str:
        return f"<remat.Session of {len(self.parameters)} parameters, {self.plan.budgeted_bytes} bytes>"


def _set(struct: _abi.remat_config, name: str, value: Any) -> None:
    if value is None:  # the default
        return
    given = value
    try:
        if name == "memory_budget":
            value = size(value)
        elif isinstance(value, str | os.PathLike):
            value = os.fsencode(value)
        elif isinstance(value, np.generic):
            value = value.item()
        setattr(struct, name, value)
        if isinstance(value, int) and getattr(struct, name) != value:  # ctypes cuts off bits
            raise invalid(f"{name} is {value}, which is out of range")
    except TypeError as error:
        raise TypeError(f"{name} cannot be {given!r}, of type {type(given).__name__}") from None


def correct(logits: ArrayLike, targets: ArrayLike, k: int = 1) -> int:
    """Rows whose target is among their k largest logits: logits (..,classes), targets (..). For top-k accuracy."""
    scores = np.ascontiguousarray(logits, dtype=np.float32)
    labels = np.ascontiguousarray(targets, dtype=np.int32)
    if scores.shape[:-1] != labels.shape:
        raise invalid(f"targets have the shape {_text(labels.shape)}, but {_text(scores.shape[:-1])} is wanted")
    data = scores.ctypes.data_as(c.POINTER(c.c_float)), labels.ctypes.data_as(c.POINTER(c.c_int32))
    return int(lib.remat_correct(*data, labels.size, scores.shape[-1], k))


def _external_kind(kind: str) -> int:
    try:
        return _KINDS[kind]
    except KeyError:
        raise invalid(f"there are no arrays {kind!r}; there are {', '.join(_KINDS)}") from None


def _address(name: str, array: NDArray[Any]) -> int:
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
        raise invalid(f"{name}: external memory must be a contiguous NumPy array")
    return int(array.ctypes.data)

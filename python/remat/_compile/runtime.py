"""Runs a translated model. PyTorch owns parameters, buffers and .grad; the session reads and writes them where they lie."""

from __future__ import annotations

import contextlib
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as _modules

from .. import distributed
from .._library import invalid
from ..errors import Error
from ..plan import Plan
from ..session import Result, Session, _Lock
from . import composed, einsum, images
from .capture import Axes, Sizes, export, sizes_of
from .translate import Host, Program, translate

assert composed and einsum and images  # they register translations, as do the files that they import

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_OF_UPDATES = (
    "momentum", "nesterov", "beta1", "beta2", "epsilon", "weight_decay", "alpha", "clip_grad_norm", "clip_grad_value",
    "trust_coefficient", "momentum_correction", "adapt_vectors", "decay_vectors", "norm_limit", "groups",
)  # fmt: skip
_SHAPES = 64  # captured shapes that are held; the least recently used makes room


class _Capture:
    """A model as torch.export saw it, for all batches whose shapes differ only in its open axes."""

    def __init__(self, step: Step, batch: tuple[Any, ...], named: dict[str, Any], axes: Axes) -> None:
        self.exported = exported = export(step.model, step.loss_fn, batch, named, axes)
        self.axes, self.shapes = axes, _sizes([*batch, *named.values()])
        self.given = {
            spec.arg.name: exported.state_dict.get(spec.target, exported.constants.get(spec.target))
            for spec in exported.graph_signature.input_specs
            if spec.target is not None
        }

    def sizes(self, batch: list[Any]) -> Sizes | None:
        return sizes_of(self.exported, batch)


class _Shape:
    """The graph and the session for batches of one shape."""

    def __init__(self, step: Step, capture: _Capture, sizes: Sizes, batch: list[Any]) -> None:
        self.exported, self.given, self.sizes = capture.exported, capture.given, sizes
        self.program: Program = translate(self.exported, self._host(batch), step.updates)
        program = self.program
        if program.loss is None:
            raise invalid("the model has no loss")
        self.trained = {n: p for n, p in program.parameters.items() if p.requires_grad}
        trained = list(self.trained)
        frozen = [n for n in program.parameters if n not in trained]
        if not trained:
            raise invalid("no parameter of the model is trained; set requires_grad of some")
        frozen += program.constants
        config = dict(step.config)
        if frozen:
            config["train_only"] = ",".join(trained)
        external: dict[str, dict[str, Any]] = {
            "parameters": {n: _array(_now(p)) for n, p in (program.parameters | program.constants).items()},
            "buffers": {n: _array(b) for n, b in program.buffers.items()},
            "inputs": dict.fromkeys(program.inputs),
        }
        self.own_gradients = distributed.is_initialized()  # ranks exchange them where they lie
        if not step.updates and not self.own_gradients:
            external["gradients"] = {n: _array(step.gradient(p)) for n, p in self.trained.items()}
        self.session = Session(program.graph, program.loss, external=external, share=step.first, **config)
        self.held: dict[str, dict[str, Any]] = {"parameters": program.parameters | program.constants, "buffers": program.buffers}
        self.address = {n: _now(x).data_ptr() for held in self.held.values() for n, x in held.items()}
        self.gradient_address = {n: array.ctypes.data for n, array in external.get("gradients", {}).items()}
        self.feeds: dict[str, np.ndarray[Any, Any]] = {}

    def _host(self, batch: list[Any]) -> Host:
        return Host(self.exported, self.given, batch, self.sizes)

    def feed(self, batch: list[Any]) -> None:
        host = self._host(batch)
        with torch.no_grad():
            for name, compute in self.program.inputs.items():
                value = compute(host)
                value = value.float() if value.dtype.is_floating_point else value.to(torch.int32)
                self.feeds[name] = value.contiguous().numpy()
                self.session.set_external("inputs", name, self.feeds[name])

    def follow(self, step: Step) -> None:
        """Parameters and buffers may have moved to other memory since the last pass."""
        for kind, held in self.held.items():
            for name, given in held.items():
                x = _now(given)
                if x.data_ptr() == self.address[name]:
                    continue
                if x.device.type != "cpu" or x.dtype != torch.float32:
                    raise invalid(f"{name} became {x.dtype} on {x.device}; keep the model in float32 on the CPU")
                if not x.is_contiguous():
                    raise invalid(f"{name} is not contiguous any more; store it so")
                self.session.set_external(kind, name, _array(x))
                self.address[name] = x.data_ptr()

    def show_gradients(self, step: Step) -> None:
        """The pass writes to .grad. It is another object in each call, because a script may give that of the last call other
        memory, by `p.grad.data = ..` or model.half(). A .grad of an earlier call that this one does not compute is None."""
        for parameter, grad in step.shown.items():
            if parameter.grad is grad:
                parameter.grad = None
        step.shown = {}
        for name, parameter in self.trained.items():
            parameter.grad = step.shown[parameter] = self._gradient(step, name, parameter)

    def _gradient(self, step: Step, name: str, parameter: torch.Tensor) -> torch.Tensor:
        if self.own_gradients:
            return torch.from_numpy(self.session.gradients[name])
        memory = step.gradient(parameter)
        if memory.data_ptr() != self.gradient_address[name]:  # share_memory() moves a storage
            self.session.set_external("gradients", name, _array(memory))
            self.gradient_address[name] = memory.data_ptr()
        return memory.detach()


class Step:
    """A model's training step within a memory budget. See remat.compile."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., torch.Tensor] | None,
        example_batch: Any,
        lr: float | None,
        config: dict[str, Any],
    ) -> None:
        self.model, self.loss_fn, self.config = model, loss_fn, config
        self.updates = config.get("optimizer") is not None
        for name in () if self.updates else _OF_UPDATES:
            if config.get(name) is not None:
                raise invalid(f"{name} is given without an optimizer; give optimizer, or leave this to PyTorch's")
        if self.updates and lr is None:
            raise invalid(f"optimizer={config['optimizer']!r} needs a learning rate; give lr")
        if lr is not None and not self.updates:
            raise invalid("lr is given without an optimizer; give optimizer, or leave the update to PyTorch's")
        if self.updates and (config.get("micro_steps") or 1) > 1:
            raise invalid("micro_steps works without optimizer; leave optimizer out, and call PyTorch's after each K-th call")
        if config.get("micro_steps", 1) == 0:
            raise invalid("micro_steps is 0; give the number of calls for each update, at least 1")
        config.setdefault("seed", torch.initial_seed() % 2**63)
        self.lr = lr
        self._lock = _Lock()  # a call writes inputs and then runs, without those of another thread in between
        self._gradients: dict[torch.Tensor, torch.Tensor] = {}
        self.shown: dict[torch.Tensor, torch.Tensor] = {}  # what .grad was given in the last training call
        self._shapes: OrderedDict[Any, _Shape] = OrderedDict()
        self._captures: dict[Any, list[_Capture]] = {}
        self._calls = 0  # each training call draws its own dropout masks
        self._parts = config.get("micro_steps") or 1  # calls for each update of PyTorch's optimizer
        self._part = 0  # how many of them were made
        self._of_parts: Any = None  # the key of their shape
        self.first: Session | None = None
        batch, named = _batch(example_batch)
        if named and loss_fn is not None:
            raise invalid("example_batch is a dict, whose tensors are arguments of the model; leave loss_fn None, and return the loss")
        for name, x in _arguments(batch, named).items():
            if isinstance(x, tuple | list | Mapping):
                raise invalid(f"{name} is a {type(x).__name__}; give its tensors as arguments of their own")
        self._kinds, self._names = _kinds(batch, named), list(named)
        self._integers = {n: x.dtype for n, x in _arguments(batch, named).items() if getattr(x, "dtype", None) in _INTEGERS}
        self._tensors, self._modes = _tensors(model, loss_fn), _modes(model)
        self._shape(batch, named, self._modes)

    # ---- Passes

    def __call__(self, *batch: Any, **named: Any) -> torch.Tensor:
        """One training step. Returns the loss. Without `optimizer` the gradients are in .grad, which each call replaces."""
        if self.updates and not (isinstance(self.lr, int | float) and math.isfinite(self.lr) and self.lr >= 0):
            raise invalid(f"step.lr is {self.lr!r}; give a finite learning rate of at least 0")
        with self._lock:
            shape = self._ready(batch, named, _modes(self.model), training=True)
            self._modes = _modes(self.model)
            shape.follow(self)
            if self.updates:
                result = shape.session.step(lr=float(self.lr or 0))
            else:
                result = self._gradients_of(shape)
            with torch.no_grad():
                for counter in shape.program.counters:
                    counter += 1
            return torch.tensor(result.loss)

    def _gradients_of(self, shape: _Shape) -> Result:
        shape.show_gradients(self)
        shape.session.step_count, self._calls = self._calls, self._calls + 1
        if not self._part and self._parts > 1:
            shape.session.train_only(None)  # begins the update anew, also after a call that failed or was interrupted
        part, self._part = self._part, 0
        result = shape.session.forward_backward()
        self._part = (part + 1) % self._parts
        for weight, row in shape.program.frozen_rows:
            weight.grad[row] = 0  # type: ignore[index]
        return result

    def evaluate(self, *batch: Any, **named: Any) -> torch.Tensor:
        """The loss, without dropout and label smoothing, with batch norm's running statistics, and without gradients."""
        with self._lock:
            shape = self._ready(batch, named, self._modes)
            shape.follow(self)
            return torch.tensor(shape.session.evaluate().loss)

    # ---- What there is to read

    @property
    def session(self) -> Session:
        """The session of example_batch's shape."""
        assert self.first is not None
        return self.first

    @property
    def plan(self) -> Plan:
        return self.session.plan

    def state_dict(self) -> Mapping[str, Any]:
        """The model's, which always has the current values."""
        return self.model.state_dict()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise invalid("a compiled step cannot be copied or pickled; copy or save its model, and compile that")

    # ---- Inside

    def gradient(self, parameter: torch.Tensor) -> torch.Tensor:
        """The memory of .grad that sessions write to."""
        if parameter not in self._gradients:
            with torch.inference_mode(False):
                self._gradients[parameter] = torch.zeros_like(parameter, requires_grad=False)
        return self._gradients[parameter]

    def _ready(self, batch: tuple[Any, ...], named: dict[str, Any], modes: tuple[bool, ...], training: bool = False) -> _Shape:
        batch = tuple(self._like_example(f"argument {i}", x) for i, x in enumerate(batch, 1))
        named = {name: self._like_example(f"argument {name!r}", x) for name, x in named.items()}
        _check_kinds(self._kinds, _kinds(batch, named))
        named = {name: named[name] for name in self._names}
        if training:
            self._check_part(batch, named, modes)
        self._check_model()
        shape = self._shape(batch, named, modes)
        shape.feed([*batch, *named.values()])
        return shape

    def _check_part(self, batch: tuple[Any, ...], named: dict[str, Any], modes: tuple[bool, ...]) -> None:
        """Each shape has a session, which has the gradients of its own calls. Those of an update are of one."""
        key = _key([*batch, *named.values()], modes)
        if self._part and key != self._of_parts:
            for name, own, first in zip(_arguments(batch, named), key[0], self._of_parts[0], strict=True):
                if own != first:
                    raise self._amid(f"{name} is {_described(own)} after {_described(first)}; give the calls of an update batches of one shape")
            raise self._amid("the model changed between train() and eval(); change it after the last call of an update")
        self._of_parts = key

    def _amid(self, what: str) -> Error:
        return invalid(f"call {self._part + 1} of micro_steps={self._parts}: {what}")

    def _like_example(self, name: str, x: Any) -> Any:
        """Integers in the example's dtype."""
        wanted = self._integers.get(name)
        return x.to(wanted) if wanted and isinstance(x, torch.Tensor) and x.dtype in _INTEGERS else x

    def _shape(self, batch: tuple[Any, ...], named: dict[str, Any], modes: tuple[bool, ...]) -> _Shape:
        tensors = [*batch, *named.values()]
        for x in tensors:
            if isinstance(x, torch.Tensor) and x.device.type != "cpu":
                raise invalid(f"a tensor of the batch is on {x.device}; compile works on the CPU")
            if isinstance(x, torch.Tensor) and x.requires_grad:
                raise invalid("a tensor of the batch requires its gradient, which a compiled step does not compute; detach it")
        key = _key(tensors, modes)
        if key not in self._shapes:
            with _in_modes(self.model, modes):
                made = self._make(batch, named, modes)  # may begin anew, with no other shapes
            self._shapes[key] = made
        self._shapes.move_to_end(key)
        if len(self._shapes) > _SHAPES:
            self._shapes.popitem(last=False)
        return self._shapes[key]

    def _check_model(self) -> None:
        """Captures hold the model's parameters and buffers. If any was replaced, frozen or unfrozen, captures are discarded,
        and so they are if a buffer changed that became a constant, such as a mask."""
        tensors = _tensors(self.model, self.loss_fn)
        read = (name for shape in self._shapes.values() for name, x, version in shape.program.read if x._version != version)
        changed = next(read, None)
        if tensors == self._tensors and changed is None:
            return
        what = f"{changed} changed" if changed else _difference(self._tensors, tensors)
        if self.updates:
            raise invalid(f"{what} since compile; compile the model again")
        if self._part:
            raise self._amid(f"{what}; change it after the last call of an update")
        self._begin_anew()
        self._tensors = tensors

    def _begin_anew(self) -> None:
        self._shapes, self._captures, self.first, self._gradients = OrderedDict(), {}, None, {}

    def _make(self, batch: tuple[Any, ...], named: dict[str, Any], modes: tuple[bool, ...]) -> _Shape:
        try:
            made = self._captured(batch, named, modes)
        except Error as error:
            if self.first is None or "share" not in str(error) and "arena" not in str(error):
                if self.first is not None and any(isinstance(x, torch.Tensor) and 1 in x.shape for x in [*batch, *named.values()]):
                    raise invalid(f"{error}; a batch has an axis of size 1: leave it out, such as by drop_last=True") from None
                raise
            if self.updates:
                raise invalid(f"{error}; compile with the largest batch as example_batch") from None
            if self._part:  # an evaluation amid the calls of an update
                raise self._amid(f"{error}; evaluate larger batches after the last call of an update") from None
            self._begin_anew()  # gradients and parameters are PyTorch's: begin anew with the larger one
            made = self._captured(batch, named, modes)
        self.first = self.first or made.session
        return made

    def _captured(self, batch: tuple[Any, ...], named: dict[str, Any], modes: tuple[bool, ...]) -> _Shape:
        """The second shape opens the axes in which it differs from the first, so that later ones need no export."""
        tensors = [*batch, *named.values()]
        key = (modes, tuple(None if isinstance(x, torch.Tensor) else x for x in tensors))
        captures = self._captures.setdefault(key, [])
        for capture in captures:
            if (sizes := capture.sizes(tensors)) is not None:
                return _Shape(self, capture, sizes, tensors)
        axes = _open_axes(_sizes(tensors), [capture.shapes for capture in captures])
        if axes and not any(capture.axes >= axes for capture in captures):
            # What torch.export or the translation cannot leave open is captured as it is.
            with contextlib.suppress(Error, RuntimeError, ValueError):
                capture = _Capture(self, batch, named, axes)
                made = _Shape(self, capture, capture.sizes(tensors) or {}, tensors)
                captures.append(capture)
                return made
        capture = _Capture(self, batch, named, frozenset())
        captures.append(capture)
        return _Shape(self, capture, {}, tensors)


def _sizes(batch: list[Any]) -> list[tuple[int, ...]]:
    return [tuple(x.shape) if isinstance(x, torch.Tensor) else () for x in batch]


def _open_axes(shapes: list[tuple[int, ...]], before: list[list[tuple[int, ...]]]) -> Axes:
    """The axes in which a batch differs from earlier ones. Those of size 1 are always fixed."""
    return frozenset(
        (i, axis)
        for other in before
        for i, (one, two) in enumerate(zip(shapes, other, strict=True))
        for axis, (n, m) in enumerate(zip(one, two, strict=True))
        if n != m and n > 1
    )


def _batch(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example), {}) if isinstance(example, tuple | list) else ((example,), {})


def _arguments(batch: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    return {f"argument {i}": x for i, x in enumerate(batch, 1)} | {f"argument {name!r}": x for name, x in named.items()}


def _key(tensors: list[Any], modes: tuple[bool, ...]) -> tuple[tuple[Any, ...], tuple[bool, ...]]:
    """What a session is made for."""
    return tuple((tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else x for x in tensors), modes


def _described(x: Any) -> str:
    return f"a tensor of shape {x[0]}" if isinstance(x, tuple) else repr(x)


def _kinds(batch: tuple[Any, ...], named: dict[str, Any]) -> dict[str, str]:
    """What each argument is: a tensor's dtype and number of axes, or another object's type."""
    return {
        n: f"a tensor of {x.dtype} with {x.dim()} axes" if isinstance(x, torch.Tensor) else f"an object of type {type(x).__name__}"
        for n, x in _arguments(batch, named).items()
    }


def _check_kinds(wanted: dict[str, str], given: dict[str, str]) -> None:
    if wanted.keys() != given.keys():
        raise invalid(f"the step was given {', '.join(given) or 'nothing'}, but example_batch has {', '.join(wanted)}; give these")
    for name, kind in given.items():
        if kind != wanted[name]:
            raise invalid(f"{name} is {kind}, but in example_batch it is {wanted[name]}; give such a one")


def _modes(model: nn.Module) -> tuple[bool, ...]:
    return tuple(module.training for module in model.modules())


@contextlib.contextmanager
def _in_modes(model: nn.Module, modes: tuple[bool, ...]) -> Iterator[None]:
    """evaluate() runs what training captured, also while the model is in evaluation mode."""
    before = _modes(model)
    try:
        _set_modes(model, modes)
        yield
    finally:
        _set_modes(model, before)


def _set_modes(model: nn.Module, modes: tuple[bool, ...]) -> None:
    for module, training in zip(model.modules(), modes, strict=False):
        module.training = training


def _tensors(model: nn.Module, loss_fn: Any) -> dict[str, Any]:
    """What a capture holds: parameters and buffers as objects, and whether each is trained; forward hooks; settings of PyTorch's
    layers, such as p of Dropout. Hooks on gradients, GPUs and other types than float32 are refused."""
    if not isinstance(model, nn.Module):
        raise invalid(f"the model is of type {type(model).__name__}; give an nn.Module")
    if isinstance(model, torch.jit.ScriptModule):
        raise invalid(f"the model is a {type(model).__name__}; give the nn.Module that it was made of")
    for kind in ("backward", "forward"):
        if getattr(_modules, f"_global_{kind}_hooks") or getattr(_modules, f"_global_{kind}_pre_hooks"):
            raise invalid(f"there is a {kind} hook of all modules, which a compiled step does not call; remove it")
    found = _checked(model, "")
    if isinstance(loss_fn, nn.Module):
        found |= _checked(loss_fn, "loss_fn.")
    return found


def _checked(model: nn.Module, prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, module in model.named_modules(prefix=prefix.removesuffix(".")):
        settings = {key: getattr(module, key, None) for key in getattr(module, "__constants__", ())}
        found |= {f"{name}.{key}": value for key, value in settings.items() if isinstance(value, bool | int | float | str)}
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        if hooks:
            found[f"a forward hook of module {name!r}"] = hooks
        if module._backward_hooks or module._backward_pre_hooks:
            raise invalid(f"module {name!r} has a backward hook, which a compiled step does not call; remove it")
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.momentum is None:
            raise invalid(f"module {name!r} has momentum=None, which makes its averages depend on the number of calls; give a number")
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for name, x in ((prefix + name, x) for name, x in named):
        if nn.parameter.is_lazy(x):
            raise invalid(f"{name} has no shape yet; call the model once before compile")
        if x._backward_hooks or getattr(x, "_post_accumulate_grad_hooks", None):
            raise invalid(f"{name} has a gradient hook, which a compiled step does not call; change .grad after the step")
        if x.device.type != "cpu":
            raise invalid(f"{name} is on {x.device}; move the model to the CPU")
        if isinstance(x, nn.Parameter) and x.dtype != torch.float32:
            raise invalid(f"{name} is {x.dtype}; a compiled step computes in float32: convert the model by model.float()")
        found[name] = _Held(x, x.requires_grad)
    return found


class _Held:
    """A tensor by its identity."""

    def __init__(self, tensor: torch.Tensor, trained: bool) -> None:
        self.tensor, self.trained = tensor, trained

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and self.tensor is other.tensor and self.trained == other.trained

    __hash__ = None  # type: ignore[assignment]


def _difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    name = next(n for n in before | after if before.get(n) != after.get(n))
    if name.startswith("a forward hook"):
        return f"{name} was added or removed"
    if name in before and name in after and not isinstance(after[name], _Held):
        return f"{name} changed to {after[name]!r}"
    if name in before and name in after and before[name].tensor is after[name].tensor:
        return f"{name} changed requires_grad to {after[name].trained}"
    return f"{name} was replaced"


def _now(x: Any) -> torch.Tensor:
    """A tensor, or a part of one that may move."""
    made: torch.Tensor = x() if callable(x) else x
    return made


def _array(x: torch.Tensor) -> np.ndarray[Any, Any]:
    """The tensor's own memory, with at least one axis."""
    return np.atleast_1d(x.detach().numpy())

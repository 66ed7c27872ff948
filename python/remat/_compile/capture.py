"""Captures a model and its loss as a torch.export program, undecomposed, with recurrent layers and packing as single ops."""

from __future__ import annotations

import contextlib
import logging
import math
import operator
import os
import random
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy  # type: ignore[import-untyped]
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from .. import nn as layers
from .._library import invalid
from ..errors import Error
from ..session import _Lock


@torch.library.custom_op("remat::recurrent", mutates_args=())
def recurrent(
    x: torch.Tensor,
    states: list[torch.Tensor],
    weights: list[torch.Tensor],
    lengths: torch.Tensor | None,
    mode: str,
    bias: bool,
    layers: int,
    dropout: float,
    bidirectional: bool,
    batch_first: bool,
    projection: int,
) -> list[torch.Tensor]:
    """nn.LSTM, nn.GRU or nn.RNN while a model is exported. It is translated, never run."""
    raise NotImplementedError("remat::recurrent only exists in exported programs")


@recurrent.register_fake
def _(x, states, weights, lengths, mode, bias, layers, dropout, bidirectional, batch_first, projection):  # type: ignore[no-untyped-def]
    hidden, directions = weights[1].shape[0] // _GATES[mode], 1 + bidirectional
    width = projection or hidden
    batch = x.shape[0] if batch_first else x.shape[1]
    return [
        x.new_empty(*x.shape[:2], width * directions),
        x.new_empty(layers * directions, batch, width),
        x.new_empty(layers * directions, batch, hidden),
    ]


@torch.library.custom_op("remat::ctc", mutates_args=())
def ctc(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int,
    zero_infinity: bool,
) -> torch.Tensor:
    """F.ctc_loss while a model is exported, whose own op has a result that depends on lengths."""
    raise NotImplementedError("remat::ctc only exists in exported programs")


@ctc.register_fake
def _(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity):  # type: ignore[no-untyped-def]
    return log_probs.new_empty(())


@torch.library.custom_op("remat::rotary", mutates_args=())
def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x cos + rotate_half(x) sin, as transformers writes rotary positions."""
    raise NotImplementedError("remat::rotary only exists in exported programs")


_exporting = _Lock()  # torch.export, and the functions that it is given here, are of the whole process
_NOT_THE_USERS = (*(f'File "{os.path.dirname(file)}/' for file in (torch.__file__, __file__)), 'File "<string>"', 'File "<eval_with_key>')
_GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}


@dataclass
class _Packed:
    """pack_padded_sequence while a model is exported: the padded batch and its lengths. Layers after it start each row's
    reverse direction at the row's end."""

    data: torch.Tensor
    lengths: torch.Tensor
    batch_first: bool


def _pack(input: torch.Tensor, lengths: Any, batch_first: bool) -> _Packed:
    if not isinstance(lengths, torch.Tensor):
        raise invalid("pack_padded_sequence gets lengths as a list; give a tensor that is part of the batch")
    return _Packed(input, lengths, batch_first)


def _pad(
    sequence: _Packed, batch_first: bool, padding_value: float, total_length: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    data = sequence.data
    time = 1 if sequence.batch_first else 0
    if padding_value:
        raise invalid(f"pad_packed_sequence with padding_value={padding_value}; use 0")
    if total_length not in (None, data.shape[time]):
        raise invalid(f"pad_packed_sequence has total_length={total_length}; it is always the padded {data.shape[time]}")
    steps = torch.arange(data.shape[time])
    mask = steps < sequence.lengths[:, None] if sequence.batch_first else steps[:, None] < sequence.lengths
    data = data * mask.unsqueeze(-1).to(data.dtype)
    return data.transpose(0, 1) if batch_first != sequence.batch_first else data, sequence.lengths


def _recurrent_forward(self: Any, input: Any, hx: Any = None) -> Any:
    packed = input if isinstance(input, _Packed) else None
    x = packed.data if packed else input
    batch_first = packed.batch_first if packed else self.batch_first
    one = x.dim() == 2
    states = [] if hx is None else list(hx) if isinstance(hx, tuple | list) else [hx]
    if one:
        x, states, batch_first = x.unsqueeze(1), [s.unsqueeze(1) for s in states], False
    weights = [getattr(self, name) for name in self._flat_weights_names]
    dropout = float(self.dropout) if self.training else 0.0
    lengths = packed.lengths if packed else None
    y, h, c = torch.ops.remat.recurrent(
        x, states, weights, lengths, self.mode, self.bias, self.num_layers, dropout, self.bidirectional, batch_first,
        self.proj_size,
    )  # fmt: skip
    if one:
        y, h, c = y.squeeze(1), h.squeeze(1), c.squeeze(1)
    out = _Packed(y, packed.lengths, batch_first) if packed else y
    return out, ((h, c) if self.mode == "LSTM" else h)


def _pack_code(input, lengths, batch_first=False, enforce_sorted=True):  # type: ignore[no-untyped-def]
    from remat._compile.capture import _pack

    return _pack(input, lengths, batch_first)


def _pad_code(sequence, batch_first=False, padding_value=0.0, total_length=None):  # type: ignore[no-untyped-def]
    from remat._compile.capture import _pad

    return _pad(sequence, batch_first, padding_value, total_length)


def _ctc_code(log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean", zero_infinity=False):  # type: ignore[no-untyped-def]
    import torch

    from remat._library import invalid

    if reduction != "mean":
        raise invalid(f"ctc_loss has reduction={reduction!r}; use 'mean'")
    lengths = [n if isinstance(n, torch.Tensor) else torch.tensor(n) for n in (input_lengths, target_lengths)]
    return torch.ops.remat.ctc(log_probs, targets, *lengths, blank, zero_infinity)


def _causal_code(mask, is_causal=None, size=None):  # type: ignore[no-untyped-def]
    return is_causal is True


_enter_inference_mode = torch.inference_mode.__enter__


def _refuse_inference_mode(self: Any) -> None:
    """torch.export itself enters the mode False."""
    if not self.mode:
        return _enter_inference_mode(self)
    raise invalid("torch.inference_mode() in forward is not supported; compute this part outside of the model")


def _functions(of: Any = torch.autograd.Function) -> Iterator[Any]:
    """The torch.autograd.Functions that are not PyTorch's own, as those of custom ops and checkpoints are."""
    for cls in of.__subclasses__():
        yield from _functions(cls)
        if cls.__module__.partition(".")[0] != "torch" and "forward" in vars(cls):
            yield cls


def _refusal(cls: Any) -> Any:
    def forward(*args: Any, **kwargs: Any) -> None:
        raise invalid(f"the torch.autograd.Function {cls.__name__} in forward: its backward is not in an exported program")

    return staticmethod(forward)


_data: Any = torch.Tensor.data


def _refuse_data(self: torch.Tensor) -> torch.Tensor:
    """PyTorch itself reads .data while it traces."""
    if f'File "{sys._getframe(1).f_code.co_filename}"'.startswith(_NOT_THE_USERS):
        return _data.__get__(self)  # type: ignore[no-any-return]
    raise invalid(".data of a tensor in forward is hidden from autograd and from a captured step; use the tensor itself, or detach()")


def _refuse_hook(self: Any, hook: Any) -> None:
    raise invalid("Tensor.register_hook() in forward: hooks are not in an exported program")


@contextlib.contextmanager
def _swapped() -> Iterator[None]:
    """Recurrent layers become one op: torch.export takes milliseconds a timestep for them, and would fix the length.
    Functions get other code, because models import them by name."""
    changes: list[tuple[Any, str, Any]] = [
        (layer, "forward", _recurrent_forward) for layer in (nn.LSTM, nn.GRU, nn.RNN, layers.LSTM, layers.GRU, layers.RNN)
    ]
    changes += [
        (nn.utils.rnn.pack_padded_sequence, "__code__", _pack_code.__code__),
        (nn.utils.rnn.pad_packed_sequence, "__code__", _pad_code.__code__),
        (nn.functional.ctc_loss, "__code__", _ctc_code.__code__),
        # nn.Transformer compares its mask with a causal one, which torch.export cannot; the translation looks at the mask itself.
        (nn.modules.transformer._detect_is_causal_mask, "__code__", _causal_code.__code__),
        (torch.inference_mode, "__enter__", _refuse_inference_mode),
        (torch.Tensor, "register_hook", _refuse_hook),
        (torch.Tensor, "data", property(_refuse_data, _data.__set__)),
    ]
    changes += [(cls, "forward", _refusal(cls)) for cls in _functions()]
    before = [vars(owner).get(name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for owner, name, new in changes:
            setattr(owner, name, new)
        yield
    finally:
        for (owner, name, _), old in zip(changes, before, strict=True):
            setattr(owner, name, old)


@contextlib.contextmanager
def _hooks_that_return(whole: nn.Module) -> Iterator[None]:
    """A forward hook that returns None does something else, such as to record a value. A compiled step would not repeat it."""
    named = {f"module {name.removeprefix('model.')!r}": (m._forward_hooks, m._forward_pre_hooks) for name, m in whole.named_modules()}
    before = [(owner, table, dict(table)) for owner, tables in named.items() for table in tables]
    silent: list[str] = []
    try:
        for owner, table, hooks in before:
            watched = {number: hook for number, hook in hooks.items() if getattr(hook, "__module__", "") != _CAPTURING}
            table.update({number: _watched(owner, hook, silent) for number, hook in watched.items()})
        yield
    finally:
        for _, table, hooks in before:
            table.update(hooks)
    if silent:
        raise invalid(f"{silent[0]} returns None, and a compiled step repeats only what forward hooks return; remove it")


def _watched(owner: str, hook: Any, silent: list[str]) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        if (made := hook(*args, **kwargs)) is None:
            silent.append(f"the forward hook {getattr(hook, '__qualname__', type(hook).__name__)} of {owner}")
        return made

    return run


_CAPTURING = "transformers.utils.output_capturing"  # its hooks return None, and record what a model itself returns
_Attributes = dict[tuple[str, str], tuple[dict[str, Any], Any, Any]]


def _attributes(model: nn.Module) -> _Attributes:
    """All attributes of all modules by path and name: where each is stored, its value, and a list of its elements."""
    found: _Attributes = {}
    for path, module in model.named_modules():
        own = vars(module)
        tables = [own, own["_parameters"], own["_buffers"]]
        for table in tables:
            for name, value in table.items():
                if not any(value is t for t in tables):
                    found[path, name] = (table, value, _elements(value))
    return found


def _elements(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else list(value) if isinstance(value, list | set) else None


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and _same(list(one.values()), list(other.values()))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return one is other or (isinstance(one, int | float | str | tuple) and type(one) is type(other) and bool(one == other))


@contextlib.contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Refuses attributes that forward changes and random numbers of Python and NumPy: the program would hold them as
    constants. Gives the attributes their values back, so no tensor of the trace stays in the model."""
    before, drawn = _attributes(model), (random.getstate(), str(np.random.get_state()))
    changed: list[str] = []
    try:
        yield
    finally:
        after = _attributes(model)
        for (path, name), (table, _, _) in after.items():
            if (path, name) not in before:
                changed.append(f"{path}.{name}")
                del table[name]
        for (path, name), (table, value, elements) in before.items():
            found = after.get((path, name))
            if found and _same(found[1], value) and _same(found[2], elements):
                continue
            changed.append(f"{path}.{name}")
            table[name] = value
            if isinstance(value, dict | set):
                value.clear()
                value.update(elements)
            elif isinstance(value, list):
                value[:] = elements
    if changed:
        names = ", ".join(dict.fromkeys(name.removeprefix("model.") for name in changed))
        raise invalid(f"the model changes {names} in forward, which a compiled step cannot repeat; change it outside of forward")
    if drawn != (random.getstate(), str(np.random.get_state())):
        raise invalid("the model draws random numbers of Python or NumPy in forward; draw them outside, and pass them in the batch")


@contextlib.contextmanager
def _kept(model: nn.Module) -> Iterator[None]:
    """torch.export runs in-place ops on tensors that are plain attributes of modules. They get their values back. A loss
    needs no cache of keys and values, which transformers' models return by default."""
    tensors = [x for module in model.modules() for x in vars(module).values() if type(x) is torch.Tensor]
    values = [x.detach().clone() for x in tensors]
    every: list[Any] = [getattr(module, "config", None) for module in model.modules()]
    configs = {id(config): config for config in every if getattr(config, "use_cache", None) is True}
    if capturing := sys.modules.get(_CAPTURING):  # some models install these hooks in their first call
        for module in model.modules():
            if hasattr(type(module), "_can_record_outputs"):
                capturing.maybe_install_capturing_hooks(module)
    for config in configs.values():
        config.use_cache = False
    try:
        yield
    finally:
        for config in configs.values():
            config.use_cache = True
        for x, value in zip(tensors, values, strict=True):
            if not torch.equal(x, value):
                x.detach().copy_(value)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Of an error in the trace PyTorch would print the whole stack, although it raises it, too."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


class _Whole(nn.Module):
    """A model and its loss as one module."""

    def __init__(self, model: nn.Module, loss_fn: Any) -> None:
        super().__init__()
        self.model, self.loss_fn = model, loss_fn

    def forward(self, *batch: Any, **named: Any) -> Any:
        with _unchanged(self):
            return self._loss(*batch, **named)

    def _loss(self, *batch: Any, **named: Any) -> Any:
        if self.loss_fn is not None:
            return self.loss_fn(self.model(*batch[:-1]), batch[-1])
        out = self.model(*batch, **named)
        loss = out if isinstance(out, torch.Tensor) else getattr(out, "loss", None)
        if loss is None:
            raise invalid(f"the model returns an object of type {type(out).__name__} without .loss; give loss_fn, or return the loss")
        return loss


Axes = frozenset[tuple[int, int]]  # a tensor's number in the batch, and one of its axes


def export(
    model: nn.Module, loss_fn: Any, batch: tuple[Any, ...], named: dict[str, Any], axes: Axes = frozenset()
) -> torch.export.ExportedProgram:
    """axes: those whose sizes may change. The program fixes those that the model or torch.export cannot leave open."""
    with torch.inference_mode(False):
        batch, named = tuple(map(_distinct, batch)), {name: _distinct(x) for name, x in named.items()}
    of = [{axis: torch.export.Dim.AUTO for i, axis in axes if i == number} or None for number in range(len(batch) + len(named))]
    parts = {"batch": tuple(of[: len(batch)]), "named": dict(zip(named, of[len(batch) :], strict=True))}
    dynamic = {name: part for name, part in parts.items() if part} if axes else None
    whole = _Whole(model, loss_fn)
    with _exporting, torch.inference_mode(False), _swapped(), _hooks_that_return(whole), _kept(model), _quiet():
        try:
            program = torch.export.export(whole, batch, named, dynamic_shapes=dynamic, strict=False)
        except GuardOnDataDependentSymNode as error:
            raise invalid(f"{_raised_at(error, model)}: {READS_VALUES}") from error
        except Error as error:
            raise invalid(f"{where}: {error}" if (where := _raised_at(error, model)) else str(error)) from None
        except (ValueError, RuntimeError, IndexError) as error:
            if dynamic or (found := _shape_error(whole, batch, named)) is None or type(found) is not type(error):
                raise
            where = _raised_at(found, model) or "the model and its loss"
            raise invalid(f"{where} cannot compute a batch of shapes {_shapes(batch, named)}: {found}") from error
    _inline_without_grad(program.graph)
    for node in program.graph.nodes:
        if node.op == "get_attr":
            _refuse_block(node)
    _name_layers(program.graph)
    program.graph.eliminate_dead_code()
    _return_what_is_written(program)
    return program


def _distinct(x: Any) -> Any:
    """Another object with the same memory. torch.export knows tensors by identity: one that is given twice, or is a buffer of
    the model, would be one input of the program."""
    if not isinstance(x, torch.Tensor):
        return x
    return x.clone() if x.is_inference() else x.detach()  # torch.export would enter the mode for it


def _inline_without_grad(graph: torch.fx.Graph) -> None:
    """The blocks under torch.no_grad() become part of the program, and their results are detached."""
    for node in list(graph.nodes):
        if op_name(node) != "wrap_with_set_grad_enabled" or node.args[0]:
            continue
        block: torch.fx.Graph = getattr(graph.owning_module, node.args[1].target).graph
        given: dict[Any, Any] = dict(zip((n for n in block.nodes if n.op == "placeholder"), node.args[2:], strict=True))
        for inner in block.nodes:
            if _writes_outside(inner, given):
                raise invalid(f"{place(inner)}: torch.no_grad() around {op_name(inner)}, which changes a value from outside in place, is not supported")
        if any(n.op == "get_attr" for n in block.nodes):
            continue  # blocks within the block
        with graph.inserting_before(node):
            made: Any = graph.graph_copy(block, given)
            made = [_itself(x) for x in made]
            results = [x if x in node.args else _made_for(graph, node, torch.ops.aten.detach.default, (x,), {}, x.meta["val"]) for x in made]
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
        block_of = node.args[1]
        graph.erase_node(node)
        graph.erase_node(block_of)


def _itself(node: Any) -> Any:
    """What an op has returned that had nothing to do: then it returns its argument, which keeps its gradient."""
    while node.op == "call_function":
        name, args = op_name(node), node.args
        same = name in ("aten::to", "aten::type_as") and node.meta["val"].dtype == args[0].meta["val"].dtype
        same |= name == "aten::contiguous" and args[0].meta["val"].is_contiguous()
        idle = "dropout" in name and (args[1] == 0 or (len(args) > 2 and args[2] is False))
        flat = name == "aten::flatten" and node.meta["val"].dim() == args[0].meta["val"].dim()
        if not (same or idle or flat) or node.kwargs.get("copy"):
            break
        node = args[0]
    return node


def _writes_outside(node: Node, given: dict[Any, Any]) -> bool:
    """An in-place op on a value from outside of its block. Buffers and tensors of the batch have no gradient."""
    if not getattr(getattr(node.target, "_schema", None), "is_mutable", False):
        return False
    written: Any = node.args[0]
    while written not in given and is_view(written):
        written = written.args[0]
    return written in given and given[written].op != "placeholder"


def _refuse_block(node: Node) -> None:
    """A block of the program that runs under another rule."""
    user = next(iter(node.users), node)
    kind = op_name(user)
    inner = getattr(node.graph.owning_module, str(node.target), None)
    inside = [n for n in inner.graph.nodes if n.op == "call_function"] if isinstance(inner, torch.fx.GraphModule) else []
    at = place(inside[0]) if inside else place(user)
    if "set_grad" in kind:
        raise invalid(f"{at}: torch.enable_grad() in forward, or blocks within torch.no_grad(), are not supported")
    if "autocast" in kind:
        raise invalid(f"{at}: torch.autocast in forward is not supported; Remat computes in float32")
    raise invalid(f"{at}: {kind}: control flow is not supported")


def _return_what_is_written(program: torch.export.ExportedProgram) -> None:
    """In-place ops on constants, and on what the program makes of integers, become ops that return a result, so that they
    may be run in any order: y[:, 1:] = x becomes y = slice_scatter(y, x, 1, 1). Later readers of y, also through slices,
    read the result. Where y is written or read later through other views, the op stays, and the translation refuses it."""
    graph, known = program.graph, _known(program)
    late = list(graph.nodes)
    for node in list(graph.nodes):
        late.remove(node)
        if not _writes(node, known):
            continue
        parts, whole = _parts(node.args[0])
        target = _returning(node)
        if target is None or any(user in late for view in _other_views(whole, late, node) for user in view.users):
            continue
        with graph.inserting_before(node):
            made = _made_for(graph, node, target, node.args, node.kwargs, node.meta["val"])
            for part in parts:
                args = (part.args[0], made, *part.args[1:])
                made = _made_for(graph, node, _SCATTERS[op_name(part)], args, {}, part.args[0].meta["val"])
            written = made
            for part in reversed(parts):
                written = _made_for(graph, part, part.target, (written, *part.args[1:]), part.kwargs, part.meta["val"])
            _read_from(graph, whole, made, late)
        node.replace_all_uses_with(written)
        graph.erase_node(node)
        known = _known(program)


_SCATTERS = {"aten::slice": torch.ops.aten.slice_scatter.default, "aten::select": torch.ops.aten.select_scatter.default}


def _known(program: torch.export.ExportedProgram) -> set[Node]:
    """What depends on neither parameters nor real numbers of the batch: constants, and what is made of integers."""
    held = program.graph_signature.inputs_to_lifted_tensor_constants | program.graph_signature.inputs_to_buffers
    known: set[Node] = set()
    for node in program.graph.nodes:
        if node.op == "placeholder":
            value = node.meta.get("val")
            made_of_known = node.name in held or (isinstance(value, torch.Tensor) and not value.dtype.is_floating_point)
        else:
            made_of_known = all(n in known for n in node.all_input_nodes)
        if made_of_known:
            known.add(node)
    return known


def _writes(node: Node, known: set[Node]) -> bool:
    """An in-place op on constants, or on what the program has made of integers."""
    target: Any = node.target
    if node.op != "call_function" or not getattr(getattr(target, "_schema", None), "is_mutable", False):
        return False
    whole = _parts(node.args[0])[1]
    made = isinstance(whole, Node) and whole.op == "call_function" and not is_view(whole)
    if not made or torch.Tag.nondeterministic_seeded in target.tags:
        return False
    return node in known or not whole.meta["val"].dtype.is_floating_point


def _returning(node: Node) -> Any:
    """The op that returns what an in-place one writes: aten::fill for aten::fill_, aten::__or__ for aten::__ior__."""
    name = op_name(node).removeprefix("aten::")
    name = f"__{name[3:]}" if name.startswith("__i") else name.rstrip("_")
    return getattr(getattr(torch.ops.aten, name, None), node.target._overloadname, None)  # type: ignore[union-attr]


def _parts(view: Any) -> tuple[list[Any], Any]:
    """Slices of slices of a tensor, the smallest first, and the tensor."""
    parts = []
    while isinstance(view, Node) and op_name(view) in _SCATTERS:
        parts.append(view)
        view = view.args[0]
    return parts, view


def _other_views(whole: Node, late: list[Node], writer: Node) -> Iterator[Node]:
    """Views of the tensor, other than slices, that are made before it is written."""
    for view in whole.users:
        if view not in late and view is not writer and view.args[0] is whole:
            if op_name(view) in _SCATTERS:
                yield from _other_views(view, late, writer)
            elif is_view(view):
                yield view
                yield from _other_views(view, late, writer)


def _read_from(graph: torch.fx.Graph, old: Node, new: Node, late: list[Node]) -> None:
    """Late readers of a tensor, or of slices of it, read another one."""
    for view in list(old.users):
        if view not in late and op_name(view) in _SCATTERS and view.args[0] is old and any(user in late for user in view.users):
            copy = _made_for(graph, view, view.target, (new, *view.args[1:]), view.kwargs, view.meta["val"])
            _read_from(graph, view, copy, late)
    old.replace_all_uses_with(new, delete_user_cb=lambda user: user in late)


def _made_for(graph: torch.fx.Graph, node: Node, target: Any, args: Any, kwargs: Any, value: Any) -> Node:
    """A node at the place of another one in the user's code."""
    made = graph.call_function(target, args, kwargs)
    made.meta = {**node.meta, "val": value}
    return made


READS_VALUES = (
    "forward reads the values of a tensor, such as by `if`, float(), .item() or a mask as an index, and a captured step would "
    "repeat what they are now; use torch.where or a product with the mask, or pass the number in the batch"
)


def _raised_at(error: Exception, model: nn.Module) -> str:
    """The module's path and the line of the user's code in which tracing raised an error; empty if it was not there."""
    module, line, paths = "", "", {id(m): name for name, m in model.named_modules()}
    inside = False
    for frame, number in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        inside = inside or isinstance(first, _Whole)
        module = paths.get(id(first), module)
        at = f'File "{code.co_filename}", line {number}, in {code.co_name}'
        line = line if not inside or at.startswith(_NOT_THE_USERS) else at
    return f"module {module!r}, {line}" if module and line else f"the model, {line}" if line else ""


def _shapes(batch: tuple[Any, ...], named: dict[str, Any]) -> str:
    given = {str(i): x for i, x in enumerate(batch, 1)} | named
    return ", ".join(f"{n}: {tuple(x.shape)}" for n, x in given.items() if isinstance(x, torch.Tensor))


def _shape_error(whole: nn.Module, batch: tuple[Any, ...], named: dict[str, Any]) -> Exception | None:
    """PyTorch's own error for a batch of these shapes, with numbers where torch.export may write symbols. Computes nothing."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        given = [mode.from_tensor(x, static_shapes=True) if isinstance(x, torch.Tensor) else x for x in (*batch, *named.values())]
        try:
            whole(*given[: len(batch)], **dict(zip(named, given[len(batch) :], strict=True)))
        except Exception as error:
            return error
    return None


Sizes = dict[Any, Any]  # of torch.export's symbols


def sizes_of(program: torch.export.ExportedProgram, batch: list[Any]) -> Sizes | None:
    """The symbols' values for a batch; None: the program is not for such a batch."""
    made: Sizes = {}
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    tensors = [(values[n], x) for n, x in zip(program.graph_signature.user_inputs, batch, strict=True) if isinstance(x, torch.Tensor)]
    pairs = [(want, have) for value, x in tensors for want, have in zip(value.shape, x.shape, strict=True)]
    for want, have in pairs:
        if isinstance(want, torch.SymInt) and want.node.expr.is_symbol:
            made.setdefault(want.node.expr, sympy.Integer(have))
    if any(concrete(want, made) != have for want, have in pairs):
        return None
    environment = next((want.node.shape_env for want, _ in pairs if isinstance(want, torch.SymInt)), None)
    if any(not limits.lower <= made[s] <= limits.upper for s, limits in program.range_constraints.items() if s in made):
        return None
    guards = [environment.replace(guard.expr).xreplace(made) for guard in environment.guards] if environment else []
    return None if sympy.false in guards else made


def concrete(value: Any, sizes: Sizes) -> Any:
    """The number that a symbolic one is for these sizes; an expression of a symbol without a size."""
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value
    made = value.node.expr.xreplace(sizes)
    if made.free_symbols:
        return made
    return bool(made) if isinstance(value, torch.SymBool) else int(made) if isinstance(value, torch.SymInt) else float(made)


def op_name(node: Node) -> str:
    """Such as "aten::linear"."""
    target: Any = node.target
    return str(target._schema.name) if hasattr(target, "_schema") else getattr(target, "__name__", str(target))


def is_view(node: Node) -> bool:
    """Its result, or a part of it, may share its memory with its first operand."""
    if node.target is operator.getitem:
        return isinstance(node.args[0], Node) and is_view(node.args[0])
    returns = getattr(getattr(node.target, "_schema", None), "returns", ())
    return any(r.alias_info is not None for r in returns)


def place(node: Node) -> str:
    """The module's path and the line of the user's code."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values() if path]
    module = paths[-1].removeprefix("model").removeprefix(".") if paths else ""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip().startswith("File")]
    own = [line for line in lines if not line.startswith(_NOT_THE_USERS)]
    where = f"module {module!r}" if module else "the model"
    return f"{where}, {own[-1]}" if own else where


# ---- Layers that models write out -----------------------------------------------------------------------------------

_X, _NUMBER, _COS, _SIN = object(), object(), object(), object()
_CUBE = ("mul", ("pow", _X, 3.0), 0.044715)
_GELU = (  # GPT-2's gelu_new
    "mul",
    ("mul", _X, 0.5),
    ("add", ("tanh", ("mul", ("add", _X, _CUBE), math.sqrt(2 / math.pi))), 1.0),
)
_RMS_NORM = ("mul", _X, ("rsqrt", ("add", ("mean", ("pow", _X, 2.0), [-1], True), _NUMBER)))  # Llama's and T5's
_ROTARY = ("add", ("mul", _X, _COS), ("mul", ("cat", [("neg", ("slice", _X)), ("slice", _X)], -1), _SIN))


def _matches(pattern: Any, given: Any, found: dict[Any, Any]) -> bool:
    if pattern in (_X, _NUMBER, _COS, _SIN):
        right = isinstance(given, int | float) if pattern is _NUMBER else isinstance(given, Node)
        return right and found.setdefault(pattern, given) is given
    if isinstance(pattern, list):
        return isinstance(given, list) and len(given) == len(pattern) and all(map(_matches, pattern, given, [found] * len(given)))
    if isinstance(pattern, int | float):
        return isinstance(given, int | float) and math.isclose(given, pattern, rel_tol=1e-6)
    if not isinstance(given, Node) or op_name(given) != f"aten::{pattern[0]}":
        return False
    wanted = pattern[1:]
    have = given.args[:1] if pattern[0] == "slice" else given.args  # _halves looks at the others
    for order in (have, have[::-1]) if pattern[0] in ("add", "mul") else (have,):
        trial = dict(found)
        if len(order) == len(wanted) and all(_matches(p, g, trial) for p, g in zip(wanted, order, strict=True)):
            found.update(trial)
            return True
    return False


def _halves(node: Node) -> bool:
    """The slices of a rotation are the last axis's second half and its first."""
    cats = [n for mul in node.all_input_nodes for n in mul.all_input_nodes if op_name(n) == "aten::cat" and len(n.all_input_nodes) == 2]
    cat = next(n for n in cats if op_name(n.all_input_nodes[0]) == "aten::neg")  # not that of the angles
    second, first = cat.all_input_nodes[0].all_input_nodes[0], cat.all_input_nodes[1]
    value = node.meta["val"]
    half, last = value.shape[-1] // 2, value.dim() - 1
    return [*second.args[1:3], *first.args[1:4]] == [last, half, last, 0, half]


def _name_layers(graph: torch.fx.Graph) -> None:
    for node in graph.nodes:
        found: dict[Any, Any] = {}
        if node.op != "call_function":
            continue
        if _matches(_GELU, node, found):
            node.target, node.args = torch.ops.aten.gelu.default, (found[_X],)
            node.kwargs = {"approximate": "tanh"}
        elif _matches(_RMS_NORM, node, found := {}):
            width = [int(node.meta["val"].shape[-1])]
            node.target, node.args = torch.ops.aten.rms_norm.default, (found[_X], width, None, found[_NUMBER])
        elif _matches(_ROTARY, node, found := {}) and _halves(node):
            node.target, node.args = torch.ops.remat.rotary.default, (found[_X], found[_COS], found[_SIN])

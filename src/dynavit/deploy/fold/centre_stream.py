"""LayerNorm's mean removal, moved into what writes the tokens that it reads.

LN(x) is RMS(x - mean(x)). Where everything that LayerNorms read, the residual stream of a transformer, is a sum of outputs of
linear layers, of convolutions and of parameters, and nothing but LayerNorms reads it, each writer can give its part with
mean zero, and the LayerNorms become RMS norms. W' = (I - 11^T/c) W, b' = b - mean(b), and likewise for parameters.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from ...norms import LayerNorm
from .graph import (
    LINEARS,
    argument,
    constant_along,
    export_quietly,
    graph_of,
    moved_labels,
    moves_values,
    operator_name,
    place,
    short_name,
    tensor_at,
)
from .plan import FoldPlan
from .sites import known_forward
from .steps import DropMean, paths_of


@dataclass(eq=False)
class Stream:
    """Values that are added to each other, what writes them and which LayerNorms read them."""

    values: set[fx.Node] = field(default_factory=set)
    writers: set[fx.Node] = field(default_factory=set)  # calls of linear layers, and placeholders of parameters
    readers: set[fx.Node] = field(default_factory=set)
    problem: str = ""


def centre_streams(model: nn.Module, plan: FoldPlan, example: Tensor) -> dict[str, str]:
    """In place. For every LayerNorm without weight and bias: its path -> why its mean removal stays, empty if it moved."""
    if not any(_removable(module) for module in model.modules()):
        return {}
    program = export_quietly(model, example)
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    graph = graph_of(program)
    paths = {node: place(node).removeprefix(" in ") for node in graph.nodes if operator_name(node) == "aten::layer_norm"}
    readers = {node: path for node, path in paths.items() if _removable(model.get_submodule(path))}
    streams = _streams(readers, names)
    for stream in streams:
        stream.problem = stream.problem or _mixed_channels(stream, graph) or _shared_tensors(model, stream, names, graph)
    return _rewrite(model, plan, streams, readers, names)


def _removable(module: nn.Module) -> bool:
    # By name: timm's subclass is the same, others of its subclasses bring the channels to the last axis first.
    is_ln = isinstance(module, LayerNorm | nn.LayerNorm) and type(module).__name__ == "LayerNorm"
    return is_ln and known_forward(module) and module.weight is None and module.bias is None


def _streams(readers: dict[fx.Node, str], names: dict[str, str]) -> list[Stream]:
    """Everything that is connected by additions and movements of values."""
    streams: list[Stream] = []
    for reader in readers:
        value: Any = reader.args[0]
        if any(value in stream.values for stream in streams):
            continue
        stream = Stream()
        streams.append(stream)
        waiting = [value]
        while waiting:
            node = waiting.pop()
            if node in stream.values:
                continue
            stream.values.add(node)
            stream.readers |= {user for user in node.users if user in readers and user.args[0] is node}
            if _passes(node):
                waiting += node.all_input_nodes
            elif node.name in names or (operator_name(node) in LINEARS and not _in_groups(node)):
                stream.writers.add(node)
            else:
                what = "the model's input" if node.op == "placeholder" else short_name(operator_name(node))
                what += " in groups" if operator_name(node) in LINEARS else ""
                stream.problem = stream.problem or f"its input is also written by {what}{place(node)}"
                continue  # nothing will be moved, and half the model may hang on such a value
            for user in node.users:
                if _passes(user):
                    waiting.append(user)
                elif user not in stream.readers:
                    what = "the caller of the model" if user.op == "output" else short_name(operator_name(user))
                    stream.problem = stream.problem or f"its input is also read by {what}{place(user)}"
    return streams


def _passes(node: fx.Node) -> bool:
    """Whether the mean over channels passes through: sums, movements and averages."""
    if operator_name(node) == "aten::add":
        return all(isinstance(part, fx.Node) for part in node.args[:2]) and argument(node, "alpha") == 1
    return node.op == "call_function" and moves_values(node)


def _in_groups(node: fx.Node) -> bool:
    """Whether channels of a convolution have inputs of their own, so that no weight could take their mean away."""
    return (argument(node, "groups") or 1) > 1


def _mixed_channels(stream: Stream, graph: fx.Graph) -> str:
    """Why channel i of a reader is not channel i of all its writers; empty if it is."""
    channels: set[int] = {argument(reader, "normalized_shape")[-1] for reader in stream.readers}
    if len(channels) != 1:
        return f"norms of {sorted(channels)} channels read the same values"
    (count,) = channels
    own = torch.arange(1, count + 1, dtype=torch.float64)
    labels: dict[Any, Any] = {}
    for node in graph.nodes:
        if node in stream.writers:
            shape = node.meta["val"].shape
            axis = 1 if operator_name(node).startswith("aten::conv") else len(shape) - 1
            if not shape or shape[axis] != count:
                return f"its input is also written by {node.name}, which has not {count} channels"
            labels[node] = own.reshape([-1 if at == axis else 1 for at in range(len(shape))]).expand(shape)
        elif node in stream.values:
            if operator_name(node) == "aten::add":
                first, second = torch.broadcast_tensors(*(labels[part] for part in node.args[:2]))
                labels[node] = first if torch.equal(first, second) else None
            else:
                labels[node] = moved_labels(node, labels)
            if labels[node] is None:
                return f"channels are mixed by {short_name(operator_name(node))}{place(node)}"
    for reader in stream.readers:
        arriving = constant_along(labels[reader.args[0]], -1)
        if arriving is None or not torch.equal(arriving, own):
            return "its channels are in another order than those of its writers"
    return ""


def _shared_tensors(model: nn.Module, stream: Stream, names: dict[str, str], graph: fx.Graph) -> str:
    """Why the writers cannot be changed; empty if they can."""
    written = _written(model, stream, names)
    if written is None:
        return "its input is also written by a layer whose weight is computed"
    for node in graph.nodes:
        if node.op != "placeholder" or node.name not in names or tensor_at(model, names[node.name]) not in written:
            continue
        for user in node.users if node not in stream.writers else ():
            if user not in stream.writers or argument(user, "input") is node:
                return f"{names[node.name]} is also used{place(user)}"
    return ""


def _written(model: nn.Module, stream: Stream, names: dict[str, str]) -> dict[Tensor, int] | None:
    """The tensors to centre, with their axis of channels; None if one of them is not the model's own."""
    written = {}
    for node in stream.writers:
        parts = [(node, -1)]
        if operator_name(node) in LINEARS:
            parts = [(part, 0) for part in (argument(node, "weight"), argument(node, "bias")) if part is not None]
        for part, axis in parts:
            if part.name not in names:
                return None
            written[tensor_at(model, names[part.name])] = axis
    return written


@torch.no_grad()
def _rewrite(
    model: nn.Module, plan: FoldPlan, streams: list[Stream], readers: dict[fx.Node, str], names: dict[str, str]
) -> dict[str, str]:
    # A LayerNorm that is called on several streams changes only if all of them do, and they only with it.
    problems = {path: stream.problem for stream in streams if stream.problem for path in (readers[r] for r in stream.readers)}
    while spread := [s for s in streams if not s.problem and any(readers[r] in problems for r in s.readers)]:
        for stream in spread:
            stream.problem = "a LayerNorm that reads its input reads other values too"
            problems |= {readers[r]: stream.problem for r in stream.readers if readers[r] not in problems}
    for stream in streams:
        for tensor, axis in ((_written(model, stream, names) or {}) if not stream.problem else {}).items():
            wide = tensor.double()
            tensor.copy_(wide - wide.mean(axis, keepdim=True))
    for path in dict.fromkeys(path for path in readers.values() if path not in problems):
        plan.take(model, DropMean(paths_of(model, model.get_submodule(path))))
    return {path: problems.get(path, "") for path in readers.values()}

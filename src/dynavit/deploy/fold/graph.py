"""The readers of each norm's output, found in the graph of the model and not by names.

The model is exported with every norm replaced by a marker. Then labels walk through the graph in place of numbers: a marker,
a linear layer and a convolution give each of their output channels a label of its own, and operators that only move values
(reshape, roll, window partition, concatenation, padding, ...) are run on these labels. Where an operator computes, the labels
that arrive say exactly whose channels it reads, and in which order, whatever happened on the way.

Labels: 0 is the number zero, put there by padding; -1 any other value; 1, 2, ... channels.
"""

import copy
import operator
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from .sites import Site, activations, without_affine

ZERO, FOREIGN = 0, -1

MOVES = {
    f"aten::{name}"
    for name in (
        "alias", "cat", "chunk", "clone", "concat", "contiguous", "constant_pad_nd", "detach", "expand", "expand_as", "flatten",
        "flip", "im2col", "movedim", "narrow", "pad", "permute", "pixel_shuffle", "pixel_unshuffle", "repeat", "reshape",
        "reshape_as", "roll", "select", "slice", "split", "split_with_sizes", "squeeze", "stack", "swapaxes", "t",
        "tensor_split", "transpose", "unbind", "unflatten", "unfold", "unsqueeze", "unsafe_chunk", "unsafe_split", "view",
        "view_as", "_unsafe_view",
    )
}  # fmt: skip
PADS = {"aten::pad", "aten::constant_pad_nd"}
AVERAGES = {"aten::mean", "aten::adaptive_avg_pool2d"}
LINEARS = {"aten::linear", "aten::conv1d", "aten::conv2d", "aten::conv3d"}


@torch.library.custom_op("dynavit::fold_site", mutates_args=())
def fold_site(x: Tensor, site: int, axis: int) -> Tensor:
    """Marks the output of a norm in a graph."""
    return x.clone()


@fold_site.register_fake
def _(x: Tensor, site: int, axis: int) -> Tensor:
    return torch.empty_like(x)


@dataclass(eq=False)
class Source:
    """A module whose output channels have the labels first, ..., first + channels - 1."""

    channels: int
    first: int = 0
    reads: list["Read"] = field(default_factory=list)
    by_size: bool = False  # a pad stands behind it: it may add nothing here, and zeros to inputs of another size


@dataclass(eq=False)
class Marker(Source):
    """A norm."""

    site: Site = field(kw_only=True)
    inputs: list[Tensor | None] = field(default_factory=list)  # labels of each call's input, channels last


@dataclass(eq=False)
class Linear(Source):
    """The weight of a linear layer or a convolution, with all its calls."""

    weight: str = ""
    bias: str | None = None  # None: it has none
    groups: int = 1
    padded: bool = False  # with zeros, in some call
    trouble: str = ""  # why weight and bias cannot be changed
    calls: list[fx.Node] = field(default_factory=list)
    inputs: list[Tensor | None] = field(default_factory=list)  # labels (c_in) of each call; None: they differ, or none arrives


@dataclass(eq=False)
class Read:
    """One operator that reads channels of a source."""

    labels: Tensor  # sorted
    by: Linear | Marker | None  # None: something that computes otherwise
    what: str


AnySource = TypeVar("AnySource", bound=Source)


def trace_flow(model: nn.Module, sites: list[Site], example: Tensor) -> tuple[list[Marker], list[Linear]]:
    """Follow channels through the model: a marker for each of these norms, and all linear layers and convolutions."""
    walk = _Walk(model, sites, export_quietly(_marked(model, sites), example))
    return walk.markers, list(walk.linears.values())


def export_quietly(model: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    """The graph of a model in evaluation, for the shapes of this example."""
    try:
        # Some models keep tensors of a pass on themselves, which export warns of; this is a copy that nobody runs.
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(model, (example,), strict=False)
    except Exception as error:  # torch.export raises many kinds
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{type(model).__name__} cannot be folded: torch.export could not draw its graph for an input of shape "
            f"{tuple(example.shape)} ({type(error).__name__}: {reason})"
        ) from error


def graph_of(program: torch.export.ExportedProgram) -> fx.Graph:
    """The graph of a program without its checks of metadata, which would count as readers."""
    graph = program.graph_module.graph
    for node in list(graph.nodes):
        if operator_name(node) == "aten::_assert_tensor_metadata":
            graph.erase_node(node)
    graph.eliminate_dead_code()
    return graph


def _marked(model: nn.Module, sites: list[Site]) -> nn.Module:
    marked = copy.deepcopy(model)
    for index, site in enumerate(sites):
        if site.scale is None or site.trouble:
            continue
        norm = marked.get_submodule(site.path)
        norm.forward = _marking(norm, index, site)  # not another module: hooks stay
    return marked


def _marking(norm: nn.Module, index: int, site: Site) -> Callable[..., Tensor]:
    """The forward of a norm with a marker where its map is applied, and the map left out."""
    compute, after = norm.forward, list(activations(norm).values()) if site.whole else []
    if not site.whole:
        without_affine(norm)

    def forward(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if kwargs.get("mask") is not None or (len(args) > 1 and args[1] is not None):
            site.trouble = "it is called with a mask, and sets padding to zero"
            return compute(x, *args, **kwargs)
        assert site.scale is not None
        if x.shape[site.axis] != len(site.scale):
            raise ValueError(f"{site.path} maps {len(site.scale)} channels and receives {tuple(x.shape)}")
        y = torch.ops.dynavit.fold_site(x if site.whole else compute(x, *args, **kwargs), index, site.axis)
        for part in after:
            y = part(y)
        return y

    return forward


class _Walk:
    """One walk of labels through a graph."""

    def __init__(self, model: nn.Module, sites: list[Site], program: torch.export.ExportedProgram) -> None:
        self.model = model
        signature = program.graph_signature
        self.names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}  # placeholder -> name in the model
        self.sources: list[Source] = []
        self.markers = [self._add(Marker(0 if s.scale is None else len(s.scale), site=s)) for s in sites]
        self.linears: dict[Tensor, Linear] = {}
        self.labels: dict[Any, Any] = {}  # of each node's value: a tensor, or one for each of several results
        graph = graph_of(program)
        last_reader = {used: node for node in graph.nodes for used in node.all_input_nodes}
        for node in graph.nodes:
            self._visit(node)
            for used in node.all_input_nodes:
                if last_reader[used] is node:
                    self.labels.pop(used, None)
        self._check_parameters(graph)

    def _add(self, source: AnySource) -> AnySource:
        source.first = 1 + sum(s.channels for s in self.sources)
        self.sources.append(source)
        return source

    def _visit(self, node: fx.Node) -> None:
        name = operator_name(node)
        if name in LINEARS:
            self._visit_linear(node, axis=-1 if name == "aten::linear" else 1)
        elif name == "dynavit::fold_site":
            self._visit_marker(node)
        elif any(self.labels.get(used) is not None for used in node.all_input_nodes):
            moved = moved_labels(node, self.labels) if moves_values(node) else None
            if name in PADS:
                for source, _ in self._sources_in(self.labels[node.args[0]]):
                    source.by_size = True
            if moved is None:
                what = (
                    "it is an output of the model" if node.op == "output" else f"it is read by {short_name(name)}{place(node)}"
                )
                for used in node.all_input_nodes:
                    self._read(self.labels.get(used), None, what)
            self.labels[node] = moved

    def _visit_marker(self, node: fx.Node) -> None:
        x, index, axis = (argument(node, name) for name in ("x", "site", "axis"))
        marker, labels = self.markers[index], self.labels.get(x)
        marker.inputs.append(None if labels is None else labels.movedim(axis, -1))
        self._read(labels, marker, f"it feeds another norm, {marker.site.path}")
        self.labels[node] = _fresh(marker, node, axis)

    def _visit_linear(self, node: fx.Node, axis: int) -> None:
        x, weight = argument(node, "input"), argument(node, "weight")
        labels = self.labels.get(x)
        for role in ("weight", "bias"):
            self._read(self.labels.get(argument(node, role)), None, f"it is the {role} of a layer{place(node)}")
        if weight.op != "placeholder" or weight.name not in self.names:
            self._read(labels, None, f"the weight it meets{place(node)} is computed")
            return
        linear = self._linear_of(node, self.names[weight.name])
        vector = None if labels is None else constant_along(labels, axis)
        linear.calls.append(node)
        linear.inputs.append(vector)
        linear.padded |= _pads(node)
        if labels is None or vector is not None:
            self._read(vector, linear, linear.weight)
        else:
            between = (
                "zeros are padded between it and" if bool((labels == ZERO).any()) else "it is joined to other tokens before"
            )
            self._read(labels, None, f"{between} {linear.weight}")
        self.labels[node] = _fresh(linear, node, axis)

    def _linear_of(self, node: fx.Node, name: str) -> Linear:
        weight, bias = tensor_at(self.model, name), argument(node, "bias")
        bias_name = None if bias is None else self.names.get(bias.name, "")
        if weight not in self.linears:
            linear = Linear(weight.shape[0], weight=name, bias=bias_name, groups=argument(node, "groups") or 1)
            self.linears[weight] = self._add(linear)
        linear = self.linears[weight]
        if bias_name == "":
            linear.trouble = f"the bias beside {name} is computed"
        elif bias_name != linear.bias:
            linear.trouble = f"{name} is used with several biases"
        return linear

    def _read(self, labels: Any, by: "Linear | Marker | None", what: str) -> None:
        """Note that an operator reads these channels."""
        for source, mine in self._sources_in(labels):
            source.reads.append(Read(mine, by, what))

    def _sources_in(self, labels: Any) -> Iterator[tuple[Source, Tensor]]:
        """The sources of these labels, each with those that are its own."""
        for part in labels if isinstance(labels, list | tuple) else () if labels is None else (labels,):
            seen = _without_copies(part).unique()
            for source in self.sources:
                mine = seen[(seen >= source.first) & (seen < source.first + source.channels)]
                if len(mine):
                    yield source, mine

    def _check_parameters(self, graph: fx.Graph) -> None:
        """A weight or bias that anything but its own linear reads cannot be changed."""
        owner = {}
        for linear in self.linears.values():
            owner[tensor_at(self.model, linear.weight)] = (linear, "weight")
            if linear.bias:
                bias = tensor_at(self.model, linear.bias)
                if bias in owner:
                    owner[bias][0].trouble = linear.trouble = f"{linear.bias} belongs to several layers"
                owner[bias] = (linear, "bias")
        for node in graph.nodes:
            name = self.names.get(node.name) if node.op == "placeholder" else None
            if name is None or (tensor := tensor_at(self.model, name)) not in owner:
                continue
            linear, role = owner[tensor]
            for user in node.users:
                if user not in linear.calls or argument(user, role) is not node:
                    linear.trouble = f"{name} is also read by {short_name(operator_name(user))}{place(user)}"


def moves_values(node: fx.Node) -> bool:
    """Whether an operator only moves values, or averages them."""
    name = operator_name(node)
    if name == "aten::dropout":
        return not argument(node, "train")
    if name in ("aten::to", "aten::_to_copy"):
        return bool(node.args[0].meta["val"].dtype == node.meta["val"].dtype)  # type: ignore[union-attr]
    if name in PADS:
        return not argument(node, "value")
    return node.target is operator.getitem or name in MOVES or name in AVERAGES


def moved_labels(node: fx.Node, labels: dict[Any, Any]) -> Any:
    """The labels of what such an operator returns; None where it averages different ones."""
    x: Any = node.args[0]
    name = operator_name(node)
    if node.target is operator.getitem:
        return labels[x][node.args[1]]
    if name in ("aten::dropout", "aten::to", "aten::_to_copy"):
        return labels[x]
    if name == "aten::mean":
        dims, keep = argument(node, "dim") or list(range(labels[x].dim())), bool(argument(node, "keepdim"))
        return _if_equal(labels[x], lambda part: part.amax(dims, keep))
    if name == "aten::adaptive_avg_pool2d":
        size = argument(node, "output_size")
        return _if_equal(labels[x], lambda part: F.adaptive_max_pool2d(part, size))

    def labels_of(used: fx.Node) -> Any:
        known = labels.get(used)
        return torch.full(used.meta["val"].shape, FOREIGN, dtype=torch.float64) if known is None else known

    target: Any = node.target
    return target(*fx.map_arg(node.args, labels_of), **fx.map_arg(node.kwargs, labels_of))


def tensor_at(model: nn.Module, name: str) -> Tensor:
    """A parameter or buffer."""
    parent, _, leaf = name.rpartition(".")
    return getattr(model.get_submodule(parent), leaf)


def operator_name(node: fx.Node) -> str:
    return node.target._schema.name if isinstance(node.target, torch._ops.OpOverload) else str(node.target)


def argument(node: fx.Node, name: str) -> Any:
    """An argument of a call by its name, however it was passed."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    for at, declared in enumerate(target._schema.arguments):
        if declared.name == name:
            return node.args[at] if at < len(node.args) else node.kwargs.get(name, declared.default_value)
    return None


def place(node: fx.Node) -> str:
    """ " in path.of.module", where the call stands."""
    stack = node.meta.get("nn_module_stack") or {"": ("", "")}
    path = list(stack.values())[-1][0].partition("@")[0]  # path@1: the second call of a module
    return f" in {path}" if path else ""


def constant_along(labels: Tensor, axis: int) -> Tensor | None:
    """The labels of each channel, (c), if they are the same at all places of the other axes."""
    rows = _without_copies(labels, keep=axis).movedim(axis, -1)
    rows = rows.reshape(-1, rows.shape[-1])
    return rows[0] if bool((rows == rows[:1]).all()) else None


def _without_copies(labels: Tensor, keep: int | None = None) -> Tensor:
    """Length 1 along axes that only repeat: sources start as views with stride 0, and most operators keep them so."""
    for axis, stride in enumerate(labels.stride()):
        if stride == 0 and (keep is None or axis != keep % labels.dim()):
            labels = labels.narrow(axis, 0, min(1, labels.shape[axis]))
    return labels


def _fresh(source: Source, node: fx.Node, axis: int) -> Tensor:
    """The labels of a source's output."""
    shape = node.meta["val"].shape
    labels = torch.arange(source.first, source.first + source.channels, dtype=torch.float64)
    return labels.reshape([-1 if at == axis % len(shape) else 1 for at in range(len(shape))]).expand(shape)


def _if_equal(labels: Tensor, largest: Callable[[Tensor], Tensor]) -> Tensor | None:
    """Labels behind an average: kept where it averages over equal ones, for an affine map passes through it."""
    high, low = largest(labels), -largest(-labels)
    return high if torch.equal(high, low) else None


def _pads(node: fx.Node) -> bool:
    padding = argument(node, "padding")
    if isinstance(padding, str):
        weight = argument(node, "weight").meta["val"]
        return padding == "same" and max(weight.shape[2:]) > 1
    return any(padding) if isinstance(padding, list | tuple) else bool(padding)


def short_name(name: str) -> str:
    return name.rpartition("::")[2]

"""Move the affine map of a norm into the weights of the layers around it.

Forward, into everything that reads y = a x + c:    W (a x + c) + b  =  (W diag(a)) x + (b + W c)
Backward, into what makes x = W u + b:              a (W u + b) + c  =  (diag(a) W) u + (a b + c)

A convolution takes a map as a linear layer does, the shift summed over its taps, but not through zero padding: padded zeros do
not get the shift. All in float64, cast at the end.
"""

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from .graph import Linear, Marker, constant_along, place, tensor_at
from .plan import FoldPlan
from .steps import AddBias


def forward_problem(model: nn.Module, marker: Marker) -> str:
    """Why this map cannot go into what reads it; empty if it can."""
    shifts = marker.site.shift is not None  # not its values: runs without a plan fold a fresh model, see stored
    for read in marker.reads:
        linear = read.by
        if not isinstance(linear, Linear):
            return read.what
        first = linear.inputs[0]
        if linear.trouble:
            return linear.trouble
        if first is None or any(other is None or not torch.equal(first, other) for other in linear.inputs):
            return f"{linear.weight} also reads something else"
        if shifts and linear.padded:
            return f"{linear.weight} pads it with zeros, which would need the shift"
        if shifts and not can_have_bias(model, linear):
            return f"{linear.weight} cannot be given a bias"
    return ""


def backward_problem(model: nn.Module, marker: Marker, linears: list[Linear]) -> str:
    """Why this map cannot go into what makes its input; empty if it can."""
    if not marker.site.whole:
        return "only a whole affine map can go backward"
    joined = _meetings(marker)
    if joined is None:
        return "no linear layer makes its input"
    labels, _ = joined
    if len(labels.unique()) < len(labels):
        return "one channel of its input meets several of its own"
    rest = labels
    for linear, mine in _owners(labels, linears):
        rest = rest[~torch.isin(rest, mine)]
        if linear.trouble:
            return linear.trouble
        for read in linear.reads:
            if read.by is not marker and bool(torch.isin(mine, read.labels).any()):
                return f"its input, made by {linear.weight}, is read by others too"
        if not can_have_bias(model, linear):
            return f"{linear.weight} cannot be given a bias"
    return "its input is not made by linear layers alone" if len(rest) else ""


def _meetings(marker: Marker) -> tuple[Tensor, Tensor] | None:
    """The pairs of a label of its input and the channel that it meets: two vectors, each pair once."""
    pairs = []
    for labels in marker.inputs:
        if labels is None:
            return None
        vector = constant_along(labels, -1)
        labels = labels if vector is None else vector
        at = torch.arange(marker.channels, dtype=labels.dtype).expand(labels.shape)
        pairs.append(torch.unique(labels * marker.channels + at))
    if not pairs:
        return None
    codes = torch.cat(pairs).unique()
    return torch.div(codes, marker.channels, rounding_mode="floor"), torch.remainder(codes, marker.channels)


def _owners(labels: Tensor, linears: list[Linear]) -> list[tuple[Linear, Tensor]]:
    found = [(linear, labels[(labels >= linear.first) & (labels < linear.first + linear.channels)]) for linear in linears]
    return [(linear, mine) for linear, mine in found if len(mine)]


class Rewriter:
    """Collects the maps that go into each linear layer, then writes all weights once."""

    def __init__(self, model: nn.Module, plan: FoldPlan, linears: list[Linear]) -> None:
        self.model, self.plan, self.linears = model, plan, linears
        self.before: dict[Linear, tuple[Tensor, Tensor]] = {}  # maps of inputs: scale and shift (c_in)
        self.after: dict[Linear, tuple[Tensor, Tensor]] = {}  # maps of outputs: scale and shift (c_out)
        self.shifted: set[Linear] = set()  # which need a bias

    def forward(self, marker: Marker) -> list[str]:
        """Move a map into the readers of its norm; returns the names of their weights."""
        site, readers = marker.site, {read.by: None for read in marker.reads if isinstance(read.by, Linear)}
        assert site.scale is not None
        for linear in readers:
            labels = linear.inputs[0]
            assert labels is not None
            scale, shift = self.before.setdefault(linear, _nothing(len(labels)))
            mine = (labels >= marker.first) & (labels < marker.first + marker.channels)
            channel = (labels[mine] - marker.first).long()
            scale[mine] = site.scale.cpu()[channel]
            if site.shift is not None:
                shift[mine] = site.shift.cpu()[channel]
                self.shifted.add(linear)
        return [linear.weight for linear in readers]

    def backward(self, marker: Marker) -> list[str]:
        """Move a map into the layers that make the input of its norm; returns the names of their weights."""
        site, joined = marker.site, _meetings(marker)
        assert site.scale is not None and site.shift is not None and joined is not None
        labels, at = joined
        owners = _owners(labels, self.linears)
        for linear, mine in owners:
            scale, shift = self.after.setdefault(linear, _nothing(linear.channels))
            channel = at[torch.isin(labels, mine)].long()
            out = (mine - linear.first).long()
            scale[out], shift[out] = site.scale.cpu()[channel], site.shift.cpu()[channel]
            self.shifted.add(linear)
        return [linear.weight for linear, _ in owners]

    @torch.no_grad()
    def write(self) -> None:
        for linear in self.linears:
            if linear not in self.before and linear not in self.after:
                continue
            parameter = tensor_at(self.model, linear.weight)
            weight = parameter.double()
            bias = weight.new_zeros(len(weight)) if linear.bias is None else tensor_at(self.model, linear.bias).double()
            if linear in self.before:
                scale, shift = (part.to(weight.device) for part in self.before[linear])
                scale, shift = (_for_groups(part, linear.groups, weight) for part in (scale, shift))
                bias = bias + (weight * shift).flatten(1).sum(1)
                weight = weight * scale
            if linear in self.after:
                scale, shift = (part.to(weight.device) for part in self.after[linear])
                bias = scale * bias + shift
                weight = weight * scale.reshape(-1, *[1] * (weight.dim() - 1))
            parameter.copy_(weight)
            bias_name = linear.bias
            if bias_name is None and linear in self.shifted:
                path = linear.weight.rpartition(".")[0]
                self.plan.take(self.model, AddBias(path))
                bias_name = f"{path}.bias".removeprefix(".")
            if bias_name is not None:
                tensor_at(self.model, bias_name).copy_(bias)


def can_have_bias(model: nn.Module, linear: Linear) -> bool:
    """It has one, or its module would use one if it had."""
    if linear.bias is not None:
        return True
    path, _, name = linear.weight.rpartition(".")
    module = model.get_submodule(path)
    if name != "weight" or not isinstance(module, nn.Linear | _ConvNd):
        return False
    return all(model.get_submodule(place(call).removeprefix(" in ")) is module for call in linear.calls)


def _nothing(channels: int) -> tuple[Tensor, Tensor]:
    return torch.ones(channels, dtype=torch.float64), torch.zeros(channels, dtype=torch.float64)


def _for_groups(values: Tensor, groups: int, weight: Tensor) -> Tensor:
    """(c_in) -> (c_out, c_in / groups, 1, ...): what each output channel's own inputs get."""
    rows = values.reshape(groups, -1).repeat_interleave(len(weight) // groups, 0)
    return rows.reshape(*rows.shape, *[1] * (weight.dim() - 2))

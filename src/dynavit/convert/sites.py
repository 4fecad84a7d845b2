"""Norms of a model and their surroundings, read from its modules alone: which block, which attention, in front of what.

Models are recognised by structure, not by name or library: an attention is a module that has a number of heads, a block is a
module that holds a norm and an attention side by side.
"""

import re
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ..norms import Norm

Site = Literal["attn", "mlp", "other", "linear_bn"]
Place = Literal["block", "inside", "per head", "embedding", "merging", "outside"]

HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nheads", "nhead", "heads")
EPS_NAMES = ("eps", "variance_epsilon", "epsilon")
PROJECTIONS = (
    "qkv",
    "q",
    "query",
    "to_qkv",
    "to_q",
    "q_proj",
    "qkv_proj",
    "c_attn",
    "in_proj_weight",
    "qk",
    "w_qs",
    "kv",
    "qkvs",
)

_ATTENTION = re.compile(r"attn|attention|gpsa|xca|mhsa", re.I)
_MLP = re.compile(r"mlp(?!s)|feed_?forward|ffn(?!s)|^ff$|swiglu", re.I)
_LAYER_NORM = re.compile(r"(layer|rms)_?norm|^ln$", re.I)
_BEFORE_ATTENTION = re.compile(
    r"^(norm_?1|ln_?1|layer_?norm_?1|norm1_attn|layernorm_before|attention_norm|attn_norm|norm_attn|norm_attention|input_layernorm)$"
)
_BEFORE_MLP = re.compile(
    r"^(norm_?2|ln_?2|layer_?norm_?2|layernorm_after|ffn_norm|mlp_norm|norm_mlp|norm_ffn|post_attention_layernorm)$"
)
_PER_HEAD = re.compile(r"^(q|k|qk|query|key)_?(norm|ln|layernorm)$|^norm_?(q|k|qk)$")
_EMBEDDING = re.compile(r"embed|stem|tokens_to_token|to_patch", re.I)
_MERGING = re.compile(r"downsample|merg|reduction|pool|transition", re.I)


@dataclass
class OldNorm:
    """A norm that is to be replaced: what its successor may take over."""

    kind: str  # "ln", "rms", or a class name
    dim: int
    eps: float
    weight: Tensor | None
    bias: Tensor | None
    channels_first: bool = False
    trouble: str = ""  # why it cannot be replaced at all


@dataclass
class LocatedNorm:
    """A norm and its surroundings."""

    path: str
    module: nn.Module
    old: OldNorm
    place: Place
    site: Site = "other"
    block: str = ""
    depth: int | None = None  # index of the block, counted through the model
    heads: int | None = None
    attention: str = ""  # the class the heads come from
    also: tuple[str, ...] = ()  # other paths of the same module


def find_norms(model: nn.Module) -> list[LocatedNorm]:
    """Every norm of the LayerNorm family, in the order of the model's modules."""
    modules = dict(model.named_modules(remove_duplicate=False))
    attentions = _attentions(modules)
    aliases: dict[int, list[str]] = {}
    for path, module in modules.items():
        aliases.setdefault(id(module), []).append(path)
    ours = [f"{path}." for path, module in modules.items() if isinstance(module, Norm)]
    found = []
    for path, module in model.named_modules():
        old = read_norm(module)
        if old is None or path.startswith(tuple(ours)):  # parts of a norm belong to it
            continue
        item = LocatedNorm(path, module, old, "outside", also=tuple(aliases[id(module)][1:]))
        _locate(item, modules, attentions)
        found.append(item)
    blocks = {block: index for index, block in enumerate(dict.fromkeys(item.block for item in found if item.block))}
    for item in found:
        item.depth = blocks.get(item.block)
    return found


def _attentions(modules: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """Attentions by path; a module that holds one and an MLP beside it is a block, whatever it is called (MaxViT)."""
    found = {path: module for path, module in modules.items() if heads_of(module) is not None and is_attention(module)}
    mlps = [path for path, module in modules.items() if is_mlp(path, module)]

    def is_block(path: str) -> bool:
        inside = f"{path}."
        return any(other.startswith(inside) for other in found) and any(mlp.startswith(inside) for mlp in mlps)

    return {path: module for path, module in found.items() if not is_block(path)}


def heads_of(module: nn.Module) -> int | None:
    if isinstance(module, Norm):
        return None
    for name in HEAD_COUNTS:
        value = getattr(module, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def is_attention(module: nn.Module) -> bool:
    return bool(_ATTENTION.search(type(module).__name__)) or any(
        isinstance(getattr(module, name, None), nn.Module | Tensor) for name in PROJECTIONS
    )


def is_mlp(path: str, module: nn.Module) -> bool:
    """By its name or its class's; or a plain sequence of linear layers that ends with as many channels as it began."""
    name = type(module).__name__
    if "Head" not in name and (_MLP.search(name) or _MLP.search(path.rpartition(".")[2])):
        return True
    linears = [child for child in module.children() if isinstance(child, nn.Linear)]
    return isinstance(module, nn.Sequential) and len(linears) > 1 and linears[0].in_features == linears[-1].out_features


def read_norm(module: nn.Module) -> OldNorm | None:
    """The norm that a module of the LayerNorm family is; None for any other module."""
    if isinstance(module, Norm):
        return OldNorm(_kind(module), module.dim, module.eps, module.weight, module.bias)
    name = type(module).__name__
    if not isinstance(module, nn.LayerNorm | nn.RMSNorm) and not _LAYER_NORM.search(name):
        return None
    weight = _first_tensor(module, ("weight", "gamma", "g", "scale"))
    shape = getattr(module, "normalized_shape", None)
    if shape is None and weight is not None:
        shape = tuple(n for n in weight.shape if n > 1) or tuple(weight.shape[-1:])
    if shape is None and any(True for _ in module.children()):
        return None  # a container that is named after what it contains
    shape = (shape,) if isinstance(shape, int) else tuple(shape or ())
    eps = next((float(value) for value in (getattr(module, e, None) for e in EPS_NAMES) if isinstance(value, float)), None)
    if eps is None:  # torch's RMSNorm means the precision of its numbers
        eps = torch.finfo((weight if weight is not None else torch.empty(0)).dtype).eps if hasattr(module, "eps") else 1e-5
    first = "2d" in name.lower() or getattr(module, "data_format", "") == "channels_first"
    bias = _first_tensor(module, ("bias", "beta", "b"))
    old = OldNorm(_kind(module), shape[0] if shape else 0, eps, weight, bias, first)
    if len(shape) != 1:
        old.trouble = f"normalises over {len(shape)} axes {shape}" if shape else "its number of channels cannot be read"
    elif any(not isinstance(child, nn.Identity) for child in module.children()):
        inside = ", ".join(type(child).__name__ for child in module.children() if not isinstance(child, nn.Identity))
        old.trouble = f"holds more than a norm ({inside}), which a swap would drop"
    return old


def _kind(module: nn.Module) -> str:
    name = type(module).__name__
    if isinstance(module, Norm):  # one that starts as LayerNorm remains it if it has nothing to mix
        return module.starts_as if module.starts_as is not None and not module.mixing_parameters else name
    if isinstance(module, nn.LayerNorm) or re.search(r"layer_?norm|^ln$", name, re.I):
        return "ln"
    return "rms" if isinstance(module, nn.RMSNorm) or re.search("rms", name, re.I) else name


def static_prefix(model: nn.Module) -> int:
    """Class, distillation and register tokens, by what the model says of itself."""
    count = getattr(model, "num_prefix_tokens", None)
    if isinstance(count, int):
        return count
    count = 0
    for name in ("cls_token", "class_token", "dist_token", "reg_token", "register_tokens"):
        token = getattr(model, name, None)
        if isinstance(token, Tensor) and token.dim() == 3:
            count += token.shape[1]
    return count


def _first_tensor(module: nn.Module, names: tuple[str, ...]) -> Tensor | None:
    return next((value for value in (getattr(module, name, None) for name in names) if isinstance(value, torch.Tensor)), None)


def _locate(item: LocatedNorm, modules: dict[str, nn.Module], attentions: dict[str, nn.Module]) -> None:
    parts = item.path.split(".")
    ancestors = [".".join(parts[:depth]) for depth in range(len(parts) - 1, -1, -1)]  # nearest first, "" is the model
    inside = next((path for path in ancestors if path and (path in attentions or is_mlp(path, modules[path]))), None)
    for ancestor in ancestors:
        if inside is not None and len(ancestor) >= len(inside):
            continue
        attention = _attention_beside(ancestor, item.path, attentions, inside)
        if attention is not None and not (ancestor in attentions and inside is None):
            item.block, item.place = ancestor, "block"
            item.heads, item.attention = heads_of(attentions[attention]), type(attentions[attention]).__name__
            break
    where = ".".join(parts[:-1])
    if inside is not None:
        item.place = "per head" if _PER_HEAD.search(parts[-1]) else "inside"
        item.site = "attn" if inside in attentions else "mlp"
    elif item.place == "block":
        if _PER_HEAD.search(parts[-1]):
            item.place = "per head"
        item.site = _site_by_name(parts[-1], modules[item.block])
    elif _EMBEDDING.search(where):
        item.place = "embedding"
    elif _MERGING.search(where):
        item.place = "merging"


def _attention_beside(block: str, norm: str, attentions: dict[str, nn.Module], inside: str | None) -> str | None:
    """The attention that shares a block with the norm: not one of many, in a list that the norm stands outside of.

    Args:
        inside: the attention or MLP that the norm stands in.
    """
    start = f"{block}." if block else ""
    sequences = [path for path in attentions if path.startswith(start)]
    if len(sequences) == 1 and inside and inside.rpartition(".")[0] == block:
        # Two sequences side by side, one with the attention, one the MLP itself.
        way = sequences[0][len(start) :].split(".")
        if len(way) == 2 and way[1].isdigit():
            return sequences[0]
    for path in attentions:
        if not path.startswith(start) or path == block:
            continue
        way = path[len(start) :].split(".")
        norm_way = norm[len(start) :].split(".")
        listed = any(part.isdigit() for part in way)
        if (
            len(way) == 1
            or not listed
            or (block and any(part.isdigit() for part in norm_way[:-1]) and not way[0].isdigit() and way[0] != norm_way[0])
        ):
            return path
    return None


def _site_by_name(name: str, block: nn.Module) -> Site:
    if isinstance(block, nn.TransformerDecoderLayer):
        return "mlp" if name == "norm3" else "attn"
    if _BEFORE_ATTENTION.search(name):
        return "attn"
    return "mlp" if _BEFORE_MLP.search(name) else "other"

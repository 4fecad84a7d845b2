"""Start a training from weights that exist: `--init-from`.

The source's weights are brought step by step into the form of the model's: what the model has and the source has not gets the
model's own fresh value, what the model has no use for is removed, the rest is resampled where grids differ. Each step says what
it did. Whatever differs after them is an error, unless the user wants a partial fit, and only without one is the model touched.
"""

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ..common.network import hub_address, offline_hub, require_network
from ..common.newer_state import newer_names
from ..convert.sites import heads_of, read_norm
from ..convert.start import set_start
from ..models.cascade import Cascade
from ..models.cascade.from_vit import exits_from_vit, is_plain_vit, reuse_names, silence_reuse
from ..models.cascade.plain_form import foreign_part, plain_form
from ..models.layers import resize_positions
from ..models.released import import_released
from ..models.sound_weights import check_sound
from ..norms import Norm
from ..norms.linear_share import LinearShares
from .foreign import TIMM
from .model_files import load_with_source, read_state

State = dict[str, Tensor]

KINDS = "a run directory, a .safetensors or .pth file, or timm:NAME"
MOST_PREFIX_TOKENS = 8  # class, distillation and register tokens that may have positions in front of the patches'
SHOWN = 4  # names in an error
VIT_BLOCK, EXIT_BLOCK = "blocks.0.attn", "exits.0.blocks.0.attn"

# Names that only releases have, so that `import_released` knows what to do.
_RELEASED = re.compile(
    r"transformer\.layers\.|(less_less|less|normal)_token\.|"
    r".*\.norm\d?\.(mean_norm_weight|var_norm_weight|bn\.running_mean|scale)$"
)
_POSITIONS = re.compile(r"pos_embed\d*")


@dataclass(frozen=True)
class Source:
    """Weights, and the model they belong to where that is known: it tells what shapes do not, such as grids and heads."""

    name: str
    weights: State
    model: nn.Module | None = None


@dataclass(frozen=True)
class TokenPlaces:
    """The tokens that positions belong to: `prefix` tokens in front, then patches on a grid."""

    grid: tuple[int, int]
    prefix: int


def initial_weights(model: nn.Module, source: str, *, partial: bool = False) -> list[str]:
    """Load weights into `model` in place; what was taken, what starts fresh and what was resampled, as notes for the user.

    The classifier starts fresh where the number of classes differs, and so do parameters and buffers of norms that the source
    has not; positions and patch embeddings are resampled. Every exit of a cascade can start from a plain vision transformer,
    and the backbone of a detector (`pretrained_part`) from a classifier.
    Everything else has to fit, and all numbers have to be finite: if not, ValueError, and `model` is as it was.

    Args:
        source: a run directory (the last checkpoint, averaged weights if it kept any), a .safetensors file, a file of
            torch.save (read as weights only), a release's checkpoint, or timm:NAME, which may need a network.
        partial: take what fits. The rest of the model starts fresh, the rest of the source is left out, and notes say so.
    """
    given = read_source(source)
    own = model.state_dict()
    part = getattr(model, "pretrained_part", None)
    if isinstance(part, nn.Module) and not own.keys() & given.weights.keys():
        given, ends = _without_ends(part, given)
        return [*_load(part, given, source, partial), *ends]
    return _load(model, given, source, partial)


def _load(model: nn.Module, given: Source, source: str, partial: bool) -> list[str]:
    own = model.state_dict()
    cascade = model if isinstance(model, Cascade) and is_plain_vit(given.weights) else None
    if cascade is not None:
        given = _spread_over_exits(cascade, own, given)
    if not own.keys() & given.weights.keys():
        raise ValueError(
            f"{source} has nothing in common with the model: its names are {_some(given.weights)}, the model's {_some(own)}"
        )
    _check_heads(model, given)
    weights = dict(given.weights)
    notes = _resample_positions(model, own, given, weights)
    notes += _match_class_token(own, weights)
    notes += _adapt_patches(model, own, weights)
    notes += _replace_classifier(model, own, weights)
    _give_layer_norms(model, given, weights)
    notes += _match_norms(model, own, weights)
    notes += _match_the_rest(source, own, weights, partial)
    check_sound(source, ((name, tensor, own[name]) for name, tensor in weights.items() if tensor is not own[name]))
    model.load_state_dict(weights)
    taken = sum(tensor is not own[name] for name, tensor in weights.items())
    notes += _start_near_layer_norm(model, given)
    if cascade is not None:
        silence_reuse(cascade)
        notes.append(f"every exit starts from it, on its own grid; {len(reuse_names(cascade))} tensors of reuse start silent")
    return [f"{taken} of the model's {len(own)} tensors come from {given.name}", *notes]


def _without_ends(part: nn.Module, given: Source) -> tuple[Source, list[str]]:
    """A classifier's weights for the backbone of another model, without its classifier and last norm."""
    own = part.state_dict()
    ends = [name for name in given.weights if name not in own and name.startswith(("head.", "norm."))]
    kept = {name: tensor for name, tensor in given.weights.items() if name not in ends}
    notes = [f"they are for the backbone; the source's classifier is not used ({_some(ends)})"] if ends else []
    return Source(given.name, kept, given.model), notes


def read_source(source: str) -> Source:
    """The weights that `--init-from` names."""
    if source.startswith(TIMM):
        model = _pretrained(source.removeprefix(TIMM))
        return Source(source, model.state_dict(), model)
    path = Path(source)
    if path.is_dir():
        model, about = load_with_source(path)
        averaged = about["weights"] == "ema"
        return Source(f"{source} (averaged weights)" if averaged else source, model.state_dict(), model)
    if not path.exists():
        raise ValueError(f"{source}: no such file or directory; initial weights come from {KINDS}")
    state = read_state(path)
    if not any(_RELEASED.match(name) or (name.endswith(".running_phi") and value.dim() == 4) for name, value in state.items()):
        return Source(source, state)
    try:
        model = import_released(state)
    except ValueError as error:
        raise ValueError(
            f"{source}: {error}. A release's checkpoint that needs to be told more: dynavit.load_released(path, arch=..., "
            "norm=...), then write its state_dict() with safetensors and start from that file"
        ) from error
    return Source(f"{source} (released {model.import_report['arch']})", model.state_dict(), model)  # type: ignore[index]


def _pretrained(name: str) -> nn.Module:
    import timm

    if ":" not in name and not timm.is_model(name):  # timm's own schemes, hf-hub:..., have a colon
        close = difflib.get_close_matches(name, timm.list_models(), n=3, cutoff=0.4)
        raise ValueError(f"timm has no model {name!r}; the nearest are {', '.join(close) or 'none'}")
    try:
        with offline_hub():  # what was fetched before is there, and nobody is asked
            return timm.create_model(name, pretrained=True)
    except Exception:
        require_network(_address(name), f"the weights of {TIMM}{name}")
    try:
        return timm.create_model(name, pretrained=True)
    except Exception as error:  # timm, its hub and the network raise all kinds
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"the weights of {TIMM}{name} could not be downloaded ({reason}); timm fetches them over the network once and "
            "keeps them in its cache"
        ) from error


def _address(name: str) -> str:
    """Where timm fetches the weights of a model."""
    import timm

    known = None if ":" in name else timm.get_pretrained_cfg(name)
    return str(known.url) if known is not None and known.url and not known.hf_hub_id else hub_address()


def _spread_over_exits(cascade: Cascade, own: State, given: Source) -> Source:
    """A plain vision transformer as the source of a cascade: the same for every exit."""
    foreign = foreign_part(given.weights)
    if foreign is not None:
        raise ValueError(
            f"{given.name} has {foreign}: the exits of a cascade start from a vision transformer that answers from its class "
            "token and has no other tokens but patches, such as DeiT, DeiT III, DINO or DINOv2 without registers"
        )
    positions = given.weights["pos_embed"]
    places = _square(positions.shape[1]) if given.model is None else _layout(given.model, positions.shape[1])
    if positions.dim() != 3 or places is None or places.prefix > 1:
        raise ValueError(
            f"{given.name} has positions {_by(positions.shape)}; the exits of a cascade start from a vision transformer with "
            "one class token in front of a grid of patches"
        )
    if given.model is not None:
        have, want = (heads_of(model.get_submodule(path)) for model, path in ((given.model, VIT_BLOCK), (cascade, EXIT_BLOCK)))
        if have != want:
            raise ValueError(
                f"blocks have {have} heads in {given.name} and {want} in the cascade: the same shapes would mean different "
                f"things; build the cascade with {have} heads"
            )
    fresh = {name: own[name] for name in reuse_names(cascade)}
    weights = plain_form(given.weights, places.prefix)
    return Source(given.name, exits_from_vit(cascade, weights, places.grid) | fresh)


def _check_heads(model: nn.Module, source: Source) -> None:
    theirs = dict(source.model.named_modules()) if source.model is not None else {}
    for path, module in model.named_modules():
        have, want = heads_of(theirs.get(path, nn.Identity())), heads_of(module)
        if None not in (have, want) and have != want:
            raise ValueError(
                f"{path} has {have} heads in {source.name} and {want} in the model: the same shapes would mean different "
                f"things; build the model with {have} heads"
            )


def _resample_positions(model: nn.Module, own: State, source: Source, weights: State) -> list[str]:
    """Absolute positions (1, prefix + rows * cols, c) of another grid, or with another number of tokens in front."""
    notes = []
    for name in (name for name in own if _POSITIONS.fullmatch(name) and name in weights):
        if own[name].dim() != 3 or weights[name].dim() != 3:
            continue
        positions, count = weights[name], own[name].shape[1]
        if source.model is None and positions.shape[1] == count:
            continue  # nothing says that the grid is another one
        new = _layout(model, count)
        old = _square(positions.shape[1]) if source.model is None else _layout(source.model, positions.shape[1])
        if new is None or old is None or old == new or (old.prefix != new.prefix and old.prefix + new.prefix != 1):
            continue  # of tokens in front, only a class token can come or go
        positions = resize_positions(positions, old.grid, new.grid, old.prefix)
        if old.prefix > new.prefix:  # the token brings its position along, so that it enters with the same value
            if "cls_token" in weights:
                weights["cls_token"] = weights["cls_token"] + positions[:, :1]
            positions = positions[:, 1:]
        elif old.prefix < new.prefix:
            positions = torch.cat([torch.zeros_like(positions[:, :1]), positions], 1)
        weights[name] = positions
        if old.grid != new.grid:
            notes.append(f"{name} is resampled from {_by(old.grid)} to {_by(new.grid)} positions")
        if old.prefix != new.prefix:
            notes.append(f"{name} {'loses' if new.prefix < old.prefix else 'gains'} the position of the class token")
    return notes


def _layout(model: nn.Module, count: int) -> TokenPlaces | None:
    """The model's grid that `count` positions belong to; None if it has no such."""
    grids = [getattr(getattr(model, "patch_embed", None), "grid_size", None), getattr(model, "grid_size", None)]
    grids += getattr(model, "grids", None) or []
    layouts = [TokenPlaces((grid[0], grid[1]), count - math.prod(grid)) for grid in grids if grid is not None]
    return next((layout for layout in layouts if 0 <= layout.prefix <= MOST_PREFIX_TOKENS), None)


def _square(count: int) -> TokenPlaces | None:
    """A square grid, and the fewest tokens in front that leave one."""
    for prefix in range(min(count, MOST_PREFIX_TOKENS + 1)):
        side = math.isqrt(count - prefix)
        if side**2 == count - prefix:
            return TokenPlaces((side, side), prefix)
    return None


def _match_class_token(own: State, weights: State) -> list[str]:
    if "cls_token" in own and "cls_token" not in weights:
        weights["cls_token"] = own["cls_token"]
        return ["the class token starts fresh, the source has none"]
    if "cls_token" in weights and "cls_token" not in own:
        del weights["cls_token"]
        return ["the source's class token is not used, the model has none"]
    return []


def _adapt_patches(model: nn.Module, own: State, weights: State) -> list[str]:
    """The first convolution, where images have other channels or patches another size."""
    from timm.layers.patch_embed import resample_patch_embed
    from timm.models import adapt_input_conv

    path = (getattr(model, "default_cfg", None) or {}).get("first_conv")
    name = f"{path}.weight"
    if not isinstance(path, str) or name not in own or name not in weights:
        return []
    convolution, kernel, notes = model.get_submodule(path), weights[name], []
    if not isinstance(convolution, nn.Conv2d) or kernel.dim() != 4:
        return []
    channels, size = convolution.in_channels, convolution.kernel_size
    if (before := kernel.shape[1]) != channels and before in (1, 3):
        # Grey from colour, and colour from grey, so that an image with equal channels gives what it gave.
        kernel = kernel.expand(-1, channels, -1, -1) / channels if before == 1 else adapt_input_conv(channels, kernel)
        notes.append(f"{path} is adapted from {before} to {channels} channels")
    if kernel.shape[2:] != size and convolution.stride == size:  # else it is no cut into patches
        notes.append(f"{path} is resampled from patches of {_by(kernel.shape[2:])} to {_by(size)} pixels")
        kernel = resample_patch_embed(kernel, list(size))
    weights[name] = kernel
    return notes


def _replace_classifier(model: nn.Module, own: State, weights: State) -> list[str]:
    if not hasattr(model, "get_classifier"):
        return []
    heads = model.get_classifier()  # type: ignore[operator]
    heads, notes = heads if isinstance(heads, tuple | list) else [heads], []
    for path in (path for path, module in model.named_modules() if any(module is head for head in heads)):
        old, new = _below(path, weights), _below(path, own)
        if old and (_classes(old) == _classes(new) or _features(old) != _features(new)):
            continue  # it is the same, or of another model
        for name in old:
            del weights[name]
        weights |= new
        has, had = _classes(new), _classes(old)
        notes.append(f"the classifier {path} starts fresh: it has {has} classes, the source's {had or 'is missing'}")
    return notes


def _classes(classifier: State) -> int:
    return next((len(tensor) for tensor in classifier.values() if tensor.dim() > 1), 0)


def _features(classifier: State) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape[1:]) for tensor in classifier.values() if tensor.dim() > 1]


def _give_layer_norms(model: nn.Module, given: Source, weights: State) -> None:
    """Norms that begin as LayerNorm begin as the source's."""
    for path, module in model.named_modules():
        if isinstance(module, Norm) and _had_layer_norm(given, path):
            takes_over = {f"{path}.{own}": f"{path}.{old}" for own, old in module.inherited("ln").items()}
            weights |= {own: weights[old] for own, old in takes_over.items() if old in weights}


def _match_norms(model: nn.Module, own: State, weights: State) -> list[str]:
    """Tensors that only one of two kinds of norm has: λ and kernels, biases, running statistics."""
    fresh, unused = [], []
    for path in (path for path, module in model.named_modules() if _is_norm(module)):
        new, old = ([name for name in state if name.rpartition(".")[0] == path] for state in (own, weights))
        if set(new) != set(old):  # of the same kind, another shape does not fit
            fresh += [name for name in new if name not in weights or weights[name].shape != own[name].shape]
            unused += [name for name in old if name not in own]
    for name in unused:
        del weights[name]
    weights |= {name: own[name] for name in fresh}
    newer = newer_names(model)
    fresh = [name for name in fresh if name not in newer]  # a counter that starts at 0 is no news
    notes = [f"{len(fresh)} tensors of norms start fresh ({_some(fresh, 1)})"] if fresh else []
    return notes + ([f"{len(unused)} tensors of the source's norms are not used ({_some(unused, 1)})"] if unused else [])


def _start_near_layer_norm(model: nn.Module, given: Source) -> list[str]:
    """Norms that mix statistics begin with nearly all of LayerNorm's where the source has a LayerNorm, or with all of them if
    they can leave that end again: with half, where they start from scratch, the other weights would no longer fit."""
    begun = {"near": 0, "identity": 0}
    for path, module in model.named_modules():
        if not isinstance(module, Norm) or module.starts_as != "ln" or not module.mixing_parameters:
            continue
        known = any(f"{path}.{name}" in given.weights for name in module.mixing_parameters)
        if not known and _had_layer_norm(given, path):
            start = "identity" if isinstance(module, LinearShares) and module.can_be_exact else "near"
            set_start(module, start)
            begun[start] += 1
    where = {"near": "near the source's LayerNorm", "identity": "as the source's LayerNorm exactly"}
    return [f"{count} norms start {where[start]}" for start, count in begun.items() if count]


def _had_layer_norm(given: Source, path: str) -> bool:
    if given.model is None:  # names have to tell
        names = {name.rpartition(".")[2] for name in given.weights if name.rpartition(".")[0] == path}
        return names == {"weight", "bias"}
    try:
        old = read_norm(given.model.get_submodule(path))
    except AttributeError:
        return False
    return old is not None and old.kind == "ln"


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.GroupNorm | nn.modules.batchnorm._BatchNorm) or read_norm(module) is not None


def _match_the_rest(source: str, own: State, weights: State, partial: bool) -> list[str]:
    """ValueError if something does not fit; with `partial` the model's own tensors take its place."""
    missing = [name for name in own if name not in weights]
    surplus = [name for name in weights if name not in own]
    shared = sorted((name for name in own if name in weights), key=lambda name: own[name].dim() < 2)  # matrices tell more
    shapes = {name: (weights[name].shape, own[name].shape) for name in shared}
    wrong = {name: f"{name} {_by(have)} for {_by(want)}" for name, (have, want) in shapes.items() if have != want}
    problems = {"missing": missing, "surplus": surplus, "of another shape": list(wrong.values())}
    found = [f"{len(names)} {what}: {_some(names)}" for what, names in problems.items() if names]
    if partial:
        for name in surplus:
            del weights[name]
        weights |= {name: own[name] for name in (*missing, *wrong)}
        return [f"the weights fit in part; tensors {'; '.join(found)}"] if found else []
    if not found:
        return []
    remedy = "build the model these weights were made for (--model, --model_options.*), or take what fits with --init-partial"
    for names, value in ((surplus, "true"), (missing, "false")):
        if names and all(name.endswith(("qkv.bias", ".q.bias", ".kv.bias")) for name in names):
            remedy = f"set model_options.qkv_bias to {value}"
    raise ValueError(f"the weights of {source} do not fit the model. Tensors {'; '.join(found)}. Nothing was loaded; {remedy}")


def _below(path: str, state: State) -> State:
    return {name: tensor for name, tensor in state.items() if name.startswith(f"{path}.")}


def _by(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes)) or "scalar"


def _some(names: Mapping[str, object] | list[str], most: int = SHOWN) -> str:
    return ", ".join(list(names)[:most]) + (", ..." if len(names) > most else "")

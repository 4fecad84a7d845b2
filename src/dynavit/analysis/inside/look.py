"""`look_inside`: everything the figures show of one model, as plain numbers."""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from ...norms import DynamicTokenNorm
from ..probes import NormSite, attention_paths, norm_sites, observe, require
from ..probes.sites import unwrapped
from .attentions import AttentionMaps, AttentionRecorder, classifies_by_token
from .dtn import natures, positions
from .norms import NormMaps, NormRecorder


def look_inside(
    model: nn.Module,
    batches: Iterable[Tensor],
    shown: Tensor,
    *,
    layers: Sequence[str] = (),
    start: nn.Module | None = None,
    token: tuple[float, float] | None = None,
    outputs: list[Any] | None = None,
) -> dict[str, dict[str, Any]]:
    """The numbers behind the figures of a model, by kind. Each is one entry of "runs" in the file of that kind.

    For models with attention between tokens: ours, timm's, swapped ones, compiled or wrapped. The model runs in evaluation
    mode and is left as it was. Norms and attentions whose tokens cannot be placed on the image are named under "left_out".
    Of a model without norms in its blocks, a folded one, there are only the kinds about attention.

    Args:
        batches: images (b, c, height, width) that numbers are averaged over.
        shown: images (n, c, height, width) that maps are made of.
        layers: norms that maps and directions are shown of; the first, middle and last before an attention if not given.
        start: the model before training, for DTN's positional weights; a fresh one's if not given.
        token: whose positional weights are shown, as shares of the image's height and width; the middle one if not given.
        outputs: a list that the model's outputs are appended to, batch by batch.
    """
    sites = norm_sites(model)
    chosen = require("layer", layers, [site.path for site in sites]) if layers else _first_middle_last(sites)
    norms, attentions = NormRecorder(), AttentionRecorder()
    norm_maps, attention_maps = NormMaps(chosen), AttentionMaps(classifies_by_token(unwrapped(model)))
    left_out: dict[str, str] = {}

    def look(images: Tensor, on_norm: NormMaps | NormRecorder, on_attention: AttentionMaps | AttentionRecorder) -> Any:
        norm = on_norm if sites else None
        return observe(model, images, on_norm=norm, on_attention=on_attention, on_left_out=left_out.__setitem__)

    look(shown, norm_maps, attention_maps)
    answers = [look(images, norms, attentions) for images in batches]
    if not answers:
        raise ValueError("there are no images to look at")
    if outputs is not None:
        outputs += answers

    found: dict[str, dict[str, Any]] = {"attention_maps": attention_maps.attention_maps()}
    known = set(attention_paths(model))
    if distance := attentions.attention_distance():
        found["attention_distance"] = {**distance, "left_out": [path for path in left_out if path in known]}
    if not norms.seen:
        return found
    without = {"left_out": [path for path in left_out if path not in known]}
    with_grid = {path: (seen.norm, seen.grid) for path, seen in norms.seen.items()}
    found["magnitudes"] = {"layers": norms.magnitudes(), "maps": norm_maps.maps, **without}
    found["mean_variation"] = {"layers": norms.mean_variation(), **without}
    if norm_maps.directions:
        found["directions"] = {"layers": norm_maps.directions}
    if any(isinstance(norm, DynamicTokenNorm) for norm, _ in with_grid.values()):
        found["dtn_nature"] = {"layers": natures(with_grid, {path: seen.site for path, seen in norms.seen.items()})}
    if learned := positions(with_grid, start, token):
        found["positions"] = learned
    return found


def _first_middle_last(sites: Sequence[NormSite]) -> list[str]:
    """Of the norms before attention that are of the first one's class: some layers of a swapped model may keep LayerNorm."""
    before = [site for site in sites if site.site == "attn"] or list(sites)
    alike = [site.path for site in before if type(site.norm) is type(before[0].norm)]
    if not alike:
        return []
    return list(dict.fromkeys([alike[0], alike[len(alike) // 2], alike[-1]]))

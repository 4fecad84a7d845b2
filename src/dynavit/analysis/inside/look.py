"""`look_inside`: everything the figures show of one model, as plain numbers."""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from ...norms import DynamicTokenNorm
from ..probes import NormSite, norm_sites, observe, require
from .attentions import AttentionMaps, AttentionRecorder
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
    """What figures show of a model, by kind; each is one entry of the "runs" in analysis/<kind>.json.

    Works for any model with attention: ours, timm's, swapped ones, compiled or wrapped. It runs in evaluation mode and is
    left as it was. A model without norms in its blocks, a folded one, has only what attention shows.

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
    for images in batches:
        answer = observe(model, images, on_norm=norms if sites else None, on_attention=attentions)
        if outputs is not None:
            outputs.append(answer)
    if not attentions.distances:
        raise ValueError("there are no images to look at")
    norm_maps, attention_maps = NormMaps(chosen), AttentionMaps()
    observe(model, shown, on_norm=norm_maps if sites else None, on_attention=attention_maps)
    found: dict[str, dict[str, Any]] = {
        "attention_distance": attentions.attention_distance(),
        "attention_maps": attention_maps.attention_maps(),
    }
    if not sites:
        return found
    with_grid = {path: (seen.norm, seen.grid) for path, seen in norms.seen.items()}
    found |= {
        "magnitudes": {"layers": norms.magnitudes(), "maps": norm_maps.maps},
        "mean_variation": {"layers": norms.mean_variation()},
        "directions": {"layers": norm_maps.directions},
    }
    if any(isinstance(norm, DynamicTokenNorm) for norm, _ in with_grid.values()):
        found["dtn_nature"] = {"layers": natures(with_grid, {path: seen.site for path, seen in norms.seen.items()})}
    if learned := positions(with_grid, start, token):
        found["positions"] = learned
    return found


def _first_middle_last(sites: Sequence[NormSite]) -> list[str]:
    """Of the norms before attention that are like the first: a model of which some layers kept LayerNorm shows its own."""
    before = [site for site in sites if site.site == "attn"] or list(sites)
    alike = [site.path for site in before if type(site.norm) is type(before[0].norm)]
    if not alike:
        return []
    return list(dict.fromkeys([alike[0], alike[len(alike) // 2], alike[-1]]))

"""RoIAlign: a fixed grid of averages inside any box of a feature map. He et al. 2017, arXiv 1703.06870. Two exact forms.

A box corner c lies at c * scale - 1/2 on the map ("aligned"; without, at c * scale, and sides are at least 1). Its side is cut
into `bins`, each bin into `samples`; a bin is the mean of the bilinear values at its samples. A sample more than one cell
outside the map counts 0, nearer ones are moved onto the map's border.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 256  # boxes at once
SMALL = 400  # cells of a map, for each bin of a side, up to which two products beat sampling on a CPU (benchmarks/roi_forms.py)
FINEST = 56  # side in pixels where boxes leave the finest level


def roi_align(features: Tensor, boxes: Tensor, bins: int, scale: float, samples: int = 2, *, aligned: bool = True) -> Tensor:
    """(c, rows, cols), (k, 4) in pixels -> (k, c, bins, bins), by sampling: for large maps and few samples."""
    if not len(boxes):
        return features.new_zeros(0, len(features), bins, bins)
    axes = [_samples(boxes[:, at::2], bins, scale, samples, aligned) for at in (1, 0)]  # y, x: each (k, bins * samples)
    inside = [_inside(at, length) for at, length in zip(axes, features.shape[1:], strict=True)]
    # grid_sample counts from -1, the first cell's centre, to 1, the last one's.
    y, x = (2 * at.clamp(0, length - 1) / max(length - 1, 1) - 1 for at, length in zip(axes, features.shape[1:], strict=True))
    side = bins * samples
    places = torch.stack([x[:, None, :].expand(-1, side, -1), y[:, :, None].expand(-1, -1, side)], -1)  # (k, side, side, 2)
    stacked = places.reshape(1, len(boxes) * side, side, 2).to(features.dtype)
    values = F.grid_sample(features[None], stacked, mode="bilinear", padding_mode="border", align_corners=True)
    values = values.reshape(len(features), len(boxes), side, side).transpose(0, 1)
    counts = (inside[0][:, None, :, None] & inside[1][:, None, None, :]).to(values.dtype)
    return F.avg_pool2d(values * counts, samples)


def roi_align_separable(
    features: Tensor, boxes: Tensor, bins: int, scale: float, samples: int | None = None, *, aligned: bool = True
) -> Tensor:
    """The same as A_y F A_x^T with averaged hat functions: for small maps or few channels, and any number of samples.

    `samples` None: as many as a bin has cells, for each box and axis by itself.
    """
    rows, cols = (
        _averages(boxes[:, at::2], bins, scale, samples, aligned, length).to(features.dtype)
        for at, length in zip((1, 0), features.shape[1:], strict=True)
    )
    return torch.einsum("kph,chw,kqw->kcpq", rows, features, cols)


def level_of(boxes: Tensor, levels: int) -> Tensor:
    """(k, 4) -> (k,): a box twice as large comes from a level twice as coarse; 112, 224 and 448 pixels are the borders."""
    side = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).clamp_min(0).sqrt()
    return (side / FINEST + 1e-6).log2().floor().clamp(0, levels - 1).long()


def pool_rois(
    maps: Sequence[Tensor],
    strides: Sequence[int],
    boxes: Sequence[Tensor],
    bins: int,
    samples: int = 2,
    *,
    extents: Sequence[tuple[int, int]] | None = None,
) -> Tensor:
    """Boxes of each image, (k_i, 4), out of the level that fits them: maps (b, c, rows, cols) -> (sum k_i, c, bins, bins).

    `extents`, (height, width) of each image in pixels, end its maps where they would end without neighbours in the batch.
    """
    pooled = []
    for image, own in enumerate(boxes):
        level = level_of(own, len(maps))
        height, width = (None, None) if extents is None else extents[image]
        found = maps[0].new_zeros(len(own), maps[0].shape[1], bins, bins)
        for at, (features, stride) in enumerate(zip(maps, strides, strict=True)):
            chosen = (level == at).nonzero().flatten()
            if len(chosen):
                shown = features[image, :, : height and height // stride, : width and width // stride]
                form = roi_align_separable if shown[0].numel() <= SMALL * bins else roi_align
                parts = [form(shown, part, bins, 1 / stride, samples) for part in own[chosen].split(CHUNK)]
                found = found.index_copy(0, chosen, torch.cat(parts))
        pooled.append(found)
    return torch.cat(pooled)


def _extent(ends: Tensor, scale: float, aligned: bool) -> tuple[Tensor, Tensor]:
    """(k, 2) first and last coordinate on one axis -> start and length on the map, (k, 1) each."""
    ends = ends.to(torch.promote_types(ends.dtype, torch.float32)) * scale - (0.5 if aligned else 0.0)
    length = ends[:, 1:] - ends[:, :1]
    return ends[:, :1], length if aligned else length.clamp_min(1)


def _samples(ends: Tensor, bins: int, scale: float, samples: int, aligned: bool) -> Tensor:
    """Positions of all samples along one axis, (k, bins * samples)."""
    start, length = _extent(ends, scale, aligned)
    steps = torch.arange(bins * samples, device=ends.device, dtype=start.dtype) + 0.5
    return start + length * steps / (bins * samples)


def _inside(at: Tensor, length: int) -> Tensor:
    return (at >= -1) & (at <= length)


def _averages(ends: Tensor, bins: int, scale: float, samples: int | None, aligned: bool, length: int) -> Tensor:
    """The mean over each bin as weights of cells, (k, bins, length)."""
    start, extent = _extent(ends, scale, aligned)
    count = (extent / bins).ceil().clamp_min(1) if samples is None else torch.full_like(extent, samples)  # (k, 1)
    most = int(count.max()) if len(ends) else 1
    number = torch.arange(most, device=ends.device, dtype=start.dtype)
    bin_ = torch.arange(bins, device=ends.device, dtype=start.dtype)
    # (k, bins, most): sample u of bin i; numbers beyond a box's own count have no weight
    at = start[..., None] + extent[..., None] * (bin_[:, None] + (number + 0.5) / count[..., None]) / bins
    weight = _inside(at, length) & (number < count[..., None])
    share = weight.to(at.dtype) / count[..., None]
    at = at.clamp(0, length - 1)
    low = at.floor()
    above = at - low
    weights = at.new_zeros(len(ends), bins, length)
    weights.scatter_add_(2, low.long(), share * (1 - above))
    weights.scatter_add_(2, (low.long() + 1).clamp_max(length - 1), share * above)
    return weights

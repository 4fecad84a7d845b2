"""A few images of a split with what a model makes of them, small enough to live inside a JSON file."""

import base64
import io
from typing import Any

import torch
from torch import Tensor, nn

from ..data.config import DataConfig
from ..data.dataset import DataSet
from ..data.loader import make_loader
from ..engine.processes import Processes
from ..tasks.choose import final_logits

EXAMINED = 512  # images looked at
SHOWN = 24  # images kept
LARGEST_SIDE = 96  # pixels; a page is not an album


@torch.no_grad()
def sample_predictions(model: nn.Module, data: DataSet, split: str, processes: Processes) -> list[dict[str, Any]]:
    """The most confident mistakes among the first images, at most half of what is shown, and then images from the start."""
    alone = DataConfig(workers=0)  # a single batch is read by one process anyway
    loader = make_loader(
        data, split, train=False, batch_size=EXAMINED, config=alone, device=processes.device, dtype=processes.dtype
    )
    (batch,) = next(iter(loader.epoch()))
    confidence, predicted = final_logits(model(batch.inputs.to(processes.dtype))).softmax(-1).max(-1)
    mistakes = (predicted != batch.targets).nonzero().flatten()
    wrong: list[int] = mistakes[confidence[mistakes].argsort(descending=True)][: SHOWN // 2].tolist()
    right = [i for i in range(batch.count) if predicted[i] == batch.targets[i]][: SHOWN - len(wrong)]
    return [
        {
            "index": int(batch.index[i]),
            "image": data_uri(batch.inputs[i], data.mean, data.std),
            "target": int(batch.targets[i]),
            "prediction": int(predicted[i]),
            "confidence": float(confidence[i]),
        }
        for i in wrong + right
    ]


def data_uri(normalised: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> str:
    """(c, h, w) as it goes into a model -> a PNG inside a URI."""
    from PIL import Image

    channels = [value * s + m for value, m, s in zip(normalised.double().cpu(), mean, std, strict=True)]
    pixels = (torch.stack(channels).clamp(0, 1) * 255).round().byte().permute(1, 2, 0).squeeze(-1)
    image = Image.fromarray(pixels.numpy())
    image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()

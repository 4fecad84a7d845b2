"""Draws token_lengths.png: what LayerNorm does to the lengths of tokens, and DTN (the idea of the paper's Fig. 1).

python docs/norms/draw_token_lengths.py
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

import dynavit
from dynavit.data.open import open_data

GRID, CHANNELS, DIGITS = (8, 8), 32, (3, 2)


def main() -> None:
    torch.manual_seed(0)
    images = open_data("digits").splits["test"].images.float() / 255
    titles = ("image", "tokens", "after LayerNorm", "after InstanceNorm", "after DTN")
    figure, axes = plt.subplots(len(DIGITS), len(titles), figsize=(10, 4.6), squeeze=False, layout="constrained")
    for line, digit in zip(axes, DIGITS, strict=True):
        tokens = images[digit].flatten()[:, None] * torch.randn(CHANNELS) + 0.05 * torch.randn(64, CHANNELS)
        shown = [images[digit, 0], lengths(tokens)]
        for name in ("ln", "in", "dtn"):
            with torch.no_grad():
                shown.append(lengths(dynavit.create_norm(name, CHANNELS, heads=4)(tokens[None], grid=GRID)[0]))
        for axis, title, picture in zip(line, titles, shown, strict=True):
            axis.imshow(picture.numpy(), vmin=0, cmap="viridis")
            axis.set_axis_off()
            if digit == DIGITS[0]:
                axis.set_title(title, fontsize=12)
    figure.savefig(Path(__file__).with_name("token_lengths.png"), dpi=90, facecolor="white")


def lengths(tokens: torch.Tensor) -> torch.Tensor:
    return tokens.norm(dim=-1).reshape(GRID)


if __name__ == "__main__":
    main()

"""Draws positional_kernels.png: where each head of DTN looks before training (the paper's Fig. 7).

python docs/norms/draw_positional_kernels.py
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

from dynavit import DynamicTokenNorm

GRID, TOKEN = (14, 14), 91  # the paper's token: row 6, column 7
HEADS = (4, 6, 9)


def main() -> None:
    torch.manual_seed(0)
    rows = [(f"H = {heads}, Eqn 7", DynamicTokenNorm(heads * 8, heads=heads)) for heads in HEADS]
    rows.append(("H = 4, Eqn 7, integer offsets", DynamicTokenNorm(32, heads=4, offsets="integer")))
    rows.append(("H = 4, truncated normal", DynamicTokenNorm(32, heads=4, init="trunc_normal")))
    figure, axes = plt.subplots(len(rows), max(HEADS), figsize=(12, 8.2), squeeze=False)
    row, col = divmod(TOKEN, GRID[1])
    for line, (title, norm) in zip(axes, rows, strict=True):
        for axis in line:
            axis.set_axis_off()
        for head, weights in enumerate(norm.positional_weights(GRID, TOKEN)):
            axis = line[head]
            axis.set_axis_on()
            axis.set_xticks([])
            axis.set_yticks([])
            axis.imshow(weights.numpy(), vmin=0, vmax=0.35, cmap="viridis")
            axis.add_patch(plt.Rectangle((col - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="white", linewidth=1.4))
            for at in (weights > 0.999 * weights.max()).nonzero() if weights.max() > 0.05 else []:
                axis.plot(int(at[1]), int(at[0]), "x", color="#d55e00", markersize=5, markeredgewidth=1.4)
            axis.set_title(f"max {float(weights.max()):.2f}", fontsize=8)
        line[0].set_ylabel(title.replace(", ", ",\n"), fontsize=9, rotation=0, ha="right", va="center", labelpad=8)
    figure.suptitle("P of token 91 on a 14 x 14 grid before training, one picture per head", fontsize=12)
    figure.text(
        0.5,
        0.015,
        "White frame: the token itself. Cross: the largest weight (several where they tie). "
        "Brighter is larger; one scale for all, 0 to 0.35.",
        ha="center",
        fontsize=9,
    )
    figure.tight_layout(rect=(0, 0.03, 1, 0.98))
    figure.savefig(Path(__file__).with_name("positional_kernels.png"), dpi=110)


if __name__ == "__main__":
    main()

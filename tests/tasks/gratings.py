"""Waves in noise, of which only the direction is the class: where they begin and how fast they are is chance.

Two crops of an image have the direction in common and little else, so that this is what self-distillation can find. A random
network is far from it.
"""

import math

import torch

import dynavit

CLASSES, SIDE = 8, 24


def open_gratings(data_dir, config):
    """Made-up waves in eight directions, 24x24, grey"""
    splits = {"train": waves(1280, 0), "test": waves(400, 1)}
    classes = [f"{180 * k / CLASSES:g} degrees" for k in range(CLASSES)]
    return dynavit.DataSet("gratings", splits, classes, (SIDE, SIDE), (0.5,), (0.22,), mirrored=False)


def waves(count: int, seed: int) -> dynavit.MemorySplit:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    angle = (labels * math.pi / CLASSES)[:, None, None]
    phase, rate = torch.rand(2, count, 1, 1, generator=generator)
    row, col = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    wave = torch.sin((0.6 + 0.6 * rate) * (col * angle.cos() + row * angle.sin()) + 2 * math.pi * phase)
    image = 127.5 + 30 * (wave + torch.randn(count, SIDE, SIDE, generator=generator))
    return dynavit.MemorySplit(image.clamp(0, 255).to(torch.uint8)[:, None], labels)

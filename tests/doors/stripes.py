"""A data set of one's own: horizontal, vertical and slanted stripes. It has no test split."""

import torch

import dynavit


@dynavit.register_data("stripes")
def open_stripes(data_dir, config):
    """Made-up stripes in three directions, 8x8, grey"""
    generator = torch.Generator().manual_seed(0)
    rows, columns = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
    directions = torch.stack([rows, columns, rows + columns])
    splits = {}
    for name, count in (("train", 96), ("val", 30)):
        labels = torch.arange(count) % 3
        phase = torch.randint(4, (count, 1, 1), generator=generator)
        images = ((directions[labels] + phase) % 4 < 2) * 200 + torch.randint(40, (count, 8, 8), generator=generator)
        splits[name] = dynavit.MemorySplit(images[:, None].to(torch.uint8), labels)
    return dynavit.DataSet("stripes", splits, ["rows", "columns", "slanted"], (8, 8), (0.5,), (0.4,), mirrored=False)

"""Data sets in a user's own file: images in memory, images that something keeps, and sequences with a loader of their own."""

STRIPES = '''
import torch
import dynavit

@dynavit.register_data("stripes")
def open_stripes(data_dir, config, *, width: int = 2):
    """Stripes, upright and lying."""
    upright = (torch.arange(8) // width % 2 * 255).to(torch.uint8).expand(20, 1, 8, 8)
    images = torch.cat([upright, upright.transpose(2, 3)])
    split = dynavit.MemorySplit(images, torch.arange(2).repeat_interleave(20))
    return dynavit.DataSet("stripes", {"train": split, "test": split}, ["upright", "lying"], (8, 8), (0.5,), (0.5,))
'''

SHADES = '''
from typing import NamedTuple

import torch
from PIL import Image

import dynavit
from dynavit.data.dataset import MapSplit

class Shade(NamedTuple):
    grey: int

class Painter:
    """Paints images, and cannot paint number 3. An object, a key and a class that only this file knows."""

    def __init__(self, side):
        self.side = side

    def __call__(self, shade):
        if shade.grey == 3:
            raise ValueError("cannot paint 3")
        return Image.new("RGB", (self.side, self.side), (shade.grey,) * 3)

@dynavit.register_data("shades")
def open_shades(data_dir, config):
    """Images of one colour."""
    split = MapSplit(Painter(8), [Shade(grey) for grey in (1, 2, 3, 4)], torch.tensor([0, 1, 0, 1]))
    return dynavit.DataSet("shades", {"test": split}, ["odd", "even"], (8, 8), (0.0,) * 3, (1.0,) * 3)
'''

SUMS = '''
from dataclasses import dataclass, replace

import torch
from torch.nn.utils.rnn import pad_sequence

import dynavit
from dynavit.data.sampling import epoch_steps, steps_in

@dataclass(frozen=True)
class Sums:
    """Sequences of digits in different lengths, and the last digit of their sums."""

    splits: dict[str, list[torch.Tensor]]
    name: str = "sums"
    notes: tuple[str, ...] = ()
    task: str = "sums"

    def loader(self, split, how):
        return SumsLoader(self.splits[split], how)

    def describe(self):
        return {"vocabulary": 10}

    def subset(self, split, index):
        return replace(self, splits={**self.splits, split: [self.splits[split][i] for i in index.tolist()]})

class SumsLoader:
    def __init__(self, sequences, how):
        self.sequences, self.how, self.samples = sequences, how, len(sequences)
        self.steps = steps_in(self.samples, how.batch_size)

    def epoch(self, epoch=0, start=0):
        for step, parts in epoch_steps(self.samples, self.how, epoch, start):
            yield [self.batch(part) for part in parts]

    def batch(self, part):
        chosen = [self.sequences[i] for i in part.draws.tolist()]
        tokens, lengths = pad_sequence(chosen, batch_first=True), torch.tensor([len(sequence) for sequence in chosen])
        inputs = {"tokens": tokens, "mask": torch.arange(tokens.shape[1]) < lengths[:, None], "share": lengths / 9}
        targets = torch.stack([sequence.sum() % 10 for sequence in chosen])
        batch = dynavit.Batch(inputs, targets, part.draws, part.count, part.step_count)
        return batch.to(self.how.device, self.how.dtype)

@dynavit.register_data("sums")
def open_sums(data_dir, config, *, longest: int):
    """Sequences of digits."""
    random = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, longest + 1, (23,), generator=random).tolist()
    sequences = [torch.randint(10, (length,), generator=random) for length in lengths]
    return Sums({"train": sequences[:15], "test": sequences[15:]})
'''

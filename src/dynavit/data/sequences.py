"""Data sets of token sequences with classes: in memory, one byte for each token, padded on the right when a batch is made.

All batches are padded to the same width, that of the data set and not of the batch's longest sequence: statistics that count
padding, and attention in blocks or chunks, would otherwise depend on which sequences happen to share a batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from typing import Any, Self

import torch
from torch import Tensor

from ..common.batch import Batch
from ..common.data import LoaderOptions
from .config import AugmentConfig
from .sampling import Part, epoch_steps, steps_in

PADDING = 0


@dataclass(frozen=True)
class SequenceSplit:
    """n sequences behind each other.

    Attributes:
        tokens: (all,) uint8 ids, none of them 0.
        starts: (n,) where each begins; `lengths` (n,) its number of tokens.
        labels: (n,) int64 classes.
    """

    tokens: Tensor
    starts: Tensor
    lengths: Tensor
    labels: Tensor

    @classmethod
    def of(cls, sequences: Sequence[bytes], labels: Sequence[int]) -> "SequenceSplit":
        lengths = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.int64)
        tokens = torch.frombuffer(bytearray(b"".join(sequences)), dtype=torch.uint8)
        return cls(tokens, lengths.cumsum(0) - lengths, lengths, torch.tensor(labels, dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> bytes:
        start = int(self.starts[number])
        return self.tokens[start : start + int(self.lengths[number])].numpy().tobytes()

    def subset(self, index: Tensor) -> "SequenceSplit":
        return replace(self, starts=self.starts[index], lengths=self.lengths[index], labels=self.labels[index])

    def padded(self, index: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Ids (b, width), 0 behind the end, and the mask that is True for real tokens."""
        at = torch.arange(width, device=self.tokens.device)
        mask = at < self.lengths[index, None]
        place = (self.starts[index, None] + at).clamp(max=len(self.tokens) - 1)
        return torch.where(mask, self.tokens[place].long(), PADDING), mask

    def to(self, device: torch.device | str) -> "SequenceSplit":
        return SequenceSplit(*(getattr(self, field.name).to(device) for field in fields(self)))


@dataclass(frozen=True)
class SequenceData:
    """Sequences with classes, as `common.data.Data` asks.

    Attributes:
        vocabulary: a word for each id; that of 0 is padding.
        width: tokens of every padded sequence.
        model: what is trained unless the user names another.
    """

    name: str
    splits: Mapping[str, SequenceSplit]
    classes: list[str]
    vocabulary: tuple[str, ...]
    width: int
    task: str
    model: str
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, split in self.splits.items():
            longest = int(split.lengths.max()) if len(split) else 0
            if longest > self.width:
                where = f"{self.name}, split {name}: row {int(split.lengths.argmax())}"
                raise ValueError(f"{where} has {longest} tokens, but rows are padded to {self.width}")

    def loader(self, split: str, how: LoaderOptions) -> "SequenceLoader":
        """Batches of {"ids": (b, width), "mask": (b, width)} and (b,) labels."""
        return SequenceLoader(self.splits[split], self.width, how)

    def describe(self) -> dict[str, Any]:
        digest = sha256(" ".join(self.vocabulary).encode()).hexdigest()
        vocabulary = {"vocabulary": list(self.vocabulary), "vocabulary_sha256": digest}
        return {"classes": list(self.classes), **vocabulary, "width": self.width}

    def prepared_as(self, facts: Mapping[str, Any], user: object) -> Self:
        """The same sequences, padded as far as a model knows them, if it knows these words."""
        if list(self.vocabulary) != list(facts.get("vocabulary", ())):
            raise ValueError(f"{self.name} has other words than the model of {user} was trained with, or in another order")
        known = len(facts.get("classes", self.classes))
        if len(self.classes) != known:
            raise ValueError(f"{self.name} has {len(self.classes)} classes, the model of {user} tells {known} apart")
        return replace(self, width=int(facts["width"]))

    def subset(self, split: str, index: Tensor) -> Self:
        return replace(self, splits={**self.splits, split: self.splits[split].subset(index)})


class SequenceLoader:
    """Batches of a split, see `common.data.Loader`. Sequences are not augmented."""

    def __init__(self, split: SequenceSplit, width: int, how: LoaderOptions) -> None:
        usual = AugmentConfig()
        asked = [field.name for field in fields(usual) if getattr(how.augment, field.name) != getattr(usual, field.name)]
        if how.train and asked:
            raise ValueError(f"augment.{asked[0]} is about images; sequences are not augmented, leave it out")
        self.split, self.width, self.how = split.to(how.device), width, how
        self.samples = len(split)
        self.steps = steps_in(self.samples, how.batch_size)

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[list[Batch]]:
        for _, parts in epoch_steps(self.samples, self.how, epoch, start):
            yield [self._batch(part) for part in parts]

    def _batch(self, part: Part) -> Batch:
        index = part.draws.to(self.split.labels.device)
        ids, mask = self.split.padded(index, self.width)
        return Batch({"ids": ids, "mask": mask}, self.split.labels[index], index, part.count, part.step_count)

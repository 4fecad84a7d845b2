"""Batches of images with boxes."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import torch

from ...common.batch import Batch
from ...common.data import LoaderOptions
from ..config import AugmentConfig
from ..readers import Answer, Reader, Readers
from ..sampling import Part, epoch_steps, steps_in
from .orientation import oriented_steps
from .record import Record
from .transform import DIVISOR, Transform, WrongSize, joined, joined_or_wrong

if TYPE_CHECKING:
    from .dataset import DetectionData, DetectionSplit


class DetectionLoader:
    """Batches of a split, see `common.data.Loader`.

    Evaluation takes at most `eval_batch` images at a time, however many are asked for: images of any size, padded to the
    largest, would not fit into memory. An image that cannot be read is left out and named in `Batch.broken`; with `strict`
    that is an error.
    """

    def __init__(self, data: "DetectionData", split: str, how: LoaderOptions) -> None:
        self.split: DetectionSplit = data.splits[split]
        self.how = how if how.train else replace(how, batch_size=min(how.batch_size, data.eval_batch))
        self.batch_size = self.how.batch_size
        self.samples = len(self.split)
        self.steps = steps_in(self.samples, self.how.batch_size)
        self.transform = Transform(
            data.preparation, split, data.has_masks, flip=how.train and _flips(how.augment, data.mirrored)
        )
        reader = Reader(self.split.source.read, self.transform, joined_or_wrong, how.seed)
        keys, workers = _Sent(self.split, data.has_masks), 0 if self.split.source.quick else how.config.workers
        self.readers = Readers(reader, keys, workers, pin_memory=torch.device(how.device).type == "cuda")
        self.tall = self.split.sizes[:, 0] > self.split.sizes[:, 1]

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[list[Batch]]:
        """The micro-batches of each step from number `start` on. One epoch at a time: a new one ends the one before."""
        how = self.how
        every = oriented_steps(self.tall, how, epoch, start) if how.train else epoch_steps(self.samples, how, epoch, start)
        steps = list(every)
        answers = self.readers.answers(epoch, [part for _, parts in steps for part in parts])
        for _, parts in steps:
            yield [self._batch(part, next(answers)) for part in parts]

    def _batch(self, part: Part, answer: Answer) -> Batch:
        broken = answer.broken if part.count else []  # the process whose sample was borrowed reports it
        if broken and self.how.config.strict:
            raise ValueError(f"{broken[0]} (without --strict it would be left out)")
        if isinstance(answer.samples, WrongSize):
            raise ValueError(answer.samples.message)
        kept = part.draws[answer.kept]
        if answer.samples is None:  # something has to go through the model: an empty image
            (inputs, targets), kept = joined([self._nothing()]), part.draws[:1]
        else:
            inputs, targets = answer.samples
        batch = Batch(inputs, targets, kept, min(part.count, len(answer.kept)), part.step_count, broken)
        return batch.to(self.how.device, self.how.dtype)

    def _nothing(self) -> Any:
        from PIL import Image

        # Not as large as others: nothing is learned from it.
        small = replace(self.transform, preparation=replace(self.transform.preparation, short=None, long=None), flip=False)
        return small((Image.new("RGB", (DIVISOR, DIVISOR)), Record(-1, "", "", DIVISOR, DIVISOR)))


class _Sent(Sequence[Any]):
    """The keys of a split as they are sent to readers: without masks if those are not wanted, since a request is copied."""

    def __init__(self, split: "DetectionSplit", masks: bool) -> None:
        self.split, self.masks = split, masks

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, place: Any) -> Any:
        key = self.split.keys[place]
        return key if self.masks or not isinstance(key, Record) else key.without_masks()


def _flips(augment: AugmentConfig, mirrored: bool) -> bool:
    """Whether training mirrors half of the images. It is all the augmentation there is for boxes."""
    usual = AugmentConfig()
    known = ("recipe", "flip")
    asked = [field.name for field in fields(usual) if getattr(augment, field.name) != getattr(usual, field.name)]
    if unknown := [name for name in asked if name not in known]:
        raise ValueError(
            f"augment.{unknown[0]} is about images with one class; images with boxes are mirrored only, leave it out"
        )
    if augment.recipe == "deit":
        raise ValueError("augment.recipe=deit is about images with one class; images with boxes take light or none")
    return augment.recipe != "none" and (mirrored if augment.flip is None else augment.flip)

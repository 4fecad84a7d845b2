"""A detector that knows the truth: data, evaluation, pictures and pages can be tried without training one.

It takes the boxes of its targets, in pixels of the input, back into pixels of the stored image, which is where mistakes hide.
`dynavit train --plugin fake_detector.py --task fake_detection --model dot --data shapes`.
"""

from dataclasses import dataclass

import torch
from torch import nn

import dynavit
from dynavit.analysis.detection_examples import examples_of
from dynavit.analysis.draw import draw_detections
from dynavit.analysis.measures.ap_tables import ap_tables
from dynavit.data.detection.inputs import file_input, origin_of, sample_input
from dynavit.data.detection.results import answer_of, found_line, in_original_pixels, result_of, surer_than, truth_of
from dynavit.tasks.coco_evaluator import BOXES, MASKS, CocoEvaluator


@dynavit.register_model
def dot(**options):
    """One number."""
    return Dot()


class Dot(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.weight * x


@dataclass
class FakeOptions:
    """Options of the task fake_detection.

    Attributes:
        jitter: pixels by which boxes are moved.
        lost: share of objects that are not found; half as many get another class.
    """

    jitter: float = 0.0
    lost: float = 0.0


@dynavit.register_task("fake_detection")
class FakeDetection(dynavit.Task):
    """Say what is annotated."""

    Options = FakeOptions
    metrics = (*BOXES, *MASKS)

    def __init__(self, model, data, options):
        super().__init__(model)
        self.data, self.options = data, options

    def forward(self, batch):
        return {"loss": self.model(batch.inputs["images"].mean()) ** 2}

    def detect(self, batch):
        results = []
        for target, number in zip(batch.targets, batch.index.tolist(), strict=True):
            random = torch.Generator().manual_seed(target["image_id"])
            boxes = in_original_pixels(target["boxes"], target)
            moved = boxes + self.options.jitter * torch.randn(len(boxes), 4, generator=random)
            labels, chance = target["labels"].clone(), torch.rand(len(boxes), generator=random)
            wrong = chance > 1 - self.options.lost / 2
            labels[wrong] = (labels[wrong] + 1) % len(self.data.classes)
            kept = chance >= self.options.lost
            split = self.data.splits[target["split"]]
            masks = truth_of(split.source.record(split.keys[number]))["masks"] if self.data.has_masks else None
            results.append(
                {
                    "boxes": moved[kept],
                    "scores": torch.linspace(0.95, 0.55, len(boxes))[kept],
                    "labels": labels[kept],
                    "masks": masks and [mask for mask, keep in zip(masks, kept, strict=True) if keep],
                }
            )
        return results

    def evaluator(self):
        return CocoEvaluator(self.detect, self.data, masks=self.data.has_masks)

    def examples(self, batch, data):
        return examples_of(batch, self.detect(batch), data)

    @classmethod
    def tables(cls, result):
        return ap_tables(result)

    @classmethod
    def report_sections(cls, run):
        from dynavit.analysis.report.sections.detection import run_sections

        return run_sections(run)

    def read_input(self, path, facts):
        return file_input(path, facts)

    def input_of(self, batch):
        return sample_input(batch)

    def answer(self, inputs, facts, top, policy=None):
        """Something in the middle, and something less sure at the top left, in pixels of the input at first."""
        origin = origin_of(inputs)
        height, width = inputs["sizes"][0].tolist()
        boxes = torch.tensor([[0.3, 0.3, 0.7, 0.7], [0.0, 0.0, 0.2, 0.2]]) * torch.tensor([width, height, width, height])
        boxes, scores = in_original_pixels(boxes, origin), torch.tensor([0.9, 0.3])
        result = {"boxes": boxes, "scores": scores, "labels": torch.tensor([0, 1]), "masks": None}
        return answer_of(result, facts["classes"], origin["original_size"])

    @classmethod
    def surer_than(cls, answer, score):
        return surer_than(answer, score)

    @classmethod
    def draw(cls, picture, answer, facts):
        return draw_detections(picture, result_of(answer, facts["classes"]), facts["classes"], score=0)

    @classmethod
    def answer_text(cls, answer):
        return found_line(answer)

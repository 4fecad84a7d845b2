"""Object detection and instance segmentation: losses by the kind of detector, average precision, answers about files."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...common.batch import Batch
from ...common.metric import Metric
from ...common.task import Evaluator, Task
from ...models.detection.detector import Detector
from ...models.detection.maskrcnn import MaskRCNN
from ...models.detection.retinanet import RetinaNet
from ...models.detection.rules import Rules
from ..options import DetectionOptions
from .maskrcnn import PROPOSAL_THRESHOLDS, maskrcnn_losses
from .originals import in_original
from .retinanet import retinanet_losses

BOXES, MASKS = (
    tuple(Metric(f"{kind}_{name.lower()}", f"{kind} {name}", percent=True, digits=1) for name in ("AP", "AP50", "AP75"))
    for kind in ("box", "mask")
)


class Detection(Task):
    """Find things in images: a box and a class each, with a mask where the detector draws one.

    Inputs are {"images" (b, 3, height, width), "sizes" (b, 2)}, targets a list of dicts, see docs/detection_models.md.
    """

    name: ClassVar[str] = "detection"
    Options: ClassVar[type] = DetectionOptions
    metrics: Sequence[Metric] = BOXES

    def __init__(self, model: nn.Module, data: Any, options: DetectionOptions) -> None:
        super().__init__(model)
        if not isinstance(model, RetinaNet | MaskRCNN):
            raise ValueError(
                f"the task detection trains detectors, retinanet or maskrcnn, and {type(model).__name__} is none; "
                "--model retinanet --model_options.backbone NAME puts one on top of a backbone"
            )
        self.options = options
        self.rules = Rules(
            score=options.score,
            overlap=options.overlap,
            most=options.detections,
            candidates=options.candidates,
            proposals=options.proposals,
        )
        self.data = data
        self.with_masks = isinstance(model, MaskRCNN) and model.mask_head is not None
        if self.with_masks and not getattr(data, "has_masks", True):
            raise ValueError(
                f"Mask R-CNN learns masks, and {data.name} has none; --model_options.with_masks false does without them"
            )
        if self.with_masks:
            self.metrics = (*BOXES, *MASKS)

    # ---- From options to a task

    @classmethod
    def check_data(cls, data: Any) -> None:
        if getattr(data, "task", None) != cls.name:
            raise ValueError(f"the task detection is about images with boxes, and {data.name} has none; leave --task out")

    @classmethod
    def model_options(cls, data: Any, options: DetectionOptions) -> dict[str, Any]:
        return {"num_classes": len(data.classes), "anchor_scale": options.anchor_scale}

    @property
    def detector(self) -> Detector:
        assert isinstance(self.model, Detector)
        return self.model

    # ---- Training and evaluation

    def loader(self, data: Any, split: str, how: Any) -> Any:
        """Evaluation takes `eval_batch` images of each process at a time."""
        if not how.train:
            how = replace(how, batch_size=min(how.batch_size, self.options.eval_batch * how.world))
        return data.loader(split, how)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        if isinstance(self.model, MaskRCNN):
            return maskrcnn_losses(self.model, batch.inputs, batch.targets, self.options, self.rules)
        assert isinstance(self.model, RetinaNet)
        return retinanet_losses(self.model, batch.inputs, batch.targets, self.options)

    @torch.no_grad()
    def detect(self, batch: Batch) -> list[dict[str, Any]]:
        """What is found in each image of a batch, in pixels of the stored images, see `in_original`."""
        found = self.detector.detect(batch.inputs["images"], batch.inputs["sizes"], self.rules)
        return [
            in_original(own, target["scale"], target["original_size"]) for own, target in zip(found, batch.targets, strict=True)
        ]

    def evaluator(self) -> Evaluator:
        from ..coco_evaluator import CocoEvaluator

        return CocoEvaluator(self.detect, self.data, masks=self.with_masks)

    # ---- What a person sees

    def examples(self, batch: Batch, data: Any) -> list[dict[str, Any]]:
        from ...analysis.detection_examples import examples_of

        return examples_of(batch, self.detect(batch), data)

    @classmethod
    def tables(cls, result: Mapping[str, Any]) -> list[tuple[str, list[str], list[list[str]]]]:
        from ...analysis.measures.ap_tables import ap_tables

        return ap_tables(result)

    @classmethod
    def report_sections(cls, run: Any) -> Sequence[Any]:
        from ...analysis.report.sections.detection import run_sections

        return run_sections(run)

    @torch.no_grad()
    def inside(self, batches: Iterable[Batch]) -> dict[str, dict[str, Any]]:
        from .inside import anchor_numbers, padding_numbers

        alone = [batch for batch in batches if batch.count]
        if not alone:
            raise ValueError("there are no images to look at")
        thresholds = PROPOSAL_THRESHOLDS
        if isinstance(self.model, RetinaNet):
            thresholds = (self.options.positive, self.options.negative, 0.0)
        found = {"anchors": anchor_numbers(self.detector, alone, thresholds)}
        drift = padding_numbers(self.detector, alone)
        return found if drift is None else {**found, "padding": drift}

    # ---- Prediction

    def read_input(self, path: Path, facts: Mapping[str, Any]) -> dict[str, Tensor]:
        """A file, resized and normalised as the data set did it, with its own size beside it."""
        from ...data.detection.inputs import file_input

        missing = [name for name in ("short", "long", "mean", "std") if name not in facts]
        if missing:
            raise ValueError(f"the run's model.json does not say how an image becomes an input: {', '.join(missing)} missing")
        return file_input(path, facts)

    def input_of(self, batch: Batch) -> dict[str, Tensor]:
        """A sample of a data set, with its own size beside it."""
        from ...data.detection.inputs import sample_input

        return sample_input(batch)

    @torch.no_grad()
    def answer(self, inputs: Mapping[str, Tensor], facts: Mapping[str, Any], top: int, policy: Any = None) -> dict[str, Any]:
        """{"found": [{"label", "confidence", "box": [x1, y1, x2, y2], "mask"}, ...], "size": [height, width]}, everything.

        Boxes are in pixels of the file or of the stored image. `top` has no say: each thing has one class.
        """
        from ...data.detection.inputs import origin_of
        from ...data.detection.results import answer_of

        origin = origin_of(inputs)
        (found,) = self.detector.detect(inputs["images"], inputs["sizes"], self.rules)
        own = in_original(found, origin["scale"], origin["original_size"])
        return answer_of(own, facts["classes"], origin["original_size"])

    @classmethod
    def surer_than(cls, answer: Mapping[str, Any], score: float) -> Mapping[str, Any]:
        from ...data.detection.results import surer_than

        return surer_than(answer, score)

    @classmethod
    def draw(cls, picture: Any, answer: Mapping[str, Any], facts: Mapping[str, Any]) -> Any:
        from ...analysis.draw import draw_detections
        from ...data.detection.results import result_of

        return draw_detections(picture, result_of(answer, facts["classes"]), facts["classes"], score=0)

    @classmethod
    def answer_text(cls, answer: Mapping[str, Any]) -> str:
        from ...data.detection.results import found_line

        return found_line(answer)

"""Average precision over a split: every image's detections are kept, and judged together at the end."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from ...common.batch import Batch
from ...common.task import Evaluator
from .originals import in_original

if TYPE_CHECKING:
    from .task import Detection

KINDS = {"bbox": "", "segm": "mask_"}  # the evaluator's name, and the prefix of ours
NUMBERS = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100")


class DetectionEvaluator(Evaluator):
    """Keeps [number of the image, its split, its detections as COCO's results]."""

    def __init__(self, task: "Detection") -> None:
        super().__init__()
        self.task = task
        self._judged: dict[str, Any] | None = None

    @torch.no_grad()
    def update(self, batch: Batch) -> None:
        from ...data.detection.results import coco_results

        found = self.task.detector.detect(batch.inputs["images"], batch.inputs["sizes"], self.task.rules)
        kept = []
        for own, target in list(zip(found, batch.targets, strict=True))[: batch.count]:
            image, result = int(target["image_id"]), in_original(own, target["scale"], target["original_size"])
            kept.append([image, target["split"], coco_results(image, result, self.task.category_ids)])
        self.add("images", kept)
        self.add("together", torch.tensor(int(len(found) > 1), device=batch.index.device))

    @property
    def samples(self) -> int:
        return len(self._by_image)

    @property
    def _can_judge(self) -> bool:
        from ...data.detection.coco_tools import has_coco_tools

        return has_coco_tools()

    @property
    def _by_image(self) -> dict[int, list[dict[str, Any]]]:
        """In order; an image that several processes had counts once."""
        found = {image: results for image, _, results in self.totals.get("images", ())}
        return {image: found[image] for image in sorted(found)}

    def judged(self) -> dict[str, Any]:
        """{"bbox": {"AP": ..., "per_class": ...}, "segm": ...}; {} where the package that judges is missing."""
        from ...analysis.measures.coco_ap import evaluate_detections

        if self._judged is None:
            images = self._by_image
            if not images:
                raise ValueError("nothing was evaluated: no image could be read")
            if not self._can_judge:
                return {}
            results = [one for own in images.values() for one in own]
            truth = self.task.truth(self.totals["images"][0][1])
            self._judged = evaluate_detections(truth, results, list(images), kinds=self.task.kinds)
        return self._judged

    def results(self) -> Iterator[tuple[str, float]]:
        """AP, AP50, ... of boxes, and of masks as mask_AP, ...; numbers about things that do not occur are left out."""
        judged = self.judged()
        for kind in self.task.kinds:
            for name in NUMBERS:
                value = judged.get(kind, {}).get(name)
                if value is not None:
                    yield KINDS[kind] + name, float(value)
                elif name == "AP":
                    yield KINDS[kind] + name, math.nan

    def notes(self) -> Iterator[str]:
        if self.task.caution:
            yield self.task.caution
        if not self._can_judge:
            yield "AP was not computed: it needs faster-coco-eval, of the extra [detect]"
        if self.task.detector.padding == "none" and int(self.totals.get("together", 0)):
            yield (
                f"{self.task.detector.backbone} was run with padding: none, so that the detections of an image depend on the "
                "others in its batch; --task.eval_batch 1 evaluates each alone"
            )

    def details(self) -> dict[str, Any]:
        """Average precision of each class, and the detections in COCO's form."""
        judged = self.judged()
        return {
            "per_class": {kind: judged[kind]["per_class"] for kind in self.task.kinds if kind in judged},
            "detections": [one for own in self._by_image.values() for one in own],
        }

"""Detections of a split, judged as COCO does: what every image gave is kept, joined over processes, and judged once."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..analysis.measures.ap_tables import NAMES
from ..analysis.measures.coco_ap import evaluate_detections, without_repeats
from ..analysis.measures.detection_errors import SORTS, judge
from ..common.batch import Batch
from ..common.metric import Metric
from ..common.task import Evaluator
from ..data.detection.coco_tools import coco_tools, has_coco_tools
from ..data.detection.results import coco_results, truth_of

BOXES = (
    Metric("box_ap", "box AP", percent=True, digits=1),
    Metric("box_ap50", "box AP50", percent=True, digits=1),
    Metric("box_ap75", "box AP75", percent=True, digits=1),
)
MASKS = (
    Metric("mask_ap", "mask AP", percent=True, digits=1),
    Metric("mask_ap50", "mask AP50", percent=True, digits=1),
    Metric("mask_ap75", "mask AP75", percent=True, digits=1),
)
SURE = 0.5  # the score from which a detection counts among the sorts of errors


class CocoEvaluator(Evaluator):
    """Average precision of a detector.

    Args:
        detect: a batch -> a result of each of its images, see `data.detection.results`.
        data: the set that the batches come from, which knows what is annotated (`DetectionData`).
        masks: judge masks too.
    """

    def __init__(self, detect: Callable[[Batch], Sequence[Mapping[str, Any]]], data: Any, *, masks: bool = False) -> None:
        super().__init__()
        self.detect, self.data, self.masks = detect, data, masks
        self.judged: dict[str, Any] = {}

    @torch.no_grad()
    def update(self, batch: Batch) -> None:
        results = self.detect(batch)
        found = []
        for target, result in list(zip(batch.targets, results, strict=True))[: batch.count]:
            entries = coco_results(target["image_id"], result, self.data.category_ids)
            found.append((target["image_id"], (target["split"], entries)))
        self.add("found", found)
        self.add("samples", torch.tensor(batch.count, device=batch.index.device))

    def results(self) -> Iterator[tuple[str, float]]:
        """The metrics as fractions; NaN where there is nothing to find, or nothing to judge with."""
        found = self._found
        if not found:
            raise ValueError("nothing was evaluated: no image could be read")
        kinds = ("bbox", "segm") if self.masks else ("bbox",)
        if has_coco_tools():
            self.judged = evaluate_detections(self._truth, self.predictions(), list(found), kinds)
        for kind in kinds:
            for name in ("AP", "AP50", "AP75"):
                value = self.judged.get(kind, {}).get(name)
                yield f"{NAMES[kind]}_{name.lower()}", float("nan") if value is None else value

    def notes(self) -> Iterator[str]:
        if not has_coco_tools():
            try:
                coco_tools("average precision (AP)")
            except ValueError as error:
                yield str(error)
        if self.data.caution:
            yield self.data.caution

    def details(self) -> dict[str, Any]:
        """ "coco": all measures by kind and class; "errors": how many detections of each sort; "caution" about the data."""
        return {
            **({"coco": self.judged} if self.judged else {}),
            "errors": self._errors(),
            **({"caution": self.data.caution} if self.data.caution else {}),
        }

    def predictions(self) -> list[dict[str, Any]]:
        """A results file in COCO's form."""
        return [entry for _, entries in self._found.values() for entry in entries]

    @property
    def _found(self) -> dict[int, Any]:
        return without_repeats(self.totals["found"])

    @property
    def _split(self) -> str:
        """Of which all images are."""
        return next(iter(self._found.values()))[0]

    @property
    def _truth(self) -> dict[str, Any]:
        return self.data.ground_truth(self._split)

    def _errors(self) -> dict[str, Any]:
        labels = {number: label for label, number in enumerate(self.data.category_ids)}
        records = {record.id: record for record in self.data.splits[self._split].records()}
        sorts: Counter[str] = Counter()
        for image_id, (_, entries) in self._found.items():
            sure = [entry for entry in entries if entry["score"] >= SURE]
            boxes = [[x, y, x + w, y + h] for entry in sure for x, y, w, h in [entry["bbox"]]]
            result = {"boxes": boxes, "scores": [entry["score"] for entry in sure]}
            result["labels"] = [labels[entry["category_id"]] for entry in sure]
            found = judge(result, truth_of(records[image_id].without_masks()))
            sorts.update(found.sorts)
            sorts["missed"] += len(found.missed)
        return {"score": SURE, **{sort: sorts[sort] for sort in (*SORTS, "missed")}}

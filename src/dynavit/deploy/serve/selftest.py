"""The test that a model has to pass before it is served: it is what it claims, and company changes no answer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .model import ServedModel

IMAGES, SEED = 8, 20261115
ALLOWED = 1e-5  # difference of a confidence between an image alone and in company


class SelfTestError(ValueError):
    """A model that cannot be served, and why."""


def self_test(served: "ServedModel") -> None:
    """Evaluation mode; as many classes as named; thresholds that rise with budget; confidences that company does not change."""
    for fault in served.backend.faults():
        raise SelfTestError(f"{served.name}: {fault}")
    if not served.curve.monotone:
        raise SelfTestError(
            f"{served.name}: along the calibration curve thresholds fall, so more budget would stop images earlier"
        )
    pixels = np.random.default_rng(SEED).integers(0, 256, (IMAGES, *served.entry_size), np.uint8)
    alone = np.concatenate([_confidences(served, [image]) for image in pixels], axis=1)
    together = _confidences(served, list(pixels))
    shuffled = np.random.default_rng(SEED).permutation(IMAGES)
    mixed = np.empty_like(together)
    mixed[:, shuffled] = _confidences(served, [pixels[at] for at in shuffled], regroup=True)
    for company, found in (("together", together), ("regrouped between exits", mixed)):
        apart = np.abs(found - alone)
        if not (apart <= ALLOWED).all():  # also NaN
            exit, image = np.unravel_index(np.nan_to_num(apart, nan=np.inf).argmax(), apart.shape)
            raise SelfTestError(
                f"{served.name}: the answer about an image depends on its company. At exit {exit + 1} the confidence of test "
                f"image {image + 1} is {alone[exit, image]:.6g} alone, {found[exit, image]:.6g} {company}; "
                f"{ALLOWED:g} is allowed"
            )


def _confidences(served: "ServedModel", entries: Sequence[Any], *, regroup: bool = False) -> NDArray[np.float64]:
    """(exits, b). With `regroup` the batch is cut and joined in another order between exits."""
    state, order, rows = served.begin(entries), np.arange(len(entries)), []
    while state is not None:
        probabilities, state = served.step(state)
        if probabilities.shape != (len(entries), len(served.classes)):
            raise SelfTestError(
                f"{served.name}: it names {len(served.classes)} classes, and its probabilities about {len(entries)} images are "
                f"{probabilities.shape}"
            )
        row = np.empty(len(entries))
        row[order] = served.confidence(probabilities)
        rows.append(row)
        if state is not None and regroup:
            turned = [*range(1, len(entries), 2), *range(0, len(entries), 2)]
            state = served.join([state[turned[: len(turned) // 2]], state[turned[len(turned) // 2 :]]])
            order = order[turned]
    if len(rows) != len(served.exits):
        raise SelfTestError(f"{served.name}: it describes {len(served.exits)} exits and has {len(rows)}")
    return np.stack(rows)

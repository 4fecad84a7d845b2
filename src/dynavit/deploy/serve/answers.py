"""Outcomes as JSON."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .budget import decide, finite
from .engine import Outcome
from .model import ServedModel
from .service import InForce


def model_facts(model: ServedModel) -> dict[str, str]:
    return {"name": model.name, "version": model.version}


def budget_facts(force: InForce) -> dict[str, Any]:
    """The budget that was asked for and what it became."""
    applied = force.applied
    return {
        "asked": force.asked and force.asked.plain(),
        "applied": {
            "thresholds": list(applied.thresholds),
            "max_exit": applied.max_exit,
            "expected_gmacs": applied.expected_gmacs,
            "expected_accuracy": applied.expected_accuracy,
        },
        "source": force.source,
        "clipped": applied.clipped,
    }


def best_labels(probabilities: NDArray[np.floating], classes: list[str], top: int) -> list[dict[str, Any]]:
    """The most probable classes; equal ones stay in their order, as in `dynavit predict`."""
    order = np.argsort(-probabilities, kind="stable")[:top]
    return [{"label": int(i), "name": classes[i], "confidence": float(probabilities[i])} for i in order]


def result(
    outcome: Outcome, model: ServedModel, force: InForce, id: str | None, top: int, probabilities: bool, total_ms: float
) -> dict[str, Any]:
    """The answer about one image."""
    left = outcome.exits[outcome.exit - 1]
    best = best_labels(left.probabilities, model.classes, top)
    thresholds = [*force.applied.thresholds, None]
    found = {
        "id": id,
        "status": 200,
        **best[0],
        "confidence": left.confidence,
        "top": best,
        "exit": outcome.exit,
        "why": outcome.why,
        "exits": [
            {
                "exit": at,
                "label": ran.label,
                "confidence": finite(ran.confidence),
                "threshold": thresholds[at - 1],
                "gmacs": model.exits[at - 1].gmacs,
            }
            for at, ran in enumerate(outcome.exits, 1)
        ],
        "cost": {
            "gmacs": model.exits[len(outcome.exits) - 1].cumulative_gmacs,
            "queue_ms": outcome.queue_ms,
            "compute_ms": outcome.compute_ms,
            "total_ms": total_ms,
            "batch": list(outcome.batch),
        },
    }
    return {**found, "probabilities": [float(p) for p in left.probabilities]} if probabilities else found


def sweep(outcome: Outcome, model: ServedModel) -> dict[str, Any]:
    """Every exit's answer, and what would have happened at every point of the curve."""
    exits = [
        {
            "exit": at,
            "label": ran.label,
            "name": model.classes[ran.label],
            "confidence": finite(ran.confidence),
            "gmacs": model.exits[at - 1].gmacs,
            "compute_ms": 1e3 * ran.seconds,
        }
        for at, ran in enumerate(outcome.exits, 1)
    ]
    confidences = [ran.confidence for ran in outcome.exits]
    levels = []
    for at, point in enumerate(model.curve.points):
        decision = decide(confidences, point.thresholds, len(exits))
        assert decision is not None  # all exits were run
        left = exits[decision.exit - 1]
        levels.append(
            {
                "level": model.curve.level_of(at),
                "gmacs": point.gmacs,
                "accuracy": point.accuracy,
                "thresholds": list(point.thresholds),
                "exit": decision.exit,
                "label": left["label"],
                "name": left["name"],
                "confidence": left["confidence"],
                "cost_gmacs": model.exits[decision.exit - 1].cumulative_gmacs,
            }
        )
    return {"model": model_facts(model), "exits": exits, "levels": levels}

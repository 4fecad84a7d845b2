"""Answers of a classifier about one image, in one form for runs and bundles.

    {"label": best class, "confidence": its probability, "top": [{"label", "confidence"}, ...]}
    {"error": why there is no answer}

A cascade that may stop early adds "exit", counted from 1. Needs numpy alone: bundles run without torch.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_ANSWER = "no answer: the model's output is not finite (NaN or infinite); it has diverged, or its weights were damaged"


def best_classes(probabilities: NDArray[np.floating], exit: int | None, classes: Sequence[str], top: int) -> dict[str, Any]:
    """(classes,) -> the answer. Equal classes stay in their order. Probabilities that are not numbers are an error."""
    check_top(top)
    if len(probabilities) != len(classes):
        raise ValueError(f"there are {len(classes)} names of classes, and the model tells {len(probabilities)} apart")
    if not np.isfinite(probabilities).all():
        return {"error": NO_ANSWER}
    best = np.argsort(-probabilities, kind="stable")[:top]
    found = [{"label": classes[i], "confidence": float(probabilities[i])} for i in best]
    return {**found[0], "top": found, **({} if exit is None else {"exit": exit})}


def check_top(top: int) -> None:
    if top < 1:
        raise ValueError(f"top is the number of classes to name, at least 1; got {top}")


def answer_line(answer: Mapping[str, Any]) -> str:
    """
    >>> answer_line({"top": [{"label": "cat", "confidence": 0.9}, {"label": "dog", "confidence": 0.1}], "exit": 1})
    'cat 90.0%, dog 10.0% (left at exit 1)'
    """
    named = ", ".join(f"{found['label']} {found['confidence']:.1%}" for found in answer["top"])
    return named + (f" (left at exit {answer['exit']})" if "exit" in answer else "")

"""Whether logits name the right class. One rule for every place that counts.

    top-1    the class of `argmax`
    top-k    the classes of `topk`, which also decides among equal ones, so never more than k of them count

An image whose logits hold NaN or +inf has no answer and is wrong: `argmax` and `topk` name the broken entry, so that a diverged
model would look right. (-inf is a class that was ruled out, and is fine as long as another class is left.)
"""

from torch import Tensor


def has_answer(logits: Tensor) -> Tensor:
    """(n, classes) -> (n,) bool: the probabilities of these logits are numbers."""
    return logits.double().logsumexp(-1).isfinite()


def is_right(logits: Tensor, targets: Tensor) -> Tensor:
    """(n, classes), (n,) -> (n,) bool: the largest logit is the target's."""
    return (logits.argmax(-1) == targets) & has_answer(logits)


def is_among_best(logits: Tensor, targets: Tensor, k: int) -> Tensor:
    """(n, classes), (n,) -> (n,) bool: the target is one of `logits.topk(k)`."""
    best = logits.topk(min(k, logits.shape[-1])).indices
    return (best == targets[:, None]).any(-1) & has_answer(logits)


def about_missing(missing: int, samples: int, things: str = "images") -> str:
    return (
        f"{missing} of {samples} {things} have logits that are not finite (NaN or infinite), and count as wrong: "
        "the model has diverged, or its weights were damaged"
    )

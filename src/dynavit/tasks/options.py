"""Options of the tasks that come with the package. Nothing here imports torch, so that `dynavit train --help` can show them."""

from dataclasses import dataclass

from ..common.fits import NotNegative


@dataclass
class EarlyExitOptions:
    """Options of the task early_exit.

    Attributes:
        weights: of the losses of the exits, coarse to fine; all 1 if not given.
    """

    weights: list[NotNegative] | None = None

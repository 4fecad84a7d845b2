"""A cascade without arithmetic: an image is the list of confidences that its exits will have."""

import threading
from dataclasses import dataclass

import numpy as np

from dynavit.deploy.serve.costs import Costs, Line
from dynavit.deploy.serve.curve import Applied
from dynavit.deploy.serve.scheduler import Scheduler

EXITS = 3
PATIENCE = 60  # seconds


@dataclass(frozen=True)
class StubImage:
    """Confidences of the exits; `poison`: the exit at which it raises `error`."""

    confidences: tuple
    poison: int = 0
    error: BaseException | None = None


@dataclass(frozen=True)
class StubState:
    exit: int
    images: tuple

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return StubState(self.exit, tuple(self.images[at] for at in index))


class StubCascade:
    """Two classes; class 1 has the confidence. While `gate` is closed it holds the steps of `held`; `batches` were run."""

    def __init__(self):
        self.gate, self.batches, self.threads = threading.Event(), [], set()
        self.gate.set()
        self.held = {1, 2, 3}

    def begin(self, entries):
        return StubState(1, tuple(entries))

    def step(self, state):
        self.threads.add(threading.get_ident())
        if state.exit in self.held:
            self.gate.wait(PATIENCE)
        self.batches.append((state.exit, state.images))
        for image in state.images:
            if image.poison == state.exit:
                raise image.error or RuntimeError("poison")
        sure = np.array([image.confidences[state.exit - 1] for image in state.images])
        after = StubState(state.exit + 1, state.images) if state.exit < EXITS else None
        return np.stack([1 - sure, sure], 1), after

    def join(self, states):
        assert len({state.exit for state in states}) == 1
        return StubState(states[0].exit, tuple(image for state in states for image in state.images))

    def confidence(self, probabilities):
        return probabilities[:, 1]


def stub_scheduler(**options):
    costs = Costs([Line(1e-4, 1e-4)] * EXITS)
    return Scheduler(EXITS, [4] * EXITS, costs, [10, 20, 0], **options)


SURE = Applied((0.5, 0.5), EXITS)

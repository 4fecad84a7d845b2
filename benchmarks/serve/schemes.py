"""A server with one of four ways to schedule, for `load.py`: the same HTTP service around each.

    python benchmarks/serve/schemes.py --model accelerator --scheme D

A  the whole cascade for every image, batch by batch      what a batching server does with `forward`
B  one image at a time, early exit                        `predict` on batches of 1
C  early exit, survivors in their own batch, which shrinks
D  ours: survivors are regrouped across requests

Models: `accelerator` and `cpu` sleep instead of computing (costs of `simulate.py`, the first times --scale), so that what
regrouping gains can be measured without the device; `t2t12` is dvt_t2t_vit_12 with random weights; anything else is a run or a
bundle.
Prints {"address", "pid"} when it listens, and ends with SIGTERM.
"""

import argparse
import json
import os
import sys
import time

import numpy as np
from simulate import COSTS, Shrinking

from dynavit.deploy.serve import server
from dynavit.deploy.serve.app import create_app
from dynavit.deploy.serve.curve import NOBODY, Applied, Curve
from dynavit.deploy.serve.limits import Limits
from dynavit.deploy.serve.model import ExitFacts, ServedModel
from dynavit.deploy.serve.scheduler import Scheduler
from dynavit.deploy.serve.settings import Settings

GREY = {"kind": "memory", "stored_size": [8, 8], "image_size": [8, 8], "mean": [0.5], "std": [0.5]}
PHOTO = {
    "kind": "files",
    "image_size": [224, 224],
    "crop_pct": 0.875,
    "interpolation": "bicubic",
    "mean": [0.5] * 3,
    "std": [0.25] * 3,
}


class Whole(Shrinking):
    """Every image runs all exits, and is answered by the last."""

    def offer(self, now, client, applied, *args, **options):
        return super().offer(now, client, Applied((NOBODY,) * (self.exits - 1), self.exits), *args, **options)


KINDS = {"A": Whole, "B": Shrinking, "C": Shrinking, "D": Scheduler}


class Sleeping:
    """Steps that take `fixed + each * batch` and compute nothing; nobody is ever sure, so the cap decides.

    A white image is poison: the step that holds it raises.
    """

    def __init__(self, lines, classes=10):
        self.lines, self.classes = lines, classes

    def begin(self, images):
        return Waiting(0, images.reshape(len(images), -1).min(axis=1) >= 1 - 1e-6)

    def step(self, state):
        fixed, each = self.lines[state.exit]
        time.sleep((fixed + each * len(state)) / 1e3)
        if state.poison.any():
            raise RuntimeError("a white image")
        last = state.exit + 1 == len(self.lines)
        return np.full((len(state), self.classes), 1 / self.classes), None if last else Waiting(state.exit + 1, state.poison)

    def join(self, states):
        return Waiting(states[0].exit, np.concatenate([state.poison for state in states]))

    def faults(self):
        return []


class Waiting:
    def __init__(self, exit, poison):
        self.exit, self.poison = exit, poison

    def __len__(self):
        return len(self.poison)

    def __getitem__(self, index):
        return Waiting(self.exit, self.poison[list(index)])


def in_one_call(served, inputs):
    """Early exit inside of one call, as one writes it for a server that batches calls: the company of each image at its exits.

    `inputs` are (prepared image, deepest exit).
    """
    caps, company = [cap for _, cap in inputs], [[] for _ in inputs]
    state, inside, exit = served.begin([entry for entry, _ in inputs]), list(range(len(inputs))), 0
    while inside:
        exit += 1
        _, state = served.step(state)
        for at in inside:
            company[at].append(len(inside))
        rows = [row for row, at in enumerate(inside) if caps[at] > exit]
        inside = [inside[row] for row in rows]
        state = state[rows] if inside else None
    return company


def sleeping(name, scale):
    lines, most = COSTS["accelerator-like" if name == "accelerator" else "cpu"]
    exits = [ExitFacts(None, 1.0, 1.0 + at, 10_000 * (at < len(lines) - 1)) for at in range(len(lines))]
    curve = Curve.uncalibrated([exit.cumulative_gmacs for exit in exits])
    backend = Sleeping([(scale * fixed, scale * each) for fixed, each in lines])
    classes = [str(digit) for digit in range(10)]
    return ServedModel(backend, name=name, version="0", classes=classes, exits=exits, curve=curve, preprocess=GREY), most


def random_t2t():
    import torch

    import dynavit
    from dynavit.deploy.serve.torch_backend import TorchBackend
    from dynavit.runs.exit_facts import describe_exits

    torch.manual_seed(0)
    model = dynavit.create_model("dvt_t2t_vit_12", num_classes=10).eval().requires_grad_(False)
    exits = [
        ExitFacts(tuple(exit["grid"]), exit["gmacs"], exit["cumulative_gmacs"], exit["state_bytes"])
        for exit in describe_exits(model, (3, 224, 224))
    ]
    curve = Curve.uncalibrated([exit.cumulative_gmacs for exit in exits])
    classes = [str(digit) for digit in range(10)]
    backend = TorchBackend(model)
    return ServedModel(backend, name="t2t12", version="0", classes=classes, exits=exits, curve=curve, preprocess=PHOTO), 8


def opened(name):
    from dynavit.runs.served import open_served

    return open_served(name), 32


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--scheme", choices=KINDS, required=True)
    parser.add_argument("--scale", type=float, default=20.0)
    parser.add_argument("--max-queue", type=int, default=256)
    parser.add_argument("--hold", type=int, default=8)
    options = parser.parse_args()
    builtin = {
        "t2t12": random_t2t,
        "accelerator": lambda: sleeping("accelerator", options.scale),
        "cpu": lambda: sleeping("cpu", 1.0),
    }
    model, most = builtin[options.model]() if options.model in builtin else opened(options.model)
    most = 1 if options.scheme == "B" else most
    settings = Settings(port=0)
    limits = Limits(max_batch=most, max_queue=options.max_queue, max_per_client=2 * options.max_queue, max_connections=2048)
    with server.bind(settings) as taken:
        app = create_app(model, settings, limits)
        engine = app.state.service.engine
        ours = engine.scheduler
        engine.scheduler = KINDS[options.scheme](
            ours.exits,
            ours.batch_limits,
            ours.costs,
            ours.state_bytes,
            max_queue=limits.max_queue,
            max_per_client=limits.max_per_client,
            max_parked=limits.max_parked,
            hold=options.hold,
        )
        lines = [(1e3 * line.fixed, 1e3 * line.each) for line in ours.costs.lines]

        def started(*_):
            facts = {"address": server.address(taken), "pid": os.getpid(), "most": most, "lines_ms": lines}
            print(json.dumps(facts), flush=True)

        return server.run(app, taken, settings, limits, started=started)


if __name__ == "__main__":
    sys.exit(main())

"""The best answer within a deadline: exits of a cascade one after the other, until it is sure or time is up.

`python examples/cascade_with_deadline.py --milliseconds 5`
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch

import dynavit
from dynavit.data.open import open_data


@torch.no_grad()
def answer(cascade, image, milliseconds, sure=0.9):
    """(class, confidence, exit) of one image (1, c, h, w). The first exit always runs; a later one is begun only before the
    deadline, so the answer may come late by one exit."""
    end = time.perf_counter() + milliseconds / 1000
    state = cascade.begin(image)
    while True:
        logits, state = cascade.step(state)  # state.exit counts the exits that have run
        confidence, label = logits.softmax(-1)[0].max(-1)
        if confidence >= sure or state.exit == len(cascade.exits) or time.perf_counter() >= end:
            return int(label), float(confidence), state.exit


def main(epochs=20, milliseconds=5.0, images=100):
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        config = dynavit.TrainConfig(model="dvt_vit_digits", epochs=epochs, batch_size=32, lr=3e-3)
        config.augment.recipe = "none"  # 8x8 pixels leave no room for shifts
        dynavit.train_run(config, run)
        cascade = dynavit.load(run)
    digits = open_data("digits")
    split = digits.splits["test"]
    pixels = (split.images[:images].float() / 255 - digits.mean[0]) / digits.std[0]
    shares = {}
    for limit in (0.0, milliseconds, 1000.0):  # 0: only the first exit
        answers = [answer(cascade, image[None], limit) for image in pixels]
        right = sum(label == truth for (label, _, _), truth in zip(answers, split.labels.tolist(), strict=False))
        exits = [exit for _, _, exit in answers]
        shares[limit] = sum(exits) / len(exits)
        print(f"{limit:6.1f} ms: {right / len(answers):.0%} right, mean exit {shares[limit]:.2f}")
    return shares


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=float, default=20)
    parser.add_argument("--milliseconds", type=float, default=5.0)
    given = parser.parse_args()
    main(given.epochs, given.milliseconds)

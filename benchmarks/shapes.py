"""What an hour on 2 cores buys: CPU seconds of a training step for candidate shapes of a small ViT, one thread, interleaved.

    OMP_NUM_THREADS=1 python benchmarks/shapes.py [--norm dtn] [--batch-size 64] [--only NAME ...] [--out FILE]

CPU time of the process, because other work on the machine changes wall time several-fold and CPU time by a few percent.
`epochs` is what 2 x 3,600 CPU seconds allow on 45,000 images when 5 % are kept for validation and checkpoints.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F

from dynavit import create_model
from dynavit.bench.flops import count_macs
from dynavit.bench.machine import describe_machine
from dynavit.common.files import write_json
from dynavit.common.task import Task
from dynavit.engine.config import OptimConfig
from dynavit.engine.optimiser import make_optimiser, set_lr

BUDGET = 0.95 * 2 * 3600
TRAIN_IMAGES = 45_000

# (kernel, stride, padding) of a stem's convolutions; all end at 8 x 8 tokens.
STEMS = {
    "patch": None,
    "3 convs": [[3, 2, 1], [3, 1, 1], [3, 2, 1]],
    "4 convs": [[3, 2, 1], [3, 1, 1], [3, 2, 1], [1, 1, 0]],
    "5 convs": [[3, 2, 1], [3, 1, 1], [3, 2, 1], [3, 1, 1], [1, 1, 0]],
    "5 convs, full size": [[3, 1, 1], [3, 2, 1], [3, 2, 1], [3, 1, 1], [1, 1, 0]],
}
SHAPES = {  # channels, depth, MLP ratio, stem, its width and norm
    "vit_mini": (64, 4, 4.0, "patch", 64, None),
    "96 x 4, 3 convs": (96, 4, 2.0, "3 convs", 64, None),
    "96 x 4, 4 convs, bn": (96, 4, 2.0, "4 convs", 64, "bn"),
    "96 x 4, 5 convs, bn": (96, 4, 2.0, "5 convs", 64, "bn"),
    "96 x 4, 5 convs of 96, bn": (96, 4, 2.0, "5 convs", 96, "bn"),
    "96 x 4, full size, bn": (96, 4, 2.0, "5 convs, full size", 48, "bn"),
    "96 x 6, 5 convs, bn": (96, 6, 2.0, "5 convs", 64, "bn"),
    "128 x 4, patch": (128, 4, 2.0, "patch", 64, None),
    "128 x 4, 5 convs, bn": (128, 4, 2.0, "5 convs", 64, "bn"),
    "128 x 6, 5 convs, bn": (128, 6, 2.0, "5 convs", 64, "bn"),
    "192 x 4, 5 convs, bn": (192, 4, 2.0, "5 convs", 64, "bn"),
}


class Contestant:
    def __init__(self, shape, norm, batch):
        channels, depth, ratio, stem, width, stem_norm = shape
        options = {"embed_dim": channels, "depth": depth, "norm_blocks": depth, "mlp_ratio": ratio}
        options |= {"stem": STEMS[stem], "stem_width": width, "stem_norm": stem_norm} if STEMS[stem] else {}
        self.model = create_model("vit_mini", norm=norm, **options).train()
        self.optimiser = make_optimiser(Task(self.model), OptimConfig(), torch.device("cpu"))
        set_lr(self.optimiser, 1e-4)
        self.images, self.labels = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
        self.seconds = []

    def step(self):
        start = time.process_time()
        self.optimiser.zero_grad(set_to_none=True)
        F.cross_entropy(self.model(self.images), self.labels).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.seconds.append(time.process_time() - start)

    def row(self):
        median, batch = statistics.median(self.seconds), len(self.labels)
        return {
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "macs": count_macs(self.model.eval(), self.images[:1]),
            "cpu_seconds_of_a_step": median,
            "quartiles": statistics.quantiles(self.seconds, n=4),
            "images_per_cpu_second": batch / median,
            "epochs": BUDGET / median * batch / TRAIN_IMAGES,
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--norm", default="ln")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--only", nargs="+", choices=SHAPES)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = {name: SHAPES[name] for name in options.only or SHAPES}
    contestants = {name: Contestant(shape, options.norm, options.batch_size) for name, shape in chosen.items()}
    for _ in range(options.rounds):
        for contestant in contestants.values():
            contestant.step()
    rows = {}
    for name, contestant in contestants.items():
        del contestant.seconds[0]  # the first step allocates
        rows[name] = contestant.row()
        row = rows[name]
        print(
            f"{name:28} {row['macs'] / 1e6:5.1f} MMACs  {1e3 * row['cpu_seconds_of_a_step']:6.0f} ms"
            f"  {row['images_per_cpu_second']:5.0f} images/s  {row['epochs']:5.1f} epochs",
            flush=True,
        )
    if options.out:
        facts = {"command": "python benchmarks/shapes.py", "norm": options.norm, "batch_size": options.batch_size}
        write_json(options.out, facts | {"machine": describe_machine(), "rows": rows})


if __name__ == "__main__":
    main()

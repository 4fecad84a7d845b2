"""How to use two cores: one process with one or two threads, two processes of one run (gloo), two runs side by side.

    python benchmarks/two_cores.py --config cifar10 --data-dir DIR [--quiet] [--out FILE] [options of dynavit train]

Each way trains the same steps with the same options. Images per second by the wall clock, over all processes, without the first
log window. Only a quiet machine gives numbers to trust: say so with --quiet.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from dynavit.bench.machine import describe_machine
from dynavit.common.files import write_json

LOG_EVERY = 20

WAYS = {  # processes of a run, threads of a process, runs side by side
    "one process, one thread": (1, 1, 1),
    "one process, two threads": (1, 2, 1),
    "two processes, one thread each": (2, 1, 1),
    "two runs, one thread each": (1, 1, 2),
}


def images_per_second(run):
    """Over the windows after the first."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    logged = [line for line in lines if line["kind"] == "train"]
    images = json.loads((run / "model.json").read_text())["data"]["train"] * (logged[-1]["epoch"] - logged[0]["epoch"])
    return images / (logged[-1]["time"]["training_seconds"] - logged[0]["time"]["training_seconds"])


def measure(way, options, epochs):
    processes, threads, runs = WAYS[way]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    launch = [sys.executable, "-m"]
    if processes > 1:
        launch += ["torch.distributed.run", "--standalone", f"--nproc_per_node={processes}", "-m"]
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / str(number) for number in range(runs)]
        fixed = ["--epochs", str(epochs), "--engine.threads", str(threads), "--engine.log_every", str(LOG_EVERY)]
        fixed += ["--loading.val_fraction", "0.01"]
        commands = [[*launch, "dynavit", "train", *options, *fixed, "--out", str(out)] for out in outs]
        started = [subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) for command in commands]
        codes = [process.wait() for process in started]
        if any(codes):
            raise SystemExit(f"{way}: training failed")
        return sum(images_per_second(out) for out in outs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=float, default=0.3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quiet", action="store_true", help="nothing else is running: times can be trusted")
    parser.add_argument("--out", type=Path)
    options, training = parser.parse_known_args()
    found = {way: [] for way in WAYS}
    for _ in range(options.repeats):
        for way in WAYS:
            found[way].append(measure(way, training, options.epochs))
            print(f"{way:32} {found[way][-1]:6.0f} images/s", flush=True)
    if options.out is not None:
        said = ["..." if word.startswith("/") else word for word in training]
        facts = {"command": " ".join(["python benchmarks/two_cores.py", *said]), "quiet": options.quiet}
        write_json(options.out, facts | {"machine": describe_machine(), "images_per_second": found})


if __name__ == "__main__":
    main()

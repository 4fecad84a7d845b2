"""One call on few tokens: CPU microseconds of a norm next to nn.LayerNorm, one thread.

    python benchmarks/small_calls.py [--norms dtn,bn] [--quiet] [--out FILE]

The arithmetic of 16 tokens of 48 channels takes a few microseconds; everything around it is measured. Minimum over
rounds, interleaved, because other work on the machine only ever adds time.
"""

import argparse
import time

import torch

from dynavit import create_norm
from dynavit.bench.machine import describe_machine
from dynavit.common.files import write_json

TOKENS, DIM, HEADS, CALLS, ROUNDS = 16, 48, 3, 500, 12


def seconds(call):
    start = time.process_time()
    for _ in range(CALLS):
        call()
    return (time.process_time() - start) / CALLS


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--norms", default="dtn")
    parser.add_argument("--quiet", action="store_true", help="nothing else runs on the machine: the file says so")
    parser.add_argument("--out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.randn(1, TOKENS, DIM, requires_grad=True)
    grad = torch.randn_like(x)
    norms = {"nn.LayerNorm": torch.nn.LayerNorm(DIM)}
    norms |= {name: create_norm(name, DIM, heads=HEADS) for name in options.norms.split(",")}
    wanted = {name: [x, *norm.parameters()] for name, norm in norms.items()}
    rows = {name: {"forward_us": float("inf"), "training_us": float("inf")} for name in norms}
    for _ in range(ROUNDS):
        for name, norm in norms.items():
            with torch.no_grad():
                forward = seconds(lambda norm=norm: norm(x))
            training = seconds(lambda norm=norm, name=name: torch.autograd.grad(norm(x), wanted[name], grad))
            rows[name]["forward_us"] = min(rows[name]["forward_us"], 1e6 * forward)
            rows[name]["training_us"] = min(rows[name]["training_us"], 1e6 * training)
    for name, row in rows.items():
        print(f"{name:14} {row['forward_us']:6.1f} us forward  {row['training_us']:6.1f} us with backward")
    if options.out:
        facts = {
            "command": "python benchmarks/small_calls.py",
            "shape": [1, TOKENS, DIM],
            "heads": HEADS,
            "quiet": options.quiet,
        }
        write_json(options.out, facts | {"machine": describe_machine(), "rows": rows})


if __name__ == "__main__":
    main()

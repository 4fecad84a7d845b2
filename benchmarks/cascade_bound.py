"""How fast the T2T-ViT-12 cascade could be at batch 1: its arithmetic alone, replayed beside the released path.

    python benchmarks/cascade_bound.py [--repeats 15] [--compile] [--processor-time] [--quiet] [--out FILE]

Every matrix product of one pass of our cascade (and every attention, which is two) is recorded with its operands and then run
again, one after the other, with nothing in between; then the same with activations and norms. No version of the cascade with
the same arithmetic in torch's kernels can be faster. With --compile also `cascade.compile_exits()`, and how long that takes.
"""

import argparse
import time
from pathlib import Path

import torch
from cascade import released_path
from torch.utils._python_dispatch import TorchDispatchMode

import dynavit
from dynavit.bench.exits import exit_gmacs
from dynavit.bench.machine import describe_machine
from dynavit.bench.timing import time_interleaved
from dynavit.common.files import write_json

PRODUCTS = ("addmm", "mm", "bmm", "baddbmm", "convolution", "_scaled_dot_product_flash_attention_for_cpu")
ELEMENTWISE = ("gelu", "native_layer_norm", "_softmax")
SIDE = 1024  # of the large product


class Recorder(TorchDispatchMode):
    """Keeps calls of the named operators, with their operands."""

    def __init__(self, names):
        super().__init__()
        self.names, self.calls = names, []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if function.overloadpacket.__name__ in self.names:
            self.calls.append((function, arguments, options or {}))
        return function(*arguments, **(options or {}))


def replay_of(names, cascade, images):
    with Recorder(names) as recorder:
        cascade(images)

    def replay():
        for function, arguments, options in recorder.calls:
            function(*arguments, **options)

    return replay


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--compile", action="store_true", help="also the compiled exits, which takes minutes")
    parser.add_argument("--processor-time", action="store_true", help="of one thread, for a machine that others use too")
    parser.add_argument("--quiet", action="store_true", help="nothing else was running on the machine")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.processor_time:
        torch.set_num_threads(1)
    clock = time.process_time if options.processor_time else time.perf_counter
    torch.manual_seed(0)
    cascade, images = dynavit.create_model("dvt_t2t_vit_12").eval(), torch.randn(1, 3, 224, 224)
    square = torch.randn(SIDE, SIDE)
    gmacs = exit_gmacs(cascade, images)[-1]
    ways = {
        "released path": lambda: released_path(cascade, images),
        "ours": lambda: cascade(images),
        "products": replay_of(PRODUCTS, cascade, images),
        "products, activations, norms": replay_of(PRODUCTS + ELEMENTWISE, cascade, images),
        "large product": lambda: square @ square,
    }
    facts = {"command": "python benchmarks/cascade_bound.py", "quiet": options.quiet, "processor_time": options.processor_time}
    result = {"machine": describe_machine(), **facts, "repeats": options.repeats, "gmacs": gmacs}
    if options.compile:
        compiled = dynavit.create_model("dvt_t2t_vit_12").eval()
        compiled.load_state_dict(cascade.state_dict())
        compiled.compile_exits()
        start = time.perf_counter()
        for ours, theirs in zip(compiled(images), cascade(images), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
        result["compilation_seconds"] = time.perf_counter() - start
        print(f"compiled in {result['compilation_seconds']:.0f} s", flush=True)
        ways["ours, compiled"] = lambda: compiled(images)
    timings = time_interleaved(ways, options.repeats, inner=1, warmup=2, clock=clock)
    result["milliseconds"] = {name: 1e3 * timing.median for name, timing in timings.items()}
    result["of_released_path"] = {name: timing.ratio(timings["released path"]) for name, timing in timings.items()}
    speeds = {"products": gmacs / timings["products"].median, "large product": SIDE**3 / 1e9 / timings["large product"].median}
    result["gflops"] = {name: 2 * speed for name, speed in speeds.items()}
    print(result["machine"])
    for name, (middle, low, high) in result["of_released_path"].items():
        speed = f"  {result['gflops'][name]:.0f} GFLOP/s" if name in result["gflops"] else ""
        print(
            f"{name:30} {result['milliseconds'][name]:7.1f} ms  {middle:.2f} ({low:.2f}-{high:.2f}) of the released path{speed}"
        )
    if options.out:
        write_json(options.out, result)


if __name__ == "__main__":
    with torch.no_grad():
        main()

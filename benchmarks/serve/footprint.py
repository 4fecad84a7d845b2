"""What the service costs before the first request: seconds from the shell to ready (A11), megabytes of its libraries (A14).

    python benchmarks/serve/footprint.py RUN_OR_BUNDLE... [--repeats 5] [--out FILE]

A start is a process of its own, `dynavit serve`, until it prints its address; processor time is given beside the clock's, which
other work on the machine stretches. The libraries are those of the extra [serve] and what they bring, without what the package
needs anyway.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dynavit.bench.machine import describe_machine
from dynavit.common.files import write_json

MUST_START, MUST_SIZE = 8.0, 25.0  # seconds, megabytes
GOAL_START, GOAL_SIZE = 4.0, 18.0


def start(path):
    """(seconds by the clock, of processor time) until the address is printed."""
    begin = time.perf_counter()
    words = [sys.executable, "-m", "dynavit", "serve", str(path), "--port", "0", "--quiet"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    clock = time.perf_counter() - begin
    cpu = processor_seconds(process.pid)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    if not line.startswith("serving"):
        raise SystemExit(f"{path} was not served")
    return clock, cpu


def processor_seconds(pid):
    """User and system time of a process that is running."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def needed(names):
    """Distributions that these need, themselves included."""
    found, waiting = set(), list(names)
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        extras = ("", *requirement.extras)
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        try:
            requires = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        if name in found and not requirement.extras:
            continue
        found.add(name)
        for line in requires:
            inner = Requirement(line)
            if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(str(inner).partition(";")[0])
    return found


def megabytes(names):
    """Installed size of each, without compiled Python files."""
    sizes = {}
    for name in sorted(names):
        files = distribution(name).files or []
        paths = [Path(str(file.locate())) for file in files if not str(file).endswith(".pyc")]
        sizes[name] = sum(path.stat().st_size for path in paths if path.is_file()) / 1e6
    return sizes


def libraries():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    return megabytes(needed(project["optional-dependencies"]["serve"]) - needed(project["dependencies"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("served", nargs="+", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    starts = {str(path): [] for path in options.served}
    for _ in range(options.repeats):
        for path in options.served:  # in turn
            starts[str(path)].append(start(path))
    result = {"machine": describe_machine(), "A11": {}, "A14": {}}
    for path, pairs in starts.items():
        clock, cpu = (statistics.median(column) for column in zip(*pairs, strict=True))
        wanted = {"must": MUST_START, "goal": GOAL_START}
        name = Path(path).name
        result["A11"][name] = {"seconds": clock, "processor_seconds": cpu, "all": pairs, **wanted}
        print(f"A11 {name}: ready after {clock:.1f} s, {cpu:.1f} s of processor time (must {MUST_START}, goal {GOAL_START})")
    sizes = libraries()
    total = sum(sizes.values())
    result["A14"] = {"megabytes": total, "each": sizes, "must": MUST_SIZE, "goal": GOAL_SIZE}
    each = ", ".join(f"{name} {size:.1f}" for name, size in sorted(sizes.items(), key=lambda pair: -pair[1]))
    print(f"A14: {total:.1f} MB beyond the core (must {MUST_SIZE}, goal {GOAL_SIZE}): {each}")
    if options.out:
        write_json(options.out, result)


if __name__ == "__main__":
    main()

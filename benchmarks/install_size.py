"""Megabytes that a plain `pip install dynavit` brings, package by package.

    python benchmarks/install_size.py [--out FILE]

Counted are dynavit and what it needs without extras, as installed in this environment. Compiled Python files are left out.
"""

import argparse
import platform
import sys
from importlib.metadata import distribution
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "serve"))

from footprint import megabytes, needed

from dynavit.common.files import write_json


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    sizes = sorted(megabytes(needed(["dynavit"])).items(), key=lambda item: -item[1])
    result = {
        "command": "python benchmarks/install_size.py",
        "python": platform.python_version(),
        "total_mb": round(sum(size for _, size in sizes), 1),
        "packages": [{"name": name, "version": distribution(name).version, "mb": round(size, 1)} for name, size in sizes],
    }
    print(f"{result['total_mb']} MB in {len(sizes)} packages")
    for row in result["packages"]:
        print(f"{row['mb']:8.1f}  {row['name']} {row['version']}")
    if out is not None:
        write_json(out, result)


if __name__ == "__main__":
    main()

"""Megabytes that `pip install dynavit` brings, package by package.

    ENVIRONMENT/bin/python benchmarks/install_size.py [--out FILE]

To be run by the interpreter of an environment in which the wheel was installed and nothing else. Compiled Python files are not
counted: pip writes them, and their size depends on the interpreter.
"""

import argparse
import json
import sys
from importlib.metadata import distributions
from pathlib import Path


def megabytes():
    """{distribution: MB}, heaviest first."""
    sizes = {}
    for each in distributions():
        files = [Path(str(file.locate())) for file in each.files or [] if not str(file).endswith(".pyc")]
        sizes[f"{each.name} {each.version}"] = sum(file.stat().st_size for file in files if file.is_file()) / 1e6
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    sizes = {name: size for name, size in megabytes().items() if name.partition(" ")[0] not in ("pip", "setuptools")}
    result = {
        "command": "python benchmarks/install_size.py",
        "python": sys.version.partition(" ")[0],
        "total_mb": round(sum(sizes.values()), 1),
        "mb": {name: round(size, 1) for name, size in sizes.items()},
    }
    text = json.dumps(result, indent=1) + "\n"
    print(text, end="")
    if out is not None:
        out.write_text(text)


if __name__ == "__main__":
    main()

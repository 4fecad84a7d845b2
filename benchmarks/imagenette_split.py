"""Imagenette at 128 pixels with a validation split of its own: every tenth training photograph of each class, by name.

    python benchmarks/imagenette_split.py DATA/imagenette-128 DATA/imagenette-128-e4

The photographs of its `val` become `test`, so that options and thresholds are chosen without them. Files are links.
"""

import argparse
from pathlib import Path


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", type=Path, help="with train/ and val/")
    parser.add_argument("target", type=Path, help="gets train/, val/ and test/")
    options = parser.parse_args()
    for folder in sorted((options.source / "train").iterdir()):
        for place, photograph in enumerate(sorted(folder.iterdir())):
            link(photograph, options.target / ("val" if place % 10 == 0 else "train") / folder.name)
    for folder in sorted((options.source / "val").iterdir()):
        for photograph in sorted(folder.iterdir()):
            link(photograph, options.target / "test" / folder.name)


def link(photograph, folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / photograph.name).symlink_to(photograph.resolve())


if __name__ == "__main__":
    main()

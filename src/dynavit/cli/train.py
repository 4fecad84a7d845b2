"""`dynavit train`: one run."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ..runs.config import TrainConfig


def train(
    config_of_run: TrainConfig,
    out: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
) -> None:
    """Train one model, and evaluate it on the test split at the end.

    The options listed first are the everyday ones, dotted ones set the rest; --download and --strict are short for
    --loading.download and --loading.strict. A run that was interrupted, or killed, goes on exactly where its last checkpoint
    is with `dynavit train --out DIR --resume`. Several processes: `torchrun --nproc_per_node=2 -m dynavit train ...`.
    In Python: `dynavit.train_run(dynavit.TrainConfig(...), out)`.

    Args:
        out: directory of the run; runs/MODEL-NORM-DATA-seedN if not given.
        resume: go on with the run in --out; options that are not given are those it began with.
        overwrite: delete the run in --out and begin again.
        quiet: show no progress.
    """
    from ..engine.progress import choose_progress
    from ..runs.train import train_run

    config = config_of_run
    if resume and out is None:
        raise ValueError("say which run to go on with: --resume needs --out")
    out = out or Path("runs") / f"{config.model}-{config.norm or 'own'}-{config.data.replace('/', '_')}-seed{config.seed}"
    summary = train_run(
        config, out, resume=resume, overwrite=overwrite, progress=choose_progress(quiet), command=["dynavit", *sys.argv[1:]]
    )
    if os.environ.get("RANK", "0") == "0":  # one of torchrun's processes is enough to tell
        _tell(out, summary.steps)


def options_of_the_run(words: Sequence[str]) -> list[str]:
    """`--resume` begins with the options in the run's own config.yaml; the command line may repeat them."""
    words = list(words)
    names = [word.partition("=")[0] for word in words]
    if "--resume" not in names or "--out" not in names:
        return words
    at = names.index("--out")
    out = words[at].partition("=")[2] or (words[at + 1] if at + 1 < len(words) else "")
    stored = Path(out) / "config.yaml"
    return ["--config", str(stored), *words] if out and stored.is_file() else words


train.prepare = options_of_the_run  # type: ignore[attr-defined]


def _tell(out: Path, steps: int) -> None:
    import json

    print(f"{out}: {steps} steps")
    for file in sorted((out / "eval").glob("*.json")):
        result = json.loads(file.read_text())
        print(f"  {file.stem}: top-1 {result['top1']:.2%}, top-5 {result['top5']:.2%} of {result['samples']} images")

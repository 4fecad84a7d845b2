"""`dynavit eval`, `dynavit predict`, `dynavit report`: what can be asked of a finished run."""

import json as json_
from pathlib import Path
from typing import Any, Literal

from .parse import positional
from .robust import evaluate_robustness
from .show import print_table

ALL_SEVERITIES = [1, 2, 3, 4, 5]


@positional("run")
def evaluate(
    run: Path,
    split: str | None = None,
    data: str | None = None,
    data_dir: Path | None = None,
    checkpoint: Literal["last", "best"] = "last",
    weights: Literal["model", "ema"] | None = None,
    batch_size: int = 256,
    device: str | None = None,
    strict: bool = False,
    json: bool = False,
    robust: bool = False,
    baseline: str | None = None,
    corruptions: str | None = None,
    severities: list[int] = ALL_SEVERITIES,
    limit: int | None = None,
    exact: bool = False,
    processes: int = 1,
    imagenet_c: Path | None = None,
    imagenet_r: Path | None = None,
    imagenet_a: Path | None = None,
) -> None:
    """Evaluate a trained model: accuracy, per class, calibration, images per second; or errors on corrupted images.

    Everything is also written to RUN/eval/SPLIT.json. In Python: `dynavit.evaluate_run(run)`.
    With --robust: errors under 15 corruptions at 5 severities, the gap to clean images, mCE, also in RUN/eval/robust and in the
    report. Called again it goes on where it was interrupted. In Python: `dynavit.evaluate_robust(run)`.

    Args:
        run: directory of a run.
        split: test, val or train; test where there is one, otherwise val, if not given.
        data: another data set with the same classes; the run's own if not given.
        data_dir: where the data set lies; as in the run if not given.
        checkpoint: the end of the training, or where validation was best.
        weights: the trained ones or their average; the average if the run kept one.
        batch_size: images at a time.
        device: cpu, cuda, mps; the best there is if not given.
        strict: stop at an image that cannot be read.
        json: print all results as JSON.
        robust: measure errors on corrupted images; the options below are for this.
        baseline: what mCE compares with: a run, or alexnet, whose published errors are the default for ImageNet's classes.
        corruptions: only these, such as fog,frost.
        severities: only these, such as 1,3,5.
        limit: use only so many images, evenly over the split.
        exact: corrupt with the code of the [robust] extra.
        processes: so many corruptions at the same time.
        imagenet_c: folder of ImageNet-C, whose files replace computed corruptions.
        imagenet_r: folder of ImageNet-R; without --corruptions nothing else is evaluated.
        imagenet_a: folder of ImageNet-A, likewise.
    """
    from ..config import TrainConfig, from_plain
    from ..engine.progress import choose_progress
    from ..engine.run_dir import RunDirectory
    from ..runs import evaluate_run

    loading = from_plain(TrainConfig, RunDirectory(run).read_config()).loading
    loading.strict = strict
    common: dict[str, Any] = {"split": split, "data_name": data, "data_dir": data_dir, "loading": loading}
    common |= {"checkpoint": checkpoint, "weights": weights, "batch_size": batch_size, "device": device}
    corruption: dict[str, Any] = {"baseline": baseline, "corruptions": corruptions, "severities": severities, "limit": limit}
    corruption |= {"exact": exact, "processes": processes}
    corruption |= {"imagenet_c": imagenet_c, "imagenet_r": imagenet_r, "imagenet_a": imagenet_a}
    if robust:
        evaluate_robustness(run, common | corruption, json)
        return
    usual = {"severities": ALL_SEVERITIES, "processes": 1}
    if given := [name for name, value in corruption.items() if value and value != usual.get(name)]:
        raise ValueError(f"--{given[0].replace('_', '-')} is for --robust, which measures errors on corrupted images")
    result = evaluate_run(run, **common, progress=choose_progress(quiet=json))
    if json:
        print(json_.dumps({name: value for name, value in result.items() if name != "samples_shown"}))
        return
    speed = result["throughput"]
    exits = {name: value for name, value in result.items() if name.startswith("exit")}  # of a cascade; top-1 is the last one's
    print_table(
        f"{run} ({checkpoint}, {result['weights']} weights): {result['split']} of {result['data']}, {result['samples']} images",
        ["measure", "value"],
        [
            ["top-1", f"{result['top1']:.2%}"],
            ["top-5", f"{result['top5']:.2%}"],
            *([name.replace("_top1", ", top-1"), f"{value:.2%}"] for name, value in exits.items()),
            ["loss", f"{result['loss']:.4f}"],
            ["calibration error (ECE)", f"{result['ece']:.2%}"],
            [f"images/s at batch {speed['batch_size']}", f"{speed['images_per_second']:.0f}"],
        ],
    )
    if len(result["classes"]) <= 20:
        shown = [
            [name, "-" if p is None else f"{p:.2%}"] for name, p in zip(result["classes"], result["per_class"], strict=True)
        ]
        print_table("accuracy of each class", ["class", "top-1"], shown)
    print(f"written to {result['file']}")


@positional("run", "images...")
def predict(
    run: Path,
    images: list[Path],
    top: int = 3,
    checkpoint: Literal["last", "best"] = "last",
    device: str | None = None,
    int8: bool = False,
    json: bool = False,
    out: Path | None = None,
) -> None:
    """Say what a trained model sees in image files.

    A cascade with thresholds (`dynavit calibrate`) stops at the first exit that is sure, and says which.
    A bundle needs neither the training code nor, as ONNX, torch.
    In Python: `dynavit.runs.predict_run(run, images)`, `dynavit.deploy.bundle.runner.load_bundle(path).predict_files(images)`.

    Args:
        run: directory of a run, or a bundle of `dynavit export`.
        images: files, or directories of them.
        top: how many classes to name.
        checkpoint: the end of the training, or where validation was best.
        device: cpu, cuda, mps; the best there is if not given. Bundles run on the CPU.
        int8: the 8-bit model of a bundle.
        json: print JSON.
        out: also write JSON to this file.
    """
    from ..common.files import write_json
    from ..deploy.bundle.manifest import is_bundle

    if is_bundle(run):
        from ..deploy.bundle.runner import load_bundle

        if checkpoint != "last" or device not in (None, "cpu"):
            raise ValueError(f"{run} is a bundle: one set of weights, for the CPU; leave --checkpoint and --device out")
        answers = load_bundle(run, int8=int8).predict_files(images, top)
    else:
        from ..runs import predict_run

        if int8:
            raise ValueError(f"{run} is not a bundle, and only those hold 8-bit weights; see dynavit export --int8")
        answers = predict_run(run, images, top=top, checkpoint=checkpoint, device=device)
    if out is not None:
        write_json(out, answers)
    if json:
        print(json_.dumps(answers, indent=2, ensure_ascii=False))
        return
    for answer in answers:
        if "error" in answer:
            print(f"{answer['image']}: {answer['error']}")
        else:
            named = ", ".join(f"{found['label']} {found['confidence']:.1%}" for found in answer["top"])
            print(f"{answer['image']}: {named}" + (f" (left at exit {answer['exit']})" if "exit" in answer else ""))
    if all("error" in answer for answer in answers):
        raise ValueError("none of the images could be read")


@positional("directory")
def report(directory: Path) -> None:
    """Write the report page of a run or a comparison again, from its files alone.

    In Python: `dynavit.analysis.report.write_report(directory)`.

    Args:
        directory: of a run or a comparison.
    """
    from ..analysis.report import write_report

    print(f"report: {write_report(directory)}")

"""`dynavit predict`: answers of a trained model about image files."""

import json as json_
from pathlib import Path

from ..common.fits import AtLeastOne, Fraction
from ..runs.subject import Subject, Which
from .parse import positional
from .show import print_overview

NO_IMAGES: list[Path] = []


@positional("run", "images...")
def predict(
    run: Path,
    which: Which,
    images: list[Path] = NO_IMAGES,
    top: AtLeastOne = 3,
    split: str | None = None,
    limit: AtLeastOne = 16,
    int8: bool = False,
    trust_pt2: bool = False,
    score: Fraction = 0.5,
    draw: Path | None = None,
    json: bool = False,
    out: Path | None = None,
    quiet: bool = False,
) -> None:
    """Say what a trained model sees in image files, or in some images of a data set if no files are given.

    A cascade with thresholds (`dynavit calibrate`) stops at the first exit that is sure, and says which.
    A bundle needs neither the training code nor, as ONNX, torch.
    In Python: `dynavit.runs.predict.predict_run(run, images)`.

    Args:
        run: directory of a run, or a bundle of `dynavit export`.
        images: files, or directories of them.
        top: how many classes to name.
        split: without files: the split whose images are taken; test where there is one, otherwise val, if not given.
        limit: without files: how many images, evenly over the split.
        int8: the 8-bit model of a bundle.
        trust_pt2: open a .pt2 bundle, which can run any code of the one who made it; without this it is refused.
        score: leave out what a detector is less sure of; 0 keeps all it finds.
        draw: also draw what a detector finds onto the picture: a file for one image, a directory for several.
        json: print JSON, and nothing else.
        out: also write JSON to this file.
        quiet: show no summary.
    """
    from ..common.files import write_json
    from ..runs.predict import draw_answers, predictor

    asked = predictor(Subject.of(run, which), int8=int8, trust_pt2=trust_pt2)
    found = asked.predict_files(images, top) if images else asked.predict_samples(split, limit, top)
    answers = [asked.surer_than(answer, score) for answer in found]
    if out is not None:
        write_json(out, answers)
    failed = sum("error" in answer for answer in answers)
    if json:
        print(json_.dumps(answers, indent=2, ensure_ascii=False))
    else:
        if not quiet and failed < len(answers):
            print_overview(asked.overview())
        for answer in answers:
            print(f"{answer['image']}: {answer['error'] if 'error' in answer else asked.text(answer)}")
    if draw is not None:
        drawn = draw_answers(asked, answers, draw)
        if not json and drawn:
            print(f"drawn: {drawn[0] if len(drawn) == 1 else f'{len(drawn)} pictures in {draw}'}")
    if failed == len(answers):
        raise ValueError("none of the images could be answered")
    if failed:
        raise ValueError(f"{failed} of {len(answers)} images could not be answered; the others are")

"""Sections of image classification: confusion, and some predictions as examples."""

from ....runs.directory import RunDirectory
from ..blocks import Block, Figures, Samples, Section, Table, Text
from ..figures.confusion import confused_pairs, confusion_figure, row_sums, stored_cells
from ..read import Run, named
from ..shapes import check_classified
from ..words import percent, samples_of, split_name

SHOWN_PAIRS = 15


def sections(run: Run) -> list[Section]:
    """From the "confusion", "classes", "samples_shown" and "reliability" of the final evaluation, as far as they are there."""
    found = run.final
    with named(RunDirectory(run.path).evaluation_file(run.split)):
        check_classified(found)
    counts, classes = stored_cells(found.get("confusion")), [str(name) for name in found.get("classes") or []]
    classes = classes or [str(number) for number in range(1 + max((max(cell[:2]) for cell in counts), default=-1))]
    where = f"{run.name} on the {split_name(run.split)}"
    blocks: list[Block] = []
    caption = (
        f"{where}: rows are the true classes, columns the predicted ones, numbers count images. "
        "Blue is right, orange wrong; the stronger the colour, the larger the share of its row."
    )
    if figure := confusion_figure(f"Confusion matrix of {where}", caption, counts, classes):
        blocks.append(Figures([figure]))
    elif pairs := confused_pairs(counts, SHOWN_PAIRS):
        of_class = row_sums(counts)
        rows = [[classes[true], classes[taken], str(n), percent(n / of_class[true])] for true, taken, n in pairs]
        header = ["true class", "predicted", "images", "of its class, %"]
        label = f"The most frequent mistakes of {where}"
        blocks.append(Table(label, header, rows, notes=[f"{label}."]))
    if samples := samples_of(found.get("samples_shown") or [], classes):
        caption = (
            f"Predictions of {where} and their confidence. Wrong ones are underlined and followed by the true class; "
            "how many are shown was chosen and says nothing about the accuracy."
        )
        blocks.append(Samples(samples, caption))
    if found.get("reliability"):
        blocks.append(Text("The calibration error in the results is the mean distance between confidence and accuracy."))
    return [Section("Mistakes and samples", blocks)]

"""What a page says about one run: its validation curves, what its layers learned, its mistakes, its notes."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from ..figures.cells import confused_pairs, confusion_figure, lambda_figure
from ..figures.curves import curves_figure, lambda_paths_figure, over_seeds
from ..page import Block, Facts, Figure, Figures, Notes, Samples, Section, Table, Text
from ..read import Run
from ..table import NOTHING, integer_text, number_text
from ..words import SPLITS, percent, samples_of
from .early_exit import early_exit_section
from .inside import inside_sections
from .robustness import robustness_section

SHOWN_PAIRS = 15
MOMENTS = {"lambda_mean": "mean", "lambda_var": "variance"}


def run_sections(run: Run) -> list[Section]:
    split = "test" if "test" in run.evaluations else next(iter(run.evaluations), "")
    return [
        Section("What was run", [*facts_of([run]), Facts(flat(run.environment), "Machine and versions")]),
        results_section(run),
        training_section(run),
        early_exit_section(run, run.inside.kinds),
        lambda_section([run], run.inside.kinds),
        mistakes_section(run, split),
        robustness_section(run),
        notes_section([run]),
        *inside_sections(run.inside),
    ]


def results_section(run: Run) -> Section:
    rows = [
        [
            name,
            SPLITS.get(found.get("split", ""), found.get("split", NOTHING)),
            found.get("weights", NOTHING),
            integer_text(found.get("samples")),
            percent(found.get("top1")),
            percent(found.get("top5")),
            number_text(found.get("loss"), ".4f"),
            percent(found.get("ece")),
            number_text((found.get("throughput") or {}).get("images_per_second"), ",.0f"),
        ]
        for name, found in run.evaluations.items()
    ]
    if not rows:
        return Section("Results", [Text("This run has not been evaluated yet.")])
    header = ["evaluation", "data", "weights", "samples", "top-1, %", "top-5, %", "loss", "calibration error, %", "images/s"]
    note = "The calibration error is the mean distance between confidence and accuracy; one run has no error bar."
    return Section("Results", [Table("Results of the evaluations", header, rows, notes=[note])])


def training_section(run: Run) -> Section:
    legend = [("validation", "ink", ()), ("training", "series-1", ())]
    accuracy = curves_figure(
        "accuracy", "validation accuracy, %", [(-1, over_seeds([run.curve("eval", "top1")]))], percent=True
    )
    both = [(-1, over_seeds([run.curve("eval", "loss")])), (0, over_seeds([run.curve("train", "loss")]))]
    loss = curves_figure("loss", "loss", both)
    figures = []
    if accuracy:
        figures.append(
            Figure(
                accuracy,
                "Validation accuracy over epochs",
                "Top-1 accuracy on the validation split. Higher is better; the steep beginning may be cut off.",
            )
        )
    if loss:
        caption = "Loss. In training, images may be augmented and labels mixed, so that line can lie higher. Lower is better."
        figures.append(Figure(loss, "Loss over epochs", caption))
    return Section("Training", [Figures(figures, legend)] if figures else [])


def lambda_section(runs: Sequence[Run], inside: Collection[str] = ()) -> Section:
    """λ per layer and head, for each of these runs that logged it; over training only if that is not shown `inside` already."""
    blocks: list[Block] = []
    for run in runs:
        figures = []
        for name, moment in MOMENTS.items():
            if svg := lambda_figure(run, name):
                caption = (
                    f"λ of the {moment} in {run.name} at epoch {run.per_head(name)[-1][0]:g}: a row for each layer, from the "
                    "first to the last, a column for each head. Blue is above 0.5, orange below."
                )
                figures.append(Figure(svg, f"λ of the {moment} per layer and head, {run.name}", caption))
        for name, moment in MOMENTS.items() if "lambda" not in inside else ():
            if svg := lambda_paths_figure(run, name, f"λ of the {moment}"):
                caption = (
                    f"λ of the {moment} in {run.name} over training: a line for each layer, averaged over its heads, from the "
                    "first layer (orange) to the last (blue)."
                )
                figures.append(Figure(svg, f"λ of the {moment} over training, {run.name}", caption))
        if figures:
            blocks.append(Figures(figures))
    what = Text(
        "λ weighs a token's own statistics, as in LayerNorm (λ = 1), against those of the tokens around it (λ = 0). "
        "It is learned for each head, separately for the mean and the variance."
    )
    return Section("λ per layer and head", [what, *blocks] if blocks else [])


def mistakes_section(run: Run, split: str) -> Section:
    found = run.evaluations.get(split, {})
    counts, classes = found.get("confusion") or [], [str(name) for name in found.get("classes") or []]
    classes = classes or [str(number) for number in range(len(counts))]
    where = f"{run.name} on the {SPLITS.get(split, split)}"
    blocks: list[Block] = []
    if svg := confusion_figure(f"{run.name} confusion", counts, classes):
        caption = (
            f"{where}: rows are the true classes, columns what was predicted, numbers count images. "
            "Blue is right, orange wrong; the stronger the colour, the larger the share of its row."
        )
        blocks.append(Figures([Figure(svg, f"Confusion matrix of {where}", caption)]))
    elif pairs := confused_pairs(counts, SHOWN_PAIRS):
        rows = [[classes[true], classes[taken], str(n), percent(n / sum(counts[true]))] for true, taken, n in pairs]
        header = ["true class", "taken for", "images", "of its class, %"]
        blocks.append(
            Table(f"Most frequent mistakes of {where}", header, rows, notes=[f"The most frequent mistakes of {where}."])
        )

    if samples := samples_of(found.get("samples_shown") or [], classes):
        caption = (
            f"Predictions of {where} and their confidence. Wrong ones are underlined and followed by the true class; "
            "how many are shown was chosen and says nothing about the accuracy."
        )
        blocks.append(Samples(samples, caption))
    return Section("Mistakes and samples", blocks)


def notes_section(runs: Sequence[Run], more: Sequence[str] = ()) -> Section:
    """Broken images, fall-backs and the like: each text once, with the runs that noted it."""
    texts: dict[str, Counter[str]] = {}
    for run in runs:
        for line in run.lines("note"):
            texts.setdefault(str(line.get("text", "")), Counter())[run.name] += 1
    notes = []
    for text, who in texts.items():
        names = [name if n == 1 else f"{name} {n} times" for name, n in who.items()]
        notes.append(f"{text} ({', '.join(names)})" if len(runs) > 1 else text)
    return Section("Notes", [Notes([*more, *notes])] if more or notes else [])


def facts_of(runs: Sequence[Run], varied: Sequence[str] = ()) -> list[Block]:
    """The options all runs share, the everyday ones openly and the rest folded away."""
    configs = [dict(flat(run.config)) for run in runs if run.config]
    if not configs:
        return []
    hidden = {*varied, "seed"} if len(runs) > 1 else set()
    shared = {
        name: value
        for name, value in configs[0].items()
        if name not in hidden and all(config.get(name) == value for config in configs[1:])
    }
    everyday = ["data", "model", "norm", "epochs", "batch_size", "lr", "seed"]
    rows = [(name.replace("_", " "), shared.pop(name)) for name in everyday if name in shared]
    blocks: list[Block] = [Facts(rows)] if rows else []
    if shared:
        blocks.append(
            Facts(list(shared.items()), "All other options" if len(runs) == 1 else "All other options the runs share")
        )
    return blocks


def flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested names joined by dots, values as text.

    >>> flat({"optim": {"clip": 1.0}, "norm": "dtn", "note": None})
    [('optim.clip', '1'), ('norm', 'dtn'), ('note', 'none')]
    """
    rows = []
    for name, value in values.items():
        if isinstance(value, dict):
            rows += flat(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            rows.append((prefix + name, ", ".join(map(plain, value))))
        else:
            rows.append((prefix + name, plain(value)))
    return rows


def plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)

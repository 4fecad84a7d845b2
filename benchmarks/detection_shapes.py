"""E10 of plan.md from its runs: AP by seed, differences with intervals, what neighbours in a batch change, and the figure.

python benchmarks/detection_shapes.py judge RUNS      # each run once more on test, one picture and 8 pictures at a time
python benchmarks/detection_shapes.py collect RUNS --out FILE.json --figure FILE.svg

RUNS holds plain/, sizes/, overfit/ and maskrcnn_shapes/. Runs that are not finished are left out.
"""

import argparse
import json
import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from dynavit.analysis.measures.coco_ap import evaluate_detections
from dynavit.analysis.report.figures.canvas import svg_and_png
from dynavit.analysis.report.figures.dots import dots_figure, mean_row
from dynavit.analysis.statistics import paired_difference
from dynavit.bench.machine import describe_machine
from dynavit.common.files import write_json
from dynavit.engine.evaluate import evaluate
from dynavit.runs.subject import Subject

AT_ONCE = (1, 8)  # pictures
DRAWS = 200
PADDINGS = ("none", "norm", "all")
KINDS = ("box_ap", "box_ap50", "box_ap75", "mask_ap", "mask_ap50")


def finished(folder: Path) -> list[Path]:
    return [path.parent for path in sorted(folder.glob("*/finished.json"))]


# ---- Each run once more


def judge(runs: Path) -> None:
    """Write eval/batches.json and eval/batches/N.json (detections) into each run."""
    for run in [*finished(runs / "plain"), *finished(runs / "sizes")]:
        file = run / "eval" / "batches.json"
        if file.is_file():
            continue
        found = {}
        for count in AT_ONCE:
            opened = Subject(run=run).open()
            opened.task.options = replace(opened.task.options, eval_batch=count)
            evaluator = opened.task.evaluator()
            results = evaluate(opened.task, opened.loader("test", count), opened.processes, evaluator=evaluator)
            found[count] = {name: value for name, value in results.items() if name in KINDS}
            write_json(run / "eval" / "batches" / f"{count}.json", evaluator.predictions())
        write_json(file, found)
        print(run.name, found, flush=True)


# ---- Numbers


def read(path: Path):
    return json.loads(path.read_text()) if path.is_file() else None


def grid(folder: Path) -> dict[str, dict[int, dict]]:
    """{setting: {seed: {"box_ap", ..., "images", "batches"}}}"""
    found: dict[str, dict[int, dict]] = defaultdict(dict)
    for run in finished(folder):
        setting, _, seed = run.name.rpartition("-seed")
        result = read(run / "eval" / "test.json")
        row = {name: result[name] for name in KINDS if name in result}
        found[setting][int(seed)] = row | {"images": result["samples"], "batches": read(run / "eval" / "batches.json")}
    return dict(found)


def difference(ours: dict[int, dict], theirs: dict[int, dict]) -> dict | None:
    found = paired_difference(*({seed: row["box_ap"] for seed, row in arm.items()} for arm in (ours, theirs)))
    return found and {"mean": found.mean, "seeds": found.seeds, "interval95": found.interval and list(found.interval)}


def over_pictures(ours: Path, theirs: Path) -> dict | None:
    """The difference in box AP of two runs with pictures drawn anew; both get the same draws. Training is held fixed."""
    files = [run / "eval" / "batches" / "1.json" for run in (ours, theirs)]
    if not all(file.is_file() for file in files):
        return None
    truth = Subject(run=ours).open().data.ground_truth("test")
    wanted = by_image(truth["annotations"])
    arms = [by_image(read(file)) for file in files]
    ids, chance, found = [image["id"] for image in truth["images"]], random.Random(0), []
    for _ in range(DRAWS):
        drawn = chance.choices(ids, k=len(ids))
        images = [{"id": place, "height": 1, "width": 1} for place in range(1, len(drawn) + 1)]
        again = {**truth, "images": images, "annotations": moved(wanted, drawn)}
        aps = [evaluate_detections(again, moved(arm, drawn), kinds=("bbox",))["bbox"]["AP"] for arm in arms]
        found.append(aps[0] - aps[1])
    found.sort()
    return {"draws": DRAWS, "interval95": [found[round(0.025 * DRAWS)], found[round(0.975 * DRAWS) - 1]]}


def by_image(entries):
    found = defaultdict(list)
    for entry in entries:
        found[entry["image_id"]].append({name: value for name, value in entry.items() if name != "segmentation"})
    return found


def moved(entries, drawn):
    return [{**entry, "image_id": place} for place, image in enumerate(drawn, 1) for entry in entries[image]]


def by_heart(run: Path) -> dict:
    """AP on the pictures it was trained on, and how far padding moves scores of one (`dynavit analyze RUN --split train`)."""
    found = {name: value for name, value in (read(run / "eval" / "train.json") or {}).items() if name in KINDS}
    for drift in (read(run / "analysis" / "padding.json") or {"runs": []})["runs"]:
        found["largest_change_of_a_score"] = {mode: max(values["largest"]) for mode, values in drift["modes"].items()}
    return found


def collect(runs: Path) -> dict:
    plain, sizes = grid(runs / "plain"), grid(runs / "sizes")
    pairs = [("plain", "dtn", "ln")]
    pairs += [
        ("sizes", f"{norm}-padding={padding}", f"{norm}-padding=none") for norm in ("dtn", "ln") for padding in PADDINGS[1:]
    ]
    pairs += [("sizes", f"dtn-padding={padding}", f"ln-padding={padding}") for padding in PADDINGS]
    differences = []
    for arm, ours, theirs in pairs:
        rows = {"plain": plain, "sizes": sizes}[arm]
        if ours in rows and theirs in rows:
            row = {"arm": arm, "ours": ours, "theirs": theirs, "box_ap": difference(rows[ours], rows[theirs])}
            row["over_pictures_seed0"] = over_pictures(runs / arm / f"{ours}-seed0", runs / arm / f"{theirs}-seed0")
            differences.append(row)
    heart = {run.name: by_heart(run) for run in finished(runs / "overfit")}
    recipe = read(runs / "maskrcnn_shapes/eval/test.json") if (runs / "maskrcnn_shapes/finished.json").is_file() else None
    return {
        "machine": describe_machine(),
        "command": "python benchmarks/detection_shapes.py judge RUNS && python benchmarks/detection_shapes.py collect RUNS",
        "commands_of_the_runs": "E10 of benchmarks/plan.md",
        "plain": plain,
        "sizes": sizes,
        "differences": differences,
        "by_heart_train_split": heart,
        "maskrcnn_shapes": recipe and {name: recipe[name] for name in KINDS},
    }


# ---- What is shown


def table(found: dict) -> list[str]:
    lines = ["| pictures | norm, padding | box AP by seed, % | mean | 8 to a batch − alone, points |", "|---|---|---|---|---|"]
    for arm, words in (("plain", "one size"), ("sizes", "many sizes")):
        for setting, seeds in found[arm].items():
            aps = [100 * row["box_ap"] for _, row in sorted(seeds.items())]
            moves = [
                100 * (row["batches"][str(AT_ONCE[1])]["box_ap"] - row["batches"][str(AT_ONCE[0])]["box_ap"])
                for row in seeds.values()
                if row["batches"]
            ]
            moved_by = ", ".join(f"{move:+.1f}" for move in moves) or "–"
            name = setting.replace("-padding=", ", ")
            lines.append(
                f"| {words} | {name} | {', '.join(f'{ap:.1f}' for ap in aps)} | {sum(aps) / len(aps):.1f} | {moved_by} |"
            )
    lines += [
        "",
        "| difference in box AP, points | mean | over seeds, 95 % | over pictures, seed 0, 95 % |",
        "|---|---|---|---|",
    ]
    for row in found["differences"]:
        seeds, pictures = row["box_ap"]["interval95"], (row["over_pictures_seed0"] or {}).get("interval95")
        spans = [f"[{100 * span[0]:+.1f}, {100 * span[1]:+.1f}]" if span else "–" for span in (seeds, pictures)]
        names = " − ".join(row[name].replace("-padding=", ", ") for name in ("ours", "theirs"))
        lines.append(
            f"| {row['arm']}: {names} | {100 * row['box_ap']['mean']:+.1f} ({row['box_ap']['seeds']}) | {' | '.join(spans)} |"
        )
    return lines


def figure(found: dict) -> str | None:
    rows = []
    for arm, words in (("plain", "one size"), ("sizes", "many sizes")):
        for setting, seeds in found[arm].items():
            aps = [100 * row["box_ap"] for _, row in sorted(seeds.items())]
            rows.append(mean_row(f"{words}: {setting.replace('-padding=', ', ')}", int(setting.startswith("dtn")), aps))
    drawn = dots_figure("", "", "box AP on test, %", rows)
    return drawn and svg_and_png("detection", drawn)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["judge", "collect"])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figure", type=Path)
    chosen = parser.parse_args()
    if chosen.what == "judge":
        judge(chosen.runs)
        return
    found = json.loads(json.dumps(collect(chosen.runs)))  # as the file has it
    if chosen.out:
        write_json(chosen.out, found)
    if chosen.figure and (drawn := figure(found)):
        chosen.figure.parent.mkdir(parents=True, exist_ok=True)
        chosen.figure.write_text(drawn)
    print("\n".join(table(found)))
    print(json.dumps({"by heart": found["by_heart_train_split"], "maskrcnn_shapes": found["maskrcnn_shapes"]}, indent=1))


if __name__ == "__main__":
    main()

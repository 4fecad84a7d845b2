"""Do norms change what happens inside, and robustness? Statistics of trained runs, norm by norm, over seeds.

    dynavit robust LN_RUN RUN                              for each run first, if corruption errors are wanted
    python benchmarks/inside.py --baseline runs/ln-seed{0,1,2} --other runs/dtn-seed{0,1,2} --data-dir DIR --out FILE

Runs are paired by their seeds. Differences are other minus baseline, with Student's 95 % interval. Only layers where the two
models have different norms count for magnitudes and directions: the last blocks keep LayerNorm in both. With --add, seeds of
earlier files are kept, of runs whose folders are gone with their machine.
"""

import argparse
import json
from pathlib import Path

import torch

from dynavit.analysis.inside.look import look_inside
from dynavit.analysis.probes import norm_sites
from dynavit.analysis.statistics import mean, paired_difference
from dynavit.bench.machine import describe_machine
from dynavit.common.files import write_json
from dynavit.runs.model_files import ModelCard, load
from dynavit.runs.robustness import read_robust
from dynavit.runs.subject import Subject

BATCH = 64


def statistics_of(run, images, norm_paths, data_dir):
    """{name: number} of one run, from images evenly over its test split."""
    opened = Subject(run=run, data_dir=data_dir).open()
    everything = torch.cat([batch.inputs for (batch,) in opened.loader("test", 500).epoch()])
    some = everything[torch.linspace(0, len(everything) - 1, images).round().long()]
    found = look_inside(opened.model, some.split(BATCH), some[:8], layers=norm_paths)
    distance = found["attention_distance"]
    half = distance["layers"][: len(distance["layers"]) // 2]
    norms = [layer for layer in found["magnitudes"]["layers"] if layer["path"] in norm_paths]
    away = [layer["coefficient"] for layer in found["mean_variation"]["layers"] if layer["path"] in norm_paths]
    directions = found["directions"]["layers"]
    values = {
        "share of local heads": distance["local_share"],
        "share of local heads, first half": mean([float(local) for layer in half for local in layer["local"]]),
        "attention distance / uniform": mean([d / layer["uniform"] for layer in distance["layers"] for d in layer["distance"]]),
        "nearest head of a layer / uniform": mean([min(layer["distance"]) / layer["uniform"] for layer in distance["layers"]]),
        "variation of token magnitudes": mean([layer["cv"] for layer in norms]),
        "variation of token magnitudes, per head": mean([mean(layer["cv_heads"]) for layer in norms]),
        "variation coefficient of the mean": mean(away),
        "spread of directions before": mean([layer["spread_before"] for layer in directions]),
        "spread of directions after": mean([layer["spread_after"] for layer in directions]),
    }
    values["clean error"] = 1 - json.loads((run / "eval" / "test.json").read_text())["top1"]
    return values | robustness_of(run), distance


def robustness_of(run):
    """Errors that `dynavit robust` has left behind."""
    found = read_robust(run)
    if not found:
        return {}
    mce = 100.0 if found["mce"] is None else found["mce"]  # the baselines are their own
    return {"mean corrupted error": found["mean_error"], "gap": found["gap"], "mCE": mce}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--baseline", type=Path, nargs="+", required=True)
    parser.add_argument("--other", type=Path, nargs="+", required=True)
    parser.add_argument("--add", type=Path, nargs="+", default=[], help="files of this script")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cards = [ModelCard.read(runs[0]) for runs in (options.baseline, options.other)]
    norm_paths = differing_norms(options.baseline[0], options.other[0])
    earlier = [json.loads(path.read_text()) for path in options.add]
    sides, layers, errors = (by_seed(earlier, part) for part in ("runs", "attention distances", "corruption errors"))
    for side, runs in (("baseline", options.baseline), ("other", options.other)):
        for run in runs:
            seed = json.loads((run / "env.json").read_text())["seed"]
            found, distance = statistics_of(run, options.images, norm_paths, options.data_dir)
            sides.setdefault(side, {})[seed] = found
            layers.setdefault(side, {})[seed] = distance["layers"]
            errors.setdefault(side, {})[seed] = (read_robust(run) or {}).get("errors")
            print(
                side, run.name, {name: None if value is None else round(value, 4) for name, value in found.items()}, flush=True
            )
    rows = []
    for name in next(iter(sides["baseline"].values())):
        baseline, other = (
            {seed: values[name] for seed, values in sides[side].items() if values.get(name) is not None} for side in sides
        )
        difference = paired_difference(other, baseline) if baseline and other else None
        if difference is None:
            continue
        row = {"name": name, "baseline": mean(list(baseline.values())), "other": mean(list(other.values()))}
        row |= {"difference": difference.mean, "interval": difference.interval, "seeds": difference.seeds}
        rows.append(row)
        reach = "" if difference.interval is None else f" [{difference.interval[0]:+.4f}, {difference.interval[1]:+.4f}]"
        print(f"{name:42} {row['baseline']:8.4f} {row['other']:8.4f}  {difference.mean:+.4f}{reach}")
    if options.out is None:
        return
    trained = json.loads((options.other[0] / "env.json").read_text()).get("command")
    write_json(
        options.out,
        {
            "command": "python benchmarks/inside.py --baseline LN_RUNS --other DTN_RUNS",
            "trained": " ".join(without_places(trained or [])),
            "images": options.images,
            "norms": [card.model.get("norm") for card in cards],
            "layers": norm_paths,
            "machine": describe_machine(),
            **(
                {
                    "machines of added seeds": [
                        one for each in earlier for one in (*each.get("machines of added seeds", []), each["machine"])
                    ]
                }
                if earlier
                else {}
            ),
            "rows": rows,
            "runs": sides,
            "attention distances": layers,
            "corruption errors": errors,
        },
    )


def by_seed(files, part):
    """Side -> seed -> what the files say."""
    found = {}
    for side, seeds in (item for file in files for item in file[part].items()):
        found.setdefault(side, {}).update({int(seed): each for seed, each in seeds.items()})
    return found


def without_places(words):
    """A command without directories, which mean nothing elsewhere."""
    return ["..." if word.startswith("/") else word for word in words]


def differing_norms(first, second):
    """Paths of the norms before attention that are of another kind in the two models."""
    one, two = ({site.path: site for site in norm_sites(load(run))} for run in (first, second))
    return [path for path, site in one.items() if site.site == "attn" and type(site.norm) is not type(two[path].norm)]


if __name__ == "__main__":
    main()

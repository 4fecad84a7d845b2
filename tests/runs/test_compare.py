"""Grids of runs: which there are, which are trained, and what becomes of those that fail."""

import json
import shutil

import pytest
import yaml

from dynavit.runs.compare import CompareConfig, Watcher, compare, run_config, settings_of
from dynavit.runs.config import TrainConfig, to_plain
from dynavit.runs.directory import RunDirectory

pytestmark = pytest.mark.usefixtures("nothing_is_drawn_in_this_file")

TINY = {"epochs": 0.2, "model_options": {"depth": 1, "norm_blocks": 1}}


class Told(Watcher):
    """Which runs took steps, and how each ended."""

    def __init__(self):
        self.planned, self.trained, self.results, self.problems = [], set(), {}, {}

    def begin(self, runs):
        self.planned = list(runs)

    def progress(self, run, done, total, text):
        self.trained |= {run} if text else set()

    def finished(self, run, result, problem):
        self.results[run], self.problems[run] = result, problem


@pytest.fixture
def only_training(monkeypatch):
    """Costs are measured in tests/bench; here they only take time."""
    cost = {
        "parameters": 1,
        "gmacs": 1.0,
        "step_seconds": 1.0,
        "step_ratio": 1.0,
        "step_ratio_quartiles": [1.0, 1.0],
        "rounds": 3,
    }
    monkeypatch.setattr(
        "dynavit.bench.cost.training_costs", lambda contestants, baseline: [{"name": name, **cost} for name in contestants]
    )


def told_by(out, **options):
    told = Told()
    config = CompareConfig(**{**TINY, **options})
    config.engine.threads = 1  # sums depend on the number of threads
    compare(config, out, watch=told)
    return told


def files(out):
    """Those of the runs, with their times of change."""
    return {str(file.relative_to(out)): file.stat().st_mtime_ns for file in out.glob("*/**/*") if file.is_file()}


# ---- Which runs there are


def test_settings_are_all_combinations_and_norms_change_slowest():
    config = CompareConfig(norms="ln, dtn", vary={"lr": [0.1, 0.2], "optim.clip": [0, 1]})
    assert [setting.values for setting in settings_of(config)] == [
        {"norm": norm, "lr": lr, "optim.clip": clip} for norm in ("ln", "dtn") for lr in (0.1, 0.2) for clip in (0, 1)
    ]
    assert settings_of(config)[1].name == "ln, lr=0.1, clip=1"
    assert settings_of(config)[1].run_name(7) == "ln-lr=0.1-clip=1-seed7"


def test_a_run_differs_from_the_common_options_by_its_setting_only():
    config = CompareConfig(norms=["ln", "dtn"], lr=0.5, vary={"optim.clip": [3.0], "model_options.depth": [2]}, processes=1)
    (_, setting) = settings_of(config)
    plain = to_plain(run_config(config, setting, 4))
    expected = to_plain(TrainConfig(norm="dtn", seed=4, lr=0.5, model_options={"depth": 2}))
    expected["optim"]["clip"] = 3.0
    assert plain == expected
    assert config.model_options == {}, "the common options are not touched"


def test_runs_at_the_same_time_share_the_cores(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    config = CompareConfig(processes=3)
    assert run_config(config, settings_of(config)[0], 0).engine.threads == 2
    config.engine.threads = 5
    assert run_config(config, settings_of(config)[0], 0).engine.threads == 5, "unless it was said"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norms": ""}, "at least one norm"),
        ({"seeds": []}, "at least one norm and one seed"),
        ({"norms": ["ln", "ln"]}, "given twice"),
        ({"seeds": [1, 1]}, "given twice"),
        ({"baseline": "dnt"}, "unknown baseline 'dnt'. Did you mean 'dtn'"),
        ({"processes": 0}, "processes=0: a whole number at least 1"),
        ({"vary": {"norm": ["ln"]}}, "give --norms"),
        ({"vary": {"seed": [1]}}, "give --seeds"),
        ({"vary": {"lr": 0.1}}, "lr needs a list of values"),
        ({"vary": {"lr": []}}, "lr needs a list of values"),
        ({"vary": {"lrr": [0.1]}}, "unknown option 'lrr'. Did you mean 'lr'"),
        ({"vary": {"augment.padding": [0], "loading.padding": [0]}}, "unknown option 'loading.padding'"),
        ({"vary": {"model": ["a/b", "a-b"]}}, "two settings would have the same name"),
        ({"norms": ["ln", "dnt"]}, "unknown norm 'dnt'"),
    ],
)
def test_mistakes_are_found_before_anything_is_written(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        compare(CompareConfig(**options), tmp_path / "x")
    assert not (tmp_path / "x").exists()


# ---- Training them


@pytest.fixture(scope="module")
def compared(tmp_path_factory, costs_in_few_rounds):
    """Two norms with two learning rates under two seeds, costs measured."""
    out = tmp_path_factory.mktemp("grids") / "grid"
    told = told_by(out, norms=["ln", "dtn"], seeds=[0, 1], vary={"lr": [0.001, 0.002]})
    return out, told


def test_every_combination_is_trained_and_described(compared):
    out, told = compared
    names = {f"{norm}-lr={lr}-seed{seed}" for norm in ("ln", "dtn") for lr in (0.001, 0.002) for seed in (0, 1)}
    assert set(told.planned) == told.trained == {entry.name for entry in out.iterdir() if entry.is_dir()} == names
    assert all(result["split"] == "test" for result in told.results.values())
    assert not any(told.problems.values())
    summary = json.loads((out / "comparison.json").read_text())
    assert summary["varied"] == ["norm", "lr"]
    assert summary["baseline"] == {"norm": "ln", "lr": 0.001}
    assert [row["name"] for row in summary["settings"]] == [
        "ln, lr=0.001", "ln, lr=0.002", "dtn, lr=0.001", "dtn, lr=0.002"
    ]  # fmt: skip
    assert summary["failures"] == {}
    costs = {cost["name"]: cost for cost in summary["cost"]}
    assert set(costs) == {row["name"] for row in summary["settings"]}
    assert costs["ln, lr=0.001"]["step_ratio"] == 1
    assert costs["dtn, lr=0.001"]["parameters"] > costs["ln, lr=0.001"]["parameters"]
    assert costs["dtn, lr=0.001"]["gmacs"] > costs["ln, lr=0.001"]["gmacs"]
    assert "lr=0.002" in (out / "report.html").read_text()


def test_a_run_of_a_grid_is_the_run_of_its_own(compared, tmp_path):
    """Nothing leaks from one run of a process into the next."""
    from dynavit.runs.train import train_run

    out, _ = compared
    train_run(TrainConfig(norm="dtn", lr=0.002, seed=1, **TINY), tmp_path / "alone")
    weights = "checkpoints/last/model.safetensors"
    assert (tmp_path / "alone" / weights).read_bytes() == (out / "dtn-lr=0.002-seed1" / weights).read_bytes()


def test_a_second_call_trains_nothing_and_a_new_seed_only_itself(compared, tmp_path, only_training):
    out = shutil.copytree(compared[0], tmp_path / "copy")
    before = files(out)
    options = {"norms": ["ln", "dtn"], "vary": {"lr": [0.001, 0.002]}}
    told = told_by(out, **options, seeds=[0, 1])
    assert (told.trained, len(told.planned), files(out)) == (set(), 8, before)
    told = told_by(out, **options, seeds=[0, 1, 2])
    assert told.trained == {f"{norm}-lr={lr}-seed2" for norm in ("ln", "dtn") for lr in (0.001, 0.002)}
    assert before.items() <= files(out).items()
    assert json.loads((out / "comparison.json").read_text())["seeds"] == [0, 1, 2]


def test_a_run_that_was_cut_short_goes_on(compared, tmp_path, only_training):
    out = shutil.copytree(compared[0], tmp_path / "copy")
    for name in ("finished.json", "eval"):
        target = out / "ln-lr=0.001-seed0" / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    before = files(out)
    told_by(out, norms=["ln", "dtn"], vary={"lr": [0.001, 0.002]}, seeds=[0, 1])
    changed = {name for name, time in files(out).items() if before.get(name) != time}
    assert {name.partition("/")[0] for name in changed} == {"ln-lr=0.001-seed0"}
    assert RunDirectory(out / "ln-lr=0.001-seed0").final_evaluation() is not None


def test_other_options_need_another_directory(compared, tmp_path, only_training):
    out = shutil.copytree(compared[0], tmp_path / "copy")
    before = files(out)
    told = told_by(out, norms=["ln"], vary={"lr": [0.001]}, seeds=[0], batch_size=32)
    assert "batch_size was 64, is 32" in told.problems["ln-lr=0.001-seed0"]
    assert files(out) == before


def test_overwrite_begins_again(compared, tmp_path, only_training):
    out = shutil.copytree(compared[0], tmp_path / "copy")
    compare(CompareConfig(norms=["rms"], seeds=[3], **TINY), out, overwrite=True)
    assert [entry.name for entry in out.iterdir() if entry.is_dir()] == ["rms-seed3"]


def test_somebodys_directory_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(ValueError, match="holds no comparison.json; choose another --out"):
            compare(CompareConfig(**TINY), tmp_path, overwrite=overwrite)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_fails_does_not_stop_the_others(tmp_path, only_training):
    told = told_by(tmp_path / "x", norms=["ln"], seeds=[0, 1], vary={"model_options.heads": [7, 4]})
    assert told.trained == {"ln-heads=4-seed0", "ln-heads=4-seed1"}
    failures = json.loads((tmp_path / "x" / "comparison.json").read_text())["failures"]
    assert set(failures) == {"ln-heads=7-seed0", "ln-heads=7-seed1"}
    assert "cannot be split into 7 heads" in failures["ln-heads=7-seed0"]


@pytest.mark.slow
def test_processes_train_the_same_as_one(compared, tmp_path, only_training):
    out, _ = compared
    options = {"norms": ["ln", "dtn"], "seeds": [0, 1], "vary": {"lr": [0.001]}}
    told = told_by(tmp_path / "x", **options, processes=2)
    assert not any(told.problems.values())
    assert told.trained == set(told.planned), "workers tell how far they are"
    for name in told.planned:
        weights = "checkpoints/last/model.safetensors"
        assert (tmp_path / "x" / name / weights).read_bytes() == (out / name / weights).read_bytes()


def test_any_failure_of_a_run_leaves_the_others_alone(tmp_path, monkeypatch):
    import dynavit.runs.train
    from dynavit.runs.compare import _train_one

    def fail(*args, **options):
        raise AssertionError("dim should be divisible by num_heads")

    monkeypatch.setattr(dynavit.runs.train, "train_run", fail)
    assert _train_one("x", None, tmp_path, None) == "AssertionError: dim should be divisible by num_heads"


def test_a_pool_that_broke_twice_gives_up_on_the_runs_under_way(tmp_path, monkeypatch):
    from dynavit.runs import compare as module

    calls = []

    def broken(left, out, processes, watch, tell):
        calls.append(list(left))
        if len(calls) <= 2:
            return ["a"]  # it was under way when a process died
        left.clear()
        return []

    monkeypatch.setattr(module, "_train_in_pool", broken)
    failures = module._train_all({"a": None, "b": None}, module.ComparisonDirectory(tmp_path), 2, module.Watcher())
    assert calls == [["a", "b"], ["a", "b"], ["b"]]
    assert list(failures) == ["a"] and "died twice" in failures["a"]


# ---- Equal time


@pytest.fixture
def costs_of_steps(monkeypatch):
    """Ratios in place of measurements: a step of dtn costs 1.25 of ln's, one of rms 0.8. The measured groups are noted."""
    measured = []

    def costs(contestants, baseline):
        measured.append(list(contestants))
        return [{"name": name, "step_ratio": {"ln": 1.0, "dtn": 1.25, "rms": 0.8}[name]} for name in contestants]

    monkeypatch.setattr("dynavit.bench.cost.training_costs", costs)
    return measured


def epochs_of(out, run):
    return yaml.safe_load((out / run / "config.yaml").read_text())["epochs"]


def test_at_equal_time_each_setting_gets_the_epochs_that_fit(tmp_path, costs_of_steps):
    out = tmp_path / "x"
    told_by(out, norms=["ln", "dtn", "rms"], seeds=[0], equal="time")
    assert [epochs_of(out, f"{norm}-seed0") for norm in ("ln", "dtn", "rms")] == [0.2, 0.16, 0.25]
    summary = json.loads((out / "comparison.json").read_text())
    assert summary["equal"] == "time"
    assert {row["name"]: row["epochs"] for row in summary["cost"]} == {"ln": 0.2, "dtn": 0.16, "rms": 0.25}
    assert costs_of_steps == [["ln", "dtn", "rms"]], "measured once, before training"
    assert "Settings were trained for equal time" in (out / "report.html").read_text()


def test_a_resumed_comparison_keeps_the_measured_costs(tmp_path, costs_of_steps, monkeypatch):
    out = tmp_path / "x"
    told_by(out, norms=["ln", "dtn"], seeds=[0], equal="time")
    told = told_by(out, norms=["ln", "dtn", "rms"], seeds=[0], equal="time")
    assert told.trained == {"rms-seed0"} and costs_of_steps == [["ln", "dtn"], ["ln", "rms"]]
    assert epochs_of(out, "rms-seed0") == 0.25
    monkeypatch.setattr("dynavit.bench.cost.training_costs", lambda *_: pytest.fail("measured again"))
    assert told_by(out, norms=["ln", "dtn", "rms"], seeds=[0], equal="time").trained == set()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"equal": "epochs"}, "holds a comparison at equal time; for one at equal epochs choose another --out"),
        ({"equal": "time", "epochs": 0.4}, "compares at the time of 0.2 epochs of ln, not 0.4"),
        ({"equal": "time", "baseline": "dtn"}, "at the time of another baseline than dtn"),
    ],
)
def test_a_comparison_at_equal_time_stays_what_it_is(tmp_path, costs_of_steps, options, message):
    """It is told by its file alone, before anything is trained."""
    out = tmp_path / "x"
    out.mkdir()
    rows = [{"name": "ln", "step_ratio": 1.0, "epochs": 0.2}, {"name": "dtn", "step_ratio": 1.25, "epochs": 0.16}]
    stored = {"varied": ["norm"], "settings": [], "equal": "time", "cost": rows, "machine": {}}
    (out / "comparison.json").write_text(json.dumps(stored))
    before = (out / "comparison.json").read_bytes()
    with pytest.raises(ValueError, match=message):
        told_by(out, norms=["ln", "dtn"], seeds=[0], **options)
    assert (out / "comparison.json").read_bytes() == before


def test_equal_time_decides_the_epochs():
    with pytest.raises(ValueError, match="take epochs out of --vary"):
        CompareConfig(equal="time", vary={"epochs": [1, 2]})

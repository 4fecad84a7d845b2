"""The manners of the command line: help that teaches, one clear line for a mistake, exit codes."""

import inspect
import shlex
import subprocess
import sys

import pytest

from dynavit.cli import main as cli
from dynavit.cli.main import COMMANDS, EXAMPLES, Group, main
from dynavit.cli.parse import _option_types, first_line

# Options of a run, by group; "" are those without a dot.
RUN = {
    "": "model norm data data_dir epochs batch_size lr seed init_from init_partial model_options norm_options task task_options"
    " loading augment optim ema engine",
    "loading": "download strict image_size mean std crop_pct interpolation val_fraction split_seed limit val_limit test_limit"
    " workers train_root train_list val_root val_list options",
    "augment": "recipe padding flip auto_augment erase mixup cutmix label_smoothing repeats",
    "optim": "algorithm momentum backbone_lr weight_decay decay_all betas eps schedule warmup_epochs warmup_steps min_lr clip"
    " clip_mode weight_decay_end accumulate layer_decay",
    "ema": "decay warmup",
    "engine": "precision compile parallel log_every scalars_every eval_every checkpoint_every check_finite threads device"
    " tensorboard",
}
OF_A_RUN = {f"{group}.{name}".strip(".") for group, names in RUN.items() for name in names.split()}


def functions():
    for name, command in COMMANDS.items():
        members = command.members.items() if isinstance(command, Group) else [("", command)]
        yield from ((f"{name} {member}".strip(), function) for member, function in members)


WHICH = {"checkpoint", "weights", "data", "data_dir", "device", "strict"}  # of every command that asks a run

SERVICE = (
    "host port budget budget_range token_file admin_token_file insecure hosts origins metrics_open degrade_to "
    "unready_when_full log_requests name max_body max_bodies max_image max_pixels max_side max_aspect max_images "
    "decode_memory decode_threads decode_wait max_queue max_per_client max_parked max_batch header_time body_time "
    "body_rate body_grace send_time batch_wait_ms hold total_time keep_alive max_connections max_streams max_explain heartbeat "
    "drain_time max_depth max_header max_path overload_status"
)
OF_A_SERVICE = set(SERVICE.split())


def test_commands_and_options_change_only_on_purpose():
    frozen = {
        "train": OF_A_RUN | {"out", "resume", "overwrite", "quiet"},
        "eval": WHICH
        | {"run", "split", "batch_size", "model", "trust_pt2", "json", "quiet", "save_predictions"}
        | {"protocol", "features", "neighbours", "probe_epochs"},
        "robust": WHICH
        | {"runs", "split", "baseline", "corruptions", "severities", "limit", "seed", "exact", "processes", "batch_size"}
        | {"imagenet_c", "imagenet_r", "imagenet_a", "json", "quiet"},
        "compare": OF_A_RUN
        | {"norms", "seeds", "vary", "baseline", "equal", "title", "processes", "out", "overwrite", "quiet"},
        "report": {"directory", "out"},
        "analyze": WHICH | {"runs", "split", "images", "shown", "layers", "token", "out", "quiet"},
        "predict": WHICH
        | {"run", "images", "top", "split", "limit", "int8", "trust_pt2", "json", "out", "quiet", "draw", "score"},
        "calibrate search": WHICH
        | {"run", "gmacs", "milliseconds", "accuracy", "p", "split", "judge", "confidence", "batch_size", "quiet"},
        "calibrate judge": WHICH | {"run", "split", "batch_size", "quiet"},
        "calibrate show": {"run"},
        "fold": WHICH | {"run", "out", "recalibrate", "grid", "overwrite", "quiet"},
        "export": WHICH | {"run", "format", "fold", "int8", "out", "overwrite", "quiet"},
        "serve": WHICH | OF_A_SERVICE | {"run", "samples", "parser", "trust_pt2", "check", "quiet"},
        "pack": {"data", "out", "size", "quality", "shard_images", "processes", "strict", "quiet"},
        "list norms": {"json"},
        "list models": {"pattern", "json"},
        "list tasks": {"json"},
        "list data": {"json"},
        "list recipes": {"json"},
        "bench norms": {"norms", "shapes", "repeats", "sweep", "device", "threads", "out"},
        "bench models": {"models", "sizes", "steps", "repeats", "batch", "img_size", "device", "threads", "out"},
        "bench loop": OF_A_RUN | {"steps", "out"},
        "convert": {"model", "norm", "where", "site", "depth", "start", "input_size", "num_classes", "causal", "json"},
    }
    assert {name: set(_option_types(function)) for name, function in functions()} == frozen


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_help_names_every_command_and_shows_examples(run, words):
    code, out, err = run(*words)
    assert code == 0
    assert err == ""
    assert EXAMPLES in out
    for name, function in functions():
        assert f"  {name}  " in out
        assert first_line(function) in out


def test_every_example_is_a_command_with_options_that_exist(monkeypatch, tmp_path):
    """The examples are parsed (not run): the functions behind them are replaced by ones that take the same arguments."""
    called = []

    def recorder(name, function):
        def record(**options):
            called.append((name, options))

        record.__signature__ = inspect.signature(function)
        record.__doc__ = function.__doc__
        record.__annotations__ = function.__annotations__
        record.positional = getattr(function, "positional", ())
        return record

    recorders = {name: recorder(name, function) for name, function in functions()}
    for name, command in COMMANDS.items():
        if not isinstance(command, Group):
            monkeypatch.setitem(COMMANDS, name, recorders[name])
            continue
        members = {member: recorders[f"{name} {member}"] for member in command.members}
        monkeypatch.setitem(COMMANDS, name, Group(command.about, command.noun, members, command.default))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_norm.py").touch()
    (tmp_path / "bench.yaml").write_text("repeats: 7\nsweep: false\n")
    # the command, up to the gap before its explanation or the redirection
    examples = [
        shlex.split(line.split("   ")[0].split(">")[0])[1:] for line in EXAMPLES.splitlines() if line.startswith("  dynavit")
    ]
    assert {words[0] for words in examples} == set(COMMANDS)
    for words in examples:
        assert main(words) == 0, words
    assert len(called) == len(examples) - 1  # --print_config calls nothing
    assert called[-1][1]["repeats"] == 5
    assert called[-1][1]["sweep"] is False


def test_version(run):
    from importlib.metadata import version

    assert run("--version") == (0, f"dynavit {version('dynavit')}\n", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lst"], "unknown command 'lst'. Did you mean 'list'? Known: " + ", ".join(sorted(COMMANDS))),
        (["list", "nroms"], "unknown thing to list 'nroms'. Did you mean 'norms'? Known: data, models, norms, recipes, tasks"),
        (["bench", "norm"], "unknown benchmark 'norm'. Did you mean 'norms'? Known: loop, models, norms"),
        (["list"], "'dynavit list' needs a thing to list: norms, models, tasks, data, recipes"),
        (["bench", "--repeats", "3"], "'dynavit bench' needs a benchmark: norms, models, loop"),
        (["--repeats", "3"], "the command comes first, got '--repeats'. Commands: " + ", ".join(COMMANDS)),
    ],
)
def test_a_wrong_word_gets_one_line_and_exit_code_2(run, words, message):
    assert run(*words) == (2, "", f"dynavit: {message}\n")


@pytest.mark.parametrize("error", [ValueError("first line\n   second"), FileNotFoundError("first line second")])
def test_errors_of_the_library_are_one_line(run, monkeypatch, error):
    def broken(json: bool = False) -> None:
        raise error

    monkeypatch.setitem(COMMANDS, "broken", broken)
    assert run("broken") == (2, "", "dynavit: first line second\n")
    monkeypatch.setenv("DYNAVIT_DEBUG", "1")
    with pytest.raises(type(error)):
        main(["broken"])


def test_our_own_mistakes_keep_their_traceback(monkeypatch):
    def broken() -> None:
        raise KeyError("a bug")

    monkeypatch.setitem(COMMANDS, "broken", broken)
    with pytest.raises(KeyError):
        main(["broken"])


def test_interruption(run, monkeypatch):
    def stopped() -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, "stopped", stopped)
    assert run("stopped") == (130, "", "dynavit: interrupted\n")


def test_group_help(run):
    code, out, _ = run("bench", "--help")
    assert code == 0
    assert "bench norms   Measure every normaliser" in out


def test_python_dash_m():
    done = subprocess.run([sys.executable, "-m", "dynavit", "lst"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("dynavit: unknown command 'lst'.")


def test_a_reader_that_leaves_is_no_error():
    # The help is longer than nothing, and nobody reads it: the pipe is closed before Python starts to write.
    command = [sys.executable, "-m", "dynavit", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        error = process.stderr.read()
    assert (process.returncode, error) == (0, "")


def test_the_entry_point_is_this_function():
    from importlib.metadata import entry_points

    (entry,) = entry_points(group="console_scripts", name="dynavit")
    assert entry.load() is cli.main

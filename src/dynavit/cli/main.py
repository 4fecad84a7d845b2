"""`dynavit <command> ...`: a table from words to plain functions, and error handling.

A function's docstring is its help, its parameters are its options. Nothing here imports torch: help and typing errors
answer at once, and each function imports what it needs when it runs.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..common.ended import EndedError
from ..common.registry import nearest_match_error
from ..runs.keep import NotStoredError
from .analyze import analyze
from .bench import bench_loop, bench_models, bench_norms
from .calibrate import judge, search, show
from .compare import compare
from .convert import convert
from .evaluate import evaluate
from .export import export
from .fold import fold
from .list import list_data, list_models, list_norms, list_recipes, list_tasks
from .pack import pack
from .parse import first_line, parse_options, take_plugins
from .predict import predict
from .report import report
from .robust import robust
from .serve import serve
from .train import train

Command = Callable[..., None]


@dataclass(frozen=True)
class Group:
    """A command that takes a second word."""

    about: str
    noun: str  # named by the second word, for error messages
    members: dict[str, Command]
    default: str | None = None  # the member that is meant where the second word is none of them


COMMANDS: dict[str, Command | Group] = {
    "train": train,
    "eval": evaluate,
    "robust": robust,
    "compare": compare,
    "report": report,
    "analyze": analyze,
    "predict": predict,
    "calibrate": Group(
        """Thresholds for the exits of a cascade: when an image may leave it.

  dynavit calibrate runs/dvt --accuracy 0.95     finds them on val for a goal (or --gmacs, --milliseconds),
                                                 judges them on test, and stores them for predict and export
  dynavit calibrate judge runs/dvt               the stored ones again, on any split
  dynavit calibrate show runs/dvt                what is stored""",
        "thing to do with thresholds",
        {"search": search, "judge": judge, "show": show},
        default="search",
    ),
    "fold": fold,
    "export": export,
    "serve": serve,
    "list": Group(
        "Show what there is to choose from.",
        "thing to list",
        {"norms": list_norms, "models": list_models, "tasks": list_tasks, "data": list_data, "recipes": list_recipes},
    ),
    "bench": Group(
        "Measure time, memory and arithmetic.", "benchmark", {"norms": bench_norms, "models": bench_models, "loop": bench_loop}
    ),
    "convert": convert,
    "pack": pack,
}

EXAMPLES = """\
Examples:
  dynavit train --norm dtn --epochs 20 --out runs/x       a small vision transformer on the digits that come with the package
  dynavit train --out runs/x --resume                     go on after an interruption
  dynavit train --model vit_tiny_star --norm dtn --data cifar10 --data-dir data --download --seed 1 --engine.precision bf16
  dynavit train --config fashion_mnist --data-dir data    a recipe (see dynavit list recipes); any option may follow
  dynavit eval runs/x --split val --checkpoint best       accuracy, of each class too, and calibration
  dynavit robust runs/ln runs/x --processes 2             errors on corrupted images, and mCE against the first run
  dynavit predict runs/x photo.png scans/ --top 3         what the model sees in image files
  dynavit compare --norms ln,dtn,rms --seeds 0,1,2 --epochs 10 --out runs/norms     means, errors, costs, and a page
  dynavit compare --vary '{"lr":[1e-3,3e-3]}' --processes 2 --out runs/lr     each norm with each learning rate
  dynavit compare --plugin my_norm.py --norms ln,dtn,mine --out runs/mine     a norm of your own beside ours (docs/extend.md)
  dynavit report runs/norms                   the page again, from its files
  dynavit analyze runs/x                      figures of what happens inside: tokens, attention, λ, positions
  dynavit analyze runs/norms --images 256     the settings of a comparison side by side
  dynavit train --model dvt_vit_digits --epochs 8 --lr 3e-3 --out runs/dvt     a cascade: few tokens first, more where needed
  dynavit calibrate runs/dvt --accuracy 0.95     when images may leave it: found on val, judged on test, used by predict
  dynavit calibrate judge runs/dvt --split val       the stored thresholds on another split
  dynavit fold runs/x                         the same model without the norms that fold away, in runs/x-folded
  dynavit export runs/x --fold --int8         ONNX files and how to use them, compared with the model, in runs/x-onnx
  dynavit predict runs/x-onnx photo.png       the same answers without the training code
  dynavit serve runs/dvt                      a page and an HTTP interface: answers within a budget
  dynavit list recipes                        what they cost and what they reached
  dynavit list norms --json                   every normaliser, its options and its size, for programs
  dynavit list models --pattern "vit_*"       models of ours and of timm, and their size
  dynavit convert --model swin_tiny_patch4_window7_224 --norm dtn     what a swap of norms does to each of them
  dynavit pack photos/ packed/ --size 256     tar files of small images, which are read faster than large photographs
  dynavit bench norms                         time and memory against nn.LayerNorm, as tables
  dynavit bench norms --norms ln,dtn --shapes A --no-sweep
  dynavit bench norms --repeats 40 --out runs/bench/norms.json
  dynavit bench models --no-steps             parameters and multiply-adds beside the paper's
  dynavit bench norms --print_config > bench.yaml     write the options down, edit them, and use them:
  dynavit bench norms --config bench.yaml --repeats 5

Options may be written with dashes or underscores, and come from a file with --config; the command line wins.
Every command takes --plugin FILE.py, a file that registers norms, tasks, data sets or models of your own.
DYNAVIT_DEBUG=1 shows the traceback behind an error."""

NOT_STORED = 1
ENDED = 3
WRONG_USE = 2  # the exit code of argparse and most Unix tools for a call that makes no sense


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 0 done, 1 done and told but not stored, 2 wrong use or bad input, 3 a
    training that its task has ended (a collapse), 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        _dispatch(words)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (`| head`) has gone. Python would complain once more while closing stdout, so give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("dynavit: interrupted", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        if os.environ.get("DYNAVIT_DEBUG") == "1":
            raise
        print("dynavit: " + " ".join(str(error).split()), file=sys.stderr)
        return NOT_STORED if isinstance(error, NotStoredError) else ENDED if isinstance(error, EndedError) else WRONG_USE
    return 0


def _dispatch(words: list[str]) -> None:
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return
    if words[0] == "--version":
        from .. import __version__

        print(f"dynavit {__version__}")
        return
    name, *rest = words
    if name.startswith("-"):
        raise ValueError(f"the command comes first, got {name!r}. Commands: {', '.join(COMMANDS)}")
    if name not in COMMANDS:
        raise nearest_match_error("command", name, COMMANDS)
    rest = take_plugins(rest)
    command = COMMANDS[name]
    if isinstance(command, Group):
        if rest[:1] in (["-h"], ["--help"]) or (not rest and command.default is not None):
            print(_group_help(name, command))
            return
        if command.default is not None and rest and rest[0] not in command.members:
            rest = [command.default, *rest]
        if not rest or rest[0].startswith("-"):
            raise ValueError(f"'dynavit {name}' needs a {command.noun}: {', '.join(command.members)}")
        member, *rest = rest
        if member not in command.members:
            raise nearest_match_error(command.noun, member, command.members)
        name, command = f"{name} {member}", command.members[member]
    options = parse_options(command, rest, prog=f"dynavit {name}")
    if options is not None:
        command(**options)


def _help() -> str:
    rows = [row for name, command in COMMANDS.items() for row in _rows(name, command)]
    return "\n".join(
        [
            "Usage: dynavit <command> [options]     dynavit <command> --help     dynavit --version",
            "",
            "Dynamic vision transformers: learned token normalisation and adaptive numbers of tokens.",
            "",
            "Commands:",
            *_aligned(rows),
            "",
            EXAMPLES,
        ]
    )


def _group_help(name: str, group: Group) -> str:
    return "\n".join(
        [
            f"Usage: dynavit {name} <{group.noun}> [options]     dynavit {name} <{group.noun}> --help",
            "",
            group.about,
            "",
            *_aligned(_rows(name, group)),
        ]
    )


def _rows(name: str, command: Command | Group) -> list[tuple[str, str]]:
    if isinstance(command, Group):
        return [(f"{name} {member}", first_line(function)) for member, function in command.members.items()]
    return [(name, first_line(command))]


def _aligned(rows: list[tuple[str, str]]) -> list[str]:
    width = max(len(left) for left, _ in rows)
    return [f"  {left:<{width}}  {right}" for left, right in rows]

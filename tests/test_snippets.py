"""Every Python and shell snippet of README and docs runs.

A document's blocks run in order in one temporary directory, Python in one namespace. `dynavit ...` runs in this process and has
to end with 0. `tests/documents.py` lists the comments that shorten a block, prepare for it or leave it out. There are
`examples/` and `tests/doors/`, `photo.jpg`, `photo.png`, `digit.png` and a folder `scans/` of images.
"""

import shlex
import sys
from types import ModuleType

import pytest
from PIL import Image

from documents import DOCUMENTS, ROOT, Block, read_blocks
from dynavit.cli.main import main

# All that is not run. A new one is a decision: shorten a snippet rather than leave it out.
NOT_RUN = {
    "README.md": ["make", "pip"],
    "CONTRIBUTING.md": ["make"],
    "docs/detection.md": ["pip"],
    "docs/dino.md": ["needs CIFAR-10 and an hour"],
    "docs/export.md": ["pip"],
    "docs/install.md": ["pip"],
    "docs/norms/dtn.md": ["needs a GPU"],
    "docs/page.md": ["it listens until it is stopped"],
    "docs/results/ablations.md": ["needs CIFAR-10 and hours"],
    "docs/results/appendix.md": ["needs CIFAR-10 and hours"],
    "docs/results/cascade.md": ["needs CIFAR-10 and hours"],
    "docs/results/folding.md": ["needs CIFAR-10 and hours"],
    "docs/results/listops.md": ["takes an hour"],
    "docs/results/norms.md": ["needs CIFAR-10 and hours", "needs CIFAR-10 and hours"],
    "docs/results/self_supervision.md": ["needs CIFAR-10 and some minutes for each run"],
    "docs/robustness.md": ["pip", "needs the ImageNet variants"],
    "docs/serve.md": ["pip", "needs a running server", "needs a running server", "needs Ray"],
    "docs/scale.md": ["needs 8 GPUs and ImageNet", "needs 4 nodes and ImageNet", "needs photographs"],
    "docs/tutorials/6_serve.md": ["it listens until it is stopped", "needs a running server"],
}
RUN = {"python", "sh"}
SHOWN = {"text", "toml", "json"}


# Commands of these pages are those of the README, or of tests of their own; the names and options in all of them are checked
# by tests/test_documents.py.
LONG = {
    "docs/analyze.md",
    "docs/cascade.md",
    "docs/detection_models.md",
    "docs/dino.md",
    "docs/export.md",
    "docs/extend.md",
    "docs/recipes.md",
    "docs/results/self_supervision.md",
    "docs/robustness.md",
    "docs/sequences.md",
    "docs/training.md",
    *(name for name in DOCUMENTS if "tutorials/" in name),
}


@pytest.mark.usefixtures("no_guest_stays", "costs_in_few_rounds", "nothing_is_drawn")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in DOCUMENTS if name != "CONTRIBUTING.md"],
)
def test_snippets_run(name, tmp_path, monkeypatch, capsys):
    provide(tmp_path)
    monkeypatch.chdir(tmp_path)
    module = ModuleType(f"snippets_of_{name.removesuffix('.md').replace('/', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in read_blocks(DOCUMENTS[name].read_text()):
        if runs(block):
            run_block(block, name, module, capsys)


def runs(block: Block) -> bool:
    return block.language in RUN and not block.said("file") and not block.said("not run")


def provide(directory):
    """The files that snippets name."""
    (directory / "examples").symlink_to(ROOT / "examples")
    (directory / "tests").symlink_to(ROOT / "tests")
    (directory / "scans").mkdir()
    for file in ("photo.jpg", "photo.png", "scans/one.png"):
        Image.effect_noise((40, 30), 60).convert("RGB").save(directory / file)
    Image.effect_noise((8, 8), 60).save(directory / "digit.png")


def run_block(block: Block, name: str, module: ModuleType, capsys) -> None:
    for line in block.said("before"):
        if line.startswith("dynavit "):
            run_shell(line, f"{name}:{block.line}", capsys)
        else:
            exec(compile(line, f"{name}:{block.line}, before", "exec"), module.__dict__)
    if block.language == "sh":
        run_shell(block.shortened(), f"{name}:{block.line}", capsys)
    else:
        # Lines are numbered as in the document, so that a traceback names them.
        code = compile("\n" * (block.line - 1) + block.shortened(), str(DOCUMENTS[name]), "exec")
        exec(code, module.__dict__)


def run_shell(text: str, where: str, capsys) -> None:
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        assert words[0] == "dynavit", f"{where}: only dynavit runs here; <!-- not run: ... --> leaves this out: {line}"
        code = main(words[1:])
        told = capsys.readouterr()
        assert code == 0, f"{where}: {shlex.join(words)}\n{told.out}{told.err}"


# ---- Rules for documents


@pytest.mark.parametrize("name", DOCUMENTS)
def test_blocks_are_run_or_their_language_says_that_they_are_not(name):
    for block in read_blocks(DOCUMENTS[name].read_text()):
        assert block.language in RUN | SHOWN, f"{name}:{block.line}: a block is one of {sorted(RUN | SHOWN)}"


def test_what_is_not_run_is_listed():
    found = {name: read_blocks(path.read_text()) for name, path in DOCUMENTS.items()}
    reasons = {name: [reason for block in blocks for reason in block.said("not run")] for name, blocks in found.items()}
    assert {name: given for name, given in reasons.items() if given} == NOT_RUN


@pytest.mark.parametrize("name", DOCUMENTS)
def test_code_is_fenced(name):
    lines, inside = DOCUMENTS[name].read_text().splitlines(), False
    for number, line in enumerate(lines, 1):
        inside ^= line.startswith("```")
        before = lines[number - 2] if number > 1 else ""
        begins = not before.strip() or before.startswith("#")
        assert inside or not (begins and line.startswith("    ")), f"{name}:{number}: an indented block is run by no test"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_files_are_shown_as_they_are(name):
    for block in read_blocks(DOCUMENTS[name].read_text()):
        for file in block.said("file"):
            assert block.text == (ROOT / file).read_text(), f"{name}:{block.line} differs from {file}"


# ---- The runner can fail


def blocks_of(*lines):
    return read_blocks("\n".join(lines))


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (("<!-- test: --epochs 20 => 1 -->", "```sh", "dynavit train", "```"), "does not hold '--epochs 20'"),
        (("<!-- tset: a => b -->", "```sh", "```"), "none of file:, test:"),
        (("<!-- not run: GPU -->", "", "```sh", "```"), "directly above its block"),
        (("```sh", "dynavit"), "has no end"),
    ],
)
def test_wrong_comments_are_told(lines, problem):
    with pytest.raises(ValueError, match=problem):
        [block.shortened() for block in blocks_of(*lines)]


def test_a_block_with_all_that_may_stand_above_it():
    above = ("<!-- before: x = 2 -->", "<!-- test: 20 => 1 -->", "<!-- test: two =>  -->")
    (block,) = blocks_of("Words", *above, "```python", "y = 20 * x  # two", "```", "more")
    assert (block.line, block.language, block.shortened()) == (6, "python", "y = 1 * x  # \n")
    module = ModuleType("m")
    run_block(block, "README.md", module, None)
    assert module.y == 2


@pytest.mark.parametrize("line", ["dynavit list nroms", "dynavit train --epochs", "make test"])
def test_a_command_that_fails_fails_the_test(line, capsys):
    with pytest.raises(AssertionError):
        run_shell(f"{line}  # it's \\\n a comment", "here", capsys)


def test_comments_and_continued_lines(capsys, monkeypatch):
    called = []
    monkeypatch.setattr(sys.modules[__name__], "main", lambda words: called.append(words) or 0)
    run_shell("dynavit train \\\n    --norm ln   # it's a comment\n\n# one more\ndynavit --version", "here", capsys)
    assert called == [["train", "--norm", "ln"], ["--version"]]

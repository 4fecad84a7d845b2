"""`dynavit serve` on the command line: help, missing libraries."""

import sys

import pytest


def test_help_teaches(run):
    code, out, _ = run("serve", "--help")
    assert code == 0
    for words in (
        "dynavit serve runs/dvt --budget",
        "--token-file",
        "a mean over many images",
        "--max_queue",
        "--check",
        "code 70",
    ):
        assert words in out, words


@pytest.mark.parametrize("module", ["fastapi", "uvicorn", "prometheus_client", "python_multipart"])
def test_a_missing_library_is_one_sentence_with_the_way_to_get_it(run, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    code, out, err = run("serve", "no-such-run", "--port", "0")
    assert (code, out) == (2, "") and len(err.splitlines()) == 1
    assert f"{module} is not installed" in err and "pip install 'dynavit[serve]'" in err


def test_an_option_that_is_nearly_right(run):
    code, _, err = run("serve", "runs/x", "--max-que", "3")
    assert code == 2 and "max_queue" in err
    code, _, err = run("serve", "runs/x", "--overload-status", "404")
    assert code == 2 and "overload_status" in err

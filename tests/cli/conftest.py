import pytest

from cli.tiny import TINY
from dynavit.cli.main import main


@pytest.fixture
def run(capsys):
    """(exit code, stdout, stderr) of one call."""

    def run(*words):
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A run on digits. For tests that read it; those that write take a copy."""
    out = tmp_path_factory.mktemp("runs") / "digits"
    assert main(["train", *TINY, "--quiet", "--out", str(out)]) == 0
    return out

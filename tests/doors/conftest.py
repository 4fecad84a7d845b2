import pytest

from dynavit.cli.main import main


@pytest.fixture
def run(capsys):
    """(exit code, stdout, stderr) of one call."""

    def run(*words):
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run

import pytest

from dynavit.cli.main import main

# Plug-ins register things when they are imported, which collecting them for doctests would do.
collect_ignore = ["rotation.py", "stripes.py", "killed.py", "fake_detector.py"]


@pytest.fixture
def run(capsys):
    """(exit code, stdout, stderr) of one call."""

    def run(*words):
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run

"""The rule that fails CI on skipped tests, seen to fail and seen to let pass."""

import shutil
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

PASSES = "def test_passes(): pass\n"
SKIPS = "import pytest\ndef test_skips(): pytest.skip('no camera here')\n"
SKIPS_FILE = "import pytest\npytest.importorskip('a_module_that_does_not_exist')\n"
SKIPS_MARK = "import pytest\n@pytest.mark.skipif(True, reason='not today')\ndef test_marked(): pass\n"
NOT_RUN = "import pytest\n@pytest.mark.xfail(run=False, reason='hangs')\ndef test_hangs(): pass\n"
EXPECTED_FAILURE = "import pytest\n@pytest.mark.xfail(reason='known')\ndef test_known(): assert False\n"
GOLDEN = "def test_golden(shared_golden): assert shared_golden.is_dir()\n"
SAYS_SHARED = "import pytest\ndef test_says(): pytest.skip('needs ../shared/golden')\n"


@pytest.fixture
def run(pytester, monkeypatch):
    """Run a test file in a small repository that has our conftest; True if pytest is content."""

    def run(body, *, shared, ci="true", workers=0):
        tests = pytester.mkdir("repo") / "tests"
        tests.mkdir()
        for name in ("conftest.py", "skip_rule.py"):
            shutil.copy(HERE / name, tests)
        (tests / "test_it.py").write_text(PASSES)
        (tests / "test_other.py").write_text(body)
        (tests.parent / "pytest.ini").write_text("[pytest]\npythonpath = tests\n")
        if shared:
            (pytester.path / "shared" / "golden").mkdir(parents=True)
        monkeypatch.chdir(tests.parent)
        monkeypatch.setenv("CI", ci)
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # the others only cost time
        if workers:
            return pytester.runpytest_subprocess("-p", "xdist", "-n", str(workers))
        for name in ("conftest", "skip_rule"):  # the small repository imports its own copies, as a new process would
            monkeypatch.delitem(sys.modules, name, raising=False)
        return pytester.runpytest_inprocess()

    return run


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("body", [SKIPS, SKIPS_FILE], ids=["test", "file"])
def test_a_skip_fails_ci_with_and_without_workers(run, body, workers):
    result = run(body, shared=False, workers=workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*skipped in CI, which counts as failed*", "*test_other.py*: *"])


@pytest.mark.parametrize("body", [SKIPS_MARK, NOT_RUN], ids=["skipif", "xfail_not_run"])
def test_every_way_of_skipping_fails_ci(run, body):
    assert run(body, shared=False).ret == pytest.ExitCode.TESTS_FAILED


def test_shared_tests_may_be_skipped_where_shared_is_absent(run):
    assert run(GOLDEN, shared=False).ret == pytest.ExitCode.OK


def test_shared_tests_run_where_shared_is_present(run):
    result = run(GOLDEN, shared=True)
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=2)


def test_naming_shared_is_no_excuse_where_it_is_present(run):
    assert run(SAYS_SHARED, shared=True).ret == pytest.ExitCode.TESTS_FAILED


def test_expected_failures_are_not_skips(run):
    assert run(EXPECTED_FAILURE, shared=False).ret == pytest.ExitCode.OK


def test_outside_ci_skips_are_free(run):
    assert run(SKIPS, shared=False, ci="").ret == pytest.ExitCode.OK

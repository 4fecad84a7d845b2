"""In CI a skipped test is a promise nobody checked: the run fails, unless the test needs `../shared` and that is absent.

Skips are counted where all reports arrive, in the process that started the workers, so it works with and without xdist.
"""

from pathlib import Path

import pytest

ALLOWED = "needs ../shared"
SHARED = Path(__file__).parents[2] / "shared"


class SkipRule:
    def __init__(self, shared: Path) -> None:
        self.shared_absent = not shared.is_dir()
        self.refused: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._judge(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._judge(report)  # a whole file that skips itself

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.refused:
            terminalreporter.section("skipped in CI, which counts as failed", red=True)
            for line in self.refused:
                terminalreporter.line(line)

    def _judge(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        reason = skip_reason(report)
        if reason is not None and not (self.shared_absent and reason.startswith(ALLOWED)):
            self.refused.append(f"{report.nodeid}: {reason}")


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    """Why this test or file was skipped; None if it ran. An expected failure ran, unless it was told not to."""
    if not report.skipped:
        return None
    expected_failure = getattr(report, "wasxfail", None)
    if expected_failure is not None:
        return expected_failure if "[NOTRUN]" in expected_failure else None
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(report.longrepr)

"""Faults of the process: F16, F24 to F26, and which files it touches (F28). Each starts a process of its own."""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from deploy.serve.live import PATIENCE, answer_of, eventually, in_background
from deploy.serve.stub_model import DEADLY, png
from deploy.serve.test_faults_load import ENDS
from deploy.serve.test_faults_wire import PATHS
from dynavit.cli.main import main

SCRIPT = Path(__file__).with_name("stub_process.py")


class Process:
    def __init__(self, options, cwd):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(cwd)}
        words = [sys.executable, "-W", "error", str(SCRIPT), json.dumps(options)]
        self.popen = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd, env=environment)
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert line, self.popen.communicate()[1].decode()
        self.port, self.ended = int(line), False

    def ask(self, method, path, body=None, headers=None):
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, headers or {})
            return answer_of(connection.getresponse())
        finally:
            connection.close()

    def predict(self, image, query=""):
        return self.ask("POST", f"/v1/predict{query}", image, {"Content-Type": "image/png"})

    def jobs(self):
        stats = self.ask("GET", "/v1/stats")[2]
        return stats["queue"] + stats["running"]

    def signal(self, number):
        self.popen.send_signal(number)

    def release(self):
        """Steps that were held go on."""
        self.signal(signal.SIGUSR1)

    def end(self):
        """(exit code, what it printed last, what it complained about)"""
        self.ended = True
        out, err = self.popen.communicate(timeout=PATIENCE)
        return self.popen.returncode, json.loads(out) if out.strip() else None, err.decode()


@contextmanager
def process(tmp_path, **options):
    running = Process(options, tmp_path)
    try:
        yield running
    finally:
        if running.popen.poll() is None:
            running.popen.kill()
        if not running.ended:
            running.popen.communicate()  # closes its pipes


# ---- F16


@pytest.mark.slow  # by default: one that hangs, above, and one that dies in test_engine.py
def test_f16_the_executor_dies(tmp_path):
    """Everybody who waits is told, and the exit code asks for a new start."""
    with process(tmp_path, held=True, limits={"heartbeat": PATIENCE}) as server:
        running = in_background(1, lambda at: server.predict(png()))
        eventually(lambda: server.jobs() == 1)
        waiting = in_background(3, lambda at: server.predict(png(flag=DEADLY if at == 1 else None)))
        eventually(lambda: server.jobs() == 4)
        server.release()
        assert running()[0][0] == 200
        answers = waiting()  # one batch
        code, _, err = server.end()
        assert code == 70 and "the executor died" in err
        assert [(status, found["code"]) for status, _, found in answers] == [(503, "not_ready")] * 3


def test_f16_the_executor_hangs(tmp_path):
    with process(tmp_path, held=True, limits={"heartbeat": 1.0}) as server:
        assert server.ask("GET", "/v2/health/live")[0] == 200
        status, _, found = server.predict(png(0.1, 0.1))
        assert (status, found["code"]) == (503, "not_ready")
        code, _, err = server.end()
        assert code == 70 and "no sign of life" in err


# ---- F24


def test_f24_sigterm_finishes_what_was_admitted(tmp_path):
    with process(tmp_path, held=True, limits={"max_batch": 4, "heartbeat": PATIENCE}) as server:
        waiting = in_background(12, lambda at: server.predict(png(0.1, 0.1, label=at % 4)))
        eventually(lambda: server.jobs() == 12)
        server.signal(signal.SIGTERM)
        eventually(lambda: server.ask("GET", "/v2/health/ready")[0] == 503)
        status, headers, found = server.predict(png())
        assert (status, found["code"]) == (503, "draining") and "retry-after" in headers
        server.release()
        answers = waiting()
        code, last, err = server.end()
        assert (code, err) == (0, "")
        assert [(status, found["results"][0]["label"]) for status, _, found in answers] == [(200, at % 4) for at in range(12)]
        totals = last["totals"]
        assert totals["images_total"] == 12
        assert totals["images_received_total"] == sum(totals.get(name, 0) for name in ENDS)


def test_f24_a_second_sigterm_does_not_wait(tmp_path):
    with process(tmp_path, held=True, limits={"heartbeat": 10 * PATIENCE, "drain_time": 10 * PATIENCE}) as server:
        waiting = in_background(5, lambda at: server.predict(png()))
        eventually(lambda: server.jobs() == 5)
        server.signal(signal.SIGTERM)
        eventually(lambda: server.ask("GET", "/v2/health/ready")[0] == 503)
        server.signal(signal.SIGTERM)
        assert [(status, found["code"]) for status, _, found in waiting()] == [(503, "draining")] * 5
        assert server.end()[0] == 0


def test_f24_sigkill_leaves_nothing_behind(tmp_path):
    (tmp_path / "empty").mkdir()
    for _ in range(2):  # the second one starts as if there had been none
        with process(tmp_path / "empty") as server:
            assert server.predict(png())[0] == 200
            server.signal(signal.SIGKILL)
            server.popen.wait(PATIENCE)
        assert list((tmp_path / "empty").iterdir()) == []


# ---- F25


def complaint(capsys, *words):
    code = main(["serve", "no-such-run", *map(str, words)])
    told = capsys.readouterr()
    assert told.out == "" and len(told.err.splitlines()) == 1
    return code, told.err


def test_f25_what_cannot_be_listened_on(capsys, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, told = complaint(capsys, "--port", port)
        assert code == 2 and str(port) in told
    code, told = complaint(capsys, "--host", "0.0.0.0", "--port", 0)
    assert code == 2 and "a token is needed" in told
    code, told = complaint(capsys, "--token-file", tmp_path / "nothing", "--port", 0)
    assert code == 2 and "nothing" in told
    (tmp_path / "short").write_text("abc\n")
    code, told = complaint(capsys, "--token-file", tmp_path / "short", "--port", 0)
    assert code == 2 and "at least 16 letters" in told
    code, told = complaint(capsys, "--max-queue", 4, "--port", 0)
    assert code == 2 and "max_queue is 4" in told and "max_images, which is 32" in told
    code, told = complaint(capsys, "--budget", "gmacs", "--port", 0)
    assert code == 2
    code, told = complaint(capsys, "--port", 0)
    assert code == 2 and "no-such-run" in told


def test_f25_check_exits_with_1(capsys):
    with pytest.raises(SystemExit) as end:
        main(["serve", "no-such-run", "--check"])
    assert end.value.code == 1 and "no-such-run" in capsys.readouterr().err


# ---- F26, F28


def test_f26_f28_no_file_is_written_and_none_is_read(tmp_path):
    """Forms of several megabytes, damaged images, and paths that ask for files: the process opens the page and nothing else."""
    with process(tmp_path, files=True) as server:
        noise = os.urandom(3 << 20)
        part = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
        body = part + png() + noise + b"\r\n" + part + noise + b"\r\n--x--\r\n"
        _, _, found = server.ask("POST", "/v1/predict", body, {"Content-Type": "multipart/form-data; boundary=x"})
        assert [each["status"] for each in found["results"]] == [200, 415]
        many = json.dumps({"images": [{"b64": base64.b64encode(png()).decode()}] * 32}).encode()
        assert server.ask("POST", "/v1/predict", many, {"Content-Type": "application/json"})[2]["failed"] == 0
        server.predict(png()[:50])
        for path in PATHS:
            server.ask("GET", path)
        server.ask("GET", "/metrics")
        server.ask("POST", "/v1/sweep", png(), {"Content-Type": "image/png"})
        server.ask("GET", "/")  # the page is a file of the package and read once, which also shows that the watch works
        server.ask("GET", "/")
        server.signal(signal.SIGTERM)
        code, last, err = server.end()
        assert (code, err) == (0, "")
        (only,) = last["opened"]
        assert "page.html 0" in only

"""A13: how large the page is, whether it asks for anything elsewhere, and how fast it follows the slider, in a real Chromium.

`load.py --only A13` runs it with a run on digits; the browser tests B1 to B14 are those of `tests/deploy/serve/test_page*.py`.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.request import urlopen

TESTS = Path(__file__).parents[2] / "tests"
sys.path.insert(0, str(TESTS))

from deploy.serve.browser import BROWSER, Browser  # noqa: E402
from deploy.serve.on_page import answered, visits  # noqa: E402

# At every position, forth and back: milliseconds until all is computed and laid out, and until the next frame shows it.
SLIDE = """(async () => {
  const slider = document.getElementById('slider'), found = [], last = Number(slider.max);
  const places = [...Array(last + 1).keys()];
  for (const at of [...places, ...places.reverse()]) {
    const start = performance.now();
    slider.value = at;
    slider.dispatchEvent(new Event('input', {bubbles: true}));
    document.body.getBoundingClientRect();
    const laid = performance.now() - start;
    await new Promise(shown => requestAnimationFrame(() => setTimeout(shown)));
    found.push([laid, performance.now() - start]);
  }
  return found;
})()"""


class Command:
    """`dynavit serve` of a run, as a user starts it."""

    def __init__(self, run):
        words = [sys.executable, "-m", "dynavit", "serve", str(run), "--port", "0"]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        found = re.search(r"http://\S+:(\d+)", self.process.stdout.readline())
        if found is None:
            raise RuntimeError(f"the server did not start: {' '.join(words)}")
        self.port = int(found[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(40)


def page(run):
    """{"bytes", "requests", "elsewhere", "laid_out_ms", "shown_ms"}; times are those of every move of the slider."""
    with Command(run) as server, tempfile.TemporaryDirectory() as directory, Browser(directory) as browser:
        home = f"http://127.0.0.1:{server.port}/"
        with urlopen(home) as answer:
            size = len(answer.read())
        with visits(browser) as visit:
            tab = visit(server)
            answered(tab)
            tab.run(SLIDE)  # once before, for the compiler
            moves = tab.run(SLIDE)
            asked = list(tab.requests)
        elsewhere = [url for url in asked if not url.startswith((home, "data:", "blob:", "about:"))]
    return {
        "bytes": size,
        "requests": len(asked),
        "elsewhere": elsewhere,
        "laid_out_ms": [laid for laid, _ in moves],
        "shown_ms": [shown for _, shown in moves],
    }


def browser_tests():
    """How many of the page's tests passed and failed."""
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *map(str, sorted((TESTS / "deploy/serve").glob("test_page*.py"))),
    ]
    told = subprocess.run(words, cwd=TESTS.parent, capture_output=True, text=True).stdout
    return {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)", told.splitlines()[-1])}


def available():
    return BROWSER is not None

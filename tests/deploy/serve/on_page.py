"""What tests of the page wait for, do and read; and the check that comes with every visit."""

import zlib
from contextlib import contextmanager

READY = "document.getElementById('state').dataset.is == 'ready' && document.querySelector('.exit') != null"
MEASURED = "state.measured != null && document.getElementById('source').dataset.is == 'measured'"
TOLD = "!document.getElementById('problem').hidden && document.getElementById('problem').innerText"
LOCKED = "!document.getElementById('door').hidden"  # a token is wanted
A_SECOND_LATER = "held.splice(0).forEach(act => act())"  # see `stop_the_clock`
OFFLINE = "document.getElementById('state').dataset.is == 'offline'"


@contextmanager
def visits(browser):
    """A function that opens the page of a server, which has a `port`.

    B10 for every test: no request leaves the origin, no error in the console, no breach of the policy.
    """
    opened = []

    def visit(server, wait=READY, **look):
        home = f"http://127.0.0.1:{server.port}/"
        tab = browser.tab(home, **look)
        opened.append((tab, home))
        tab.until(wait)
        return tab

    yield visit
    for tab, home in opened:
        tab.run("1")  # reads what the browser has told meanwhile
        assert tab.complaints == []
        assert f"{home}v1/info" in tab.requests, "requests were recorded"
        assert [url for url in tab.requests if not url.startswith((home, "data:", "blob:", "about:"))] == []
        tab.close()


def answered(tab, sample=1):
    """Click a sample, and wait until the server has answered at the present budget."""
    tab.click(f"#samples li:nth-child({sample}) button")
    tab.until(f"document.querySelector('#samples li:nth-child({sample}) [aria-pressed=true]') != null && {MEASURED}")


def named(name):
    """The picture of this name is the present one."""
    return f"document.getElementById('file-name').innerText == {name!r}"


def stop_the_clock(tab):
    """Seconds that the page counts before it asks again pass when a test says so (`A_SECOND_LATER`)."""
    tab.run("""window.held = [];
        window.setTimeout = (set => (act, ms) => ms == 1000 ? void held.push(act) : set(act, ms))(setTimeout)""")


def verdicts(tab):
    """Of the exits: "stops here", "not run", ..."""
    return tab.run("[...document.querySelectorAll('.exit .verdict')].map(each => each.innerText)")


def bomb(width, height):
    """A small PNG that claims to be large."""

    def chunk(kind, data):
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\x00\x00\x00"
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")

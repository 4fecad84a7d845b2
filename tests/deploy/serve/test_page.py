"""The page as a file: its size, its policy, and that nothing in it points elsewhere."""

import re

import pytest

from dynavit.deploy.serve.page import page

MOST_BYTES = 80_000


@pytest.fixture(scope="module")
def text():
    content, _ = page()
    return content.decode()


def test_it_is_small(text):
    assert len(text.encode()) <= MOST_BYTES


def test_script_and_style_carry_a_fresh_nonce_and_the_policy_names_it():
    (first, headers), (second, _) = page(), page()
    nonces = re.findall(r'nonce="([^"]+)"', first.decode())
    assert len(nonces) == 2 and len(set(nonces)) == 1 and nonces[0] not in second.decode()
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy == {
        "default-src": "'none'",
        "script-src": f"'nonce-{nonces[0]}'",
        "style-src": f"'nonce-{nonces[0]}'",
        "img-src": "blob: data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }


def test_nothing_comes_from_elsewhere(text):
    addresses = set(re.findall(r"(?:https?:)?//[a-z0-9][\w.-]*\.[a-z]{2,}[^\s\"')]*", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, never fetched
    assert not re.search(r"@import|url\(|<link(?! rel=\"icon\" href=\"data:)|<(script|img|iframe)[^>]*\ssrc=\"", text)


def test_no_word_becomes_an_element_and_nothing_runs_that_the_policy_forbids(text):
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser", text)
    assert not re.search(r"<[a-z][^>]*\s(on\w+|style)=", text)
    assert not re.search(r"localStorage|sessionStorage|indexedDB|document\.cookie", text), "a token is kept in memory only"

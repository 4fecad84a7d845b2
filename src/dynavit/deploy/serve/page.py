"""The page: one file, which loads nothing from elsewhere. A policy with a fresh nonce keeps it so."""

import secrets
from functools import cache
from pathlib import Path

NONCE = "__NONCE__"
POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@cache
def _file() -> str:
    return Path(__file__).with_name("page.html").read_text()


def page() -> tuple[bytes, dict[str, str]]:
    """The page, and the headers it comes with."""
    nonce = secrets.token_urlsafe(18)
    return _file().replace(NONCE, nonce).encode(), {"Content-Security-Policy": POLICY.format(nonce=nonce)}

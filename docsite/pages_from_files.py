"""Pages that work when they are opened from the file system, and load nothing from elsewhere.

The search runs in a worker, and browsers start no worker from a file. The theme's remedy is a script of another server; ours is
the worker's own text in a script beside the pages, from which the browser makes the worker.
"""

import json
import os
import re
from pathlib import Path

NAME = "search_worker.js"
_ELSEWHERE = re.compile(r'<script src="https://[^"]*"[^>]*></script>')
_BUNDLE = re.compile(r'<script src="[^"]*/bundle\.[^"]*"')
_SCRIPT = """\
if (location.protocol === "file:") {
  const address = URL.createObjectURL(new Blob([SOURCE], { type: "text/javascript" }));
  const Native = Worker;
  window.Worker = function (_, options) { return new Native(address, options); };
}
"""


def mend_pages(html: Path) -> None:
    (worker,) = (html / "assets" / "javascripts" / "workers").glob("search.*.js")
    (html / NAME).write_text(_SCRIPT.replace("SOURCE", json.dumps(worker.read_text(encoding="utf-8"))), encoding="utf-8")
    for page in html.rglob("*.html"):
        own = f'<script src="{os.path.relpath(html / NAME, page.parent)}"></script>'
        text = _ELSEWHERE.sub("", page.read_text(encoding="utf-8"))
        text, found = _BUNDLE.subn(lambda bundle, own=own: own + bundle[0], text)
        if found != 1:
            raise ValueError(f"{page.relative_to(html)} has {found} scripts of the theme in place of 1; zensical has changed")
        page.write_text(text, encoding="utf-8")

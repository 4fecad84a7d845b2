"""Notebooks without Jupyter: run one and store what it shows, and make a page of it.

python docsite/notebooks.py examples/dtn_story.ipynb     # run it, and store its outputs in it
"""

import base64
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

Cell = dict[str, Any]
DOTS_PER_INCH = 80  # of stored pictures, so that the file stays small


def read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))


def run(cells: list[Cell], name: str) -> dict[str, Any]:
    """Run the code in order, in one namespace, which is returned. What each cell prints and draws becomes its outputs."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    codes = [cell for cell in cells if cell["cell_type"] == "code"]
    for number, cell in enumerate(codes, 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(_text(cell["source"]), f"{name}, cell {number}", "exec"), namespace)
        words = [{"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())}] if printed.getvalue() else []
        cell["outputs"], cell["execution_count"] = words + _pictures(), number
    return namespace


def _pictures() -> list[dict[str, Any]]:
    """The open figures as Jupyter would store them, each with its title as the text beside it."""
    import matplotlib.pyplot as plt

    found = []
    for number in plt.get_fignums():
        figure, png = plt.figure(number), io.BytesIO()
        figure.savefig(png, format="png", dpi=DOTS_PER_INCH, facecolor="white")
        data = {"image/png": base64.b64encode(png.getvalue()).decode(), "text/plain": [figure.get_suptitle()]}
        found.append({"output_type": "display_data", "data": data, "metadata": {}})
        plt.close(figure)
    return found


def page_of_notebook(file: Path, folder: Path) -> str:
    """Words, code and outputs as Markdown; pictures are written to the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    parts, pictures = [], 0
    for cell in read(file)["cells"]:
        text = _text(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                parts.append(f"```text\n{_text(output['text']).rstrip()}\n```")
            else:
                pictures += 1
                name = f"{file.stem}_{pictures}.png"
                (folder / name).write_bytes(base64.b64decode(output["data"]["image/png"]))
                parts.append(f"![{_text(output['data']['text/plain'])}]({name})")
    return "\n\n".join(parts) + "\n"


def _text(source: str | list[str]) -> str:
    return source if isinstance(source, str) else "".join(source)


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    import matplotlib

    matplotlib.use("Agg")
    target = Path(sys.argv[1])
    notebook = read(target)
    run(notebook["cells"], target.name)
    target.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

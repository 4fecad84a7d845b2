"""README and docs as tests see them: fenced blocks, and the comments above them that tell a test what to do.

    <!-- file: PATH -->            the block equals this file, which is tested elsewhere
    <!-- test: OLD => NEW -->      the test runs NEW in place of OLD, everywhere in the block: fewer epochs, built-in data
    <!-- before: COMMAND -->       run first, unseen by readers: a `dynavit` command, or Python
    <!-- not run: REASON -->       no test can run it; tests/test_snippets.py lists all of these

They stand directly above the block, one to a line, as many as are needed.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = {
    path.relative_to(ROOT).as_posix(): path
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
COMMENT = re.compile(r"<!-- (file|test|before|not run): (.*?) *-->")


@dataclass
class Block:
    """A fenced block.

    Attributes:
        line: number of its first line of code, from 1.
        language: the word behind the fence.
        text: the code.
        comments: (word, rest) of the comments directly above it.
    """

    line: int
    language: str
    text: str = ""
    comments: list[tuple[str, str]] = field(default_factory=list)

    def said(self, word: str) -> list[str]:
        """The comments that begin with this word."""
        return [rest for given, rest in self.comments if given == word]

    def shortened(self) -> str:
        """The code with its substitutions made; one that does not match is an error."""
        text = self.text
        for rule in self.said("test"):
            old, arrow, new = (part.strip(" ") for part in rule.partition("=>"))
            if not arrow or old not in text:
                raise ValueError(f"line {self.line}: the block does not hold {old!r}, which <!-- test: {rule} --> replaces")
            text = text.replace(old, new)
        return text


def read_blocks(text: str) -> list[Block]:
    """All fenced blocks of a document."""
    blocks: list[Block] = []
    open_block: Block | None = None
    comments: list[tuple[str, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if open_block is not None:
            if line == "```":
                blocks.append(open_block)
                open_block = None
            else:
                open_block.text += line + "\n"
        elif line.startswith("```"):
            open_block = Block(number + 1, line.removeprefix("```"), comments=comments)
            comments = []
        elif line.startswith("<!--"):
            match = COMMENT.fullmatch(line)
            if match is None:
                raise ValueError(f"line {number}: {line!r} is none of file:, test:, before:, not run:")
            comments.append((match[1], match[2]))
        elif comments:
            raise ValueError(f"line {number}: a comment for a test stands directly above its block, not above {line!r}")
    if open_block is not None or comments:
        raise ValueError(f"the last block, from line {open_block.line if open_block else number}, has no end")
    return blocks


def prose(text: str) -> str:
    """A document without its fenced blocks and comments, line by line as it was."""
    kept, inside = [], False
    for line in text.splitlines():
        fence = line.startswith("```")
        kept.append("" if inside or fence or line.startswith("<!--") else line)
        inside ^= fence
    return "\n".join(kept)


def quoted(text: str) -> list[str]:
    """Everything in single backticks."""
    return re.findall(r"`([^`\n]+)`", prose(text))

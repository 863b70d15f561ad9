"""The pages of the documentation as tests read them: blocks, the files that they show, commands and shown outputs."""

import dataclasses
import re
import shlex
from pathlib import Path

from markdown_it import MarkdownIt

from docs import generate
from tests import ROOT

TEMPLATE = Path("official_trainer/cli/template/README.md")
GENERATED = {Path("docs/reference", name): text for name, text in generate.pages().items()}
"""The pages that the build of the site writes."""
DOCUMENTS = sorted(
    path.relative_to(ROOT)
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", "launch/*.md", str(TEMPLATE))
    for path in ROOT.glob(pattern)
    if path.relative_to(ROOT) not in GENERATED
)
PAGES = [
    path
    for path in DOCUMENTS
    if str(path) in ("README.md", "launch/README.md", str(TEMPLATE))
    or (path.parts[0] == "docs" and path.parts[1] not in ("project", "design"))
]
"""The pages whose blocks are carried out, each as one session."""

SHELL, SHOWN, PYTHON, FRAGMENT, DIFF = ("sh", "bash", ""), "console", "python", "py", "diff"
LANGUAGES = {*SHELL, SHOWN, PYTHON, FRAGMENT, DIFF, "yaml", "text", "json", "dockerfile", "ini", "toml", "mermaid"}
"""All labels of a block; an unknown one would be a block that nothing runs."""

_PROGRAM = re.compile(r"\s*(\w+=\S+ )*(pip|python|official-trainer) ")
_PATH = re.compile(r"# ((?:[\w-][\w.-]*/)*[\w-][\w.-]*\.(?:py|yaml|toml|gin|sh|json|csv|txt))\n")


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of code; `line` is that of its first line of code, or of its fence."""

    language: str
    text: str
    page: Path
    line: int

    @property
    def place(self):
        return f"{self.page}:{self.line}"

    @property
    def path(self):
        """The file of the workspace that a first line `# folder/name.suffix` says it is."""
        match = _PATH.match(self.text)
        return match[1] if match and self.language not in (FRAGMENT, *SHELL, SHOWN, "text") else None


@dataclasses.dataclass(frozen=True)
class Command:
    """A command line, and the lines that the page shows below it (none outside of a console block)."""

    line: str
    place: str
    shown: tuple = ()

    @property
    def is_refused(self):
        """Whether the page shows it to fail."""
        return any(line.startswith("error: ") for line in self.shown)

    @property
    def line_before_ctrl_c(self):
        """The line after which the page shows `^C`; None if it does not."""
        return self.shown[self.shown.index("^C") - 1] if "^C" in self.shown else None


def read(document):
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(document):
    """Returns the blocks of a document in order; those in lists, quotes and directives too."""
    return [*_blocks(read(document), document, 0)]


def _blocks(text, document, before):
    for token in MarkdownIt().parse(text):
        if token.type == "code_block":  # indented
            yield Block("", token.content, document, before + token.map[0] + 1)
        elif token.type == "fence":
            line = before + token.map[0] + 1
            directive, _, argument = token.info.strip().partition(" ")
            if directive in ("{code-block}", "{code}"):
                text = re.sub(r"\A(:[\w-]+:.*\n)+\n*", "", token.content)
                yield Block(argument.strip(), text, document, line + token.content.count("\n") - text.count("\n"))
            elif directive.startswith("{"):
                yield from _blocks(token.content, document, line)
            else:
                yield Block(directive, token.content, document, line)


def commands(block):
    """Returns the command lines of a block; an unlabelled one may be a diagram, so only known programs count there."""
    if block.language == SHOWN:
        return [*_transcripts(block)]
    if block.language not in SHELL:
        return []
    if "<<" in block.text:  # text for a program: one command for the shell
        return [Command(block.text, block.place)]
    found = (Command(line, f"{block.page}:{block.line + 1 + n}") for n, line in _lines(block.text.splitlines()))
    return [command for command in found if block.language or _PROGRAM.match(command.line)]


def _lines(lines):
    """Yields (number, line) of each line that holds a command; one that ends in a `\\` or in a quotation goes on."""
    number, kept = 0, ""
    for n, line in enumerate(lines):
        number = number if kept else n
        kept += line
        if kept.endswith("\\"):
            kept = kept[:-1]
        elif not _is_open(kept):
            if shlex.split(kept, comments=True):
                yield number, kept
            kept = ""
        else:
            kept += "\n"
    if kept:
        yield number, kept


def _is_open(text):
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return True
    return False


def _transcripts(block):
    line = block.line
    for part in re.split(r"^(?=\$ )", block.text, flags=re.MULTILINE):
        if part.startswith("$ "):
            lines = re.sub(r"\\\n(> )?", "", part[2:]).splitlines()
            yield Command(lines[0], f"{block.page}:{line + 1}", tuple(lines[1:]))
        line += part.count("\n")


_SHELL_SIGNS = re.compile(r"[|&;<>()]+")


def simple_commands(line):
    """Returns (text, words) of each command of a line `A && B`; None if only a shell can run the line."""
    found = []
    for text in re.split(r"\s&&\s", line):
        lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;<>()")
        lexer.whitespace_split = True
        words = [*lexer]
        if any(_SHELL_SIGNS.fullmatch(word) or "$" in word or "`" in word for word in words):
            return None
        found.append((text, words))
    return [(text, words) for text, words in found if words]


def words_of(line):
    """Returns the words of each command of any line, for those who only look at them."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    found = [[]]
    for word in lexer:
        if _SHELL_SIGNS.fullmatch(word):
            found.append([])
        else:
            found[-1].append(word)
    return [words for words in found if words]

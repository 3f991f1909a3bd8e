"""Words that CONTRIBUTING.md asks to avoid are in no comment, docstring, message or page.

`python tests/test_house_style.py FOLDER` counts them in another clone.
"""

import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# a count, a unit or a thing that is counted, then "a" or "an" and what it is divided by
COUNTED = (
    r"\d[\d.e+-]*|[num]?s|[MGK]B|[Ss]econds?|milliseconds?|microseconds|bytes?|bits|cycles|instructions|launches|nats|[Tt]okens|"
    r"[Nn]umbers?|vectors?|products?|[Aa]nswer|columns?|wheels?|threads?|coefficients?|exponentials?|roundings|oscillations"
)
DIVISOR = (
    r"step|second|row|file|mode|weight|recurrent weight|token|sample|unit|channel|layer|head|call|batch|record|run|seed|"
    r"launch|input|sequence|thread|core|figure|member|platform|machine|pass|epoch|hour|state|point|process|kernel|number|feature|block"
)
ISE = "stabil|initial|normal|optim|discret|linear|vector|factor|regular|general|serial|synchron|summar|random|real|minim|organ"

# the first column of the table in CONTRIBUTING.md, and how its word is found
AVOIDED = {
    "a step": rf"\b(?:{COUNTED}) an? (?:{DIVISOR})s?\b(?! (?:is|of|on|changes|time)\b)",
    "came": r"\bcame\b",
    "anew": r"\banew\b",
    "in vain": r"\bin vain\b",
    "bear": r"\bbears?\b",
    "as it comes": r"\bas (?:it|they) comes?\b",
    "without end": r"\bwithout end\b",
    "nobody": r"\b(?:nobody|somebody)\b",
    "believed": r"\bbelieved?\b",
    "all the same": r"\ball the same\b",
    "mend": r"\bmend(?:s|ed)?\b",
    "told": r"\btold\b",
    "goes on": r"\b(?:goes|go|went) on (?:from|where|at|with|until)\b",
    "gives back": r"\bg(?:ives?|ave) back\b",
    "fresh": r"\bfresh(?:ly)?\b",
    "looks on": r"\blooks? on\b(?! (?:a|the|any|every)\b)",
    "of before": r"\bof before\b(?! and)",
    "had back": r"\bhad back\b",
    "say yes when": r"\bsay yes\b",
    "a bad day": r"\bbad day\b",
    "a heap of": r"\bheap of\b",
    "desk": r"\bdesk\b(?!\")",
    "retreat": r"\bretreats?\b",
    "by SGD": r"\bby (?:SGD|Adam)\b",
    "read-out": r"\bread-outs?\b",
    "stabilise": rf"\b(?:{ISE})is(?:e|es|ed|ing|ation|ations)\b",
    "behavior": r"\bbehaviors?\b",
    "is no TOML": r"\b(?:it|that|which|this|one|file|value|name) (?:is|are|was|were) no "
    r"(?!longer|more\b|less\b|later\b|one\b|other|better|worse|larger|smaller|greater|nearer|such)",
    "is not there": r"\b(?:is|are) not there\b|\bthat (?:is|are) there\b",
    "in place of": r"\bin place of\b",
    "from 0 on": r"\bfrom \d+ on\b",
    "goes with": r"\bgo(?:es)? with\b",
}
FINDERS = {
    name: re.compile(pattern, 0 if name in ("a step", "by SGD") else re.IGNORECASE) for name, pattern in AVOIDED.items()
}

# words of kept results, which are part of their record, and of others
QUOTED = (
    "okens a second",
    "a rate that is told from 0",
    "modes a dimension",
    "steps a unit",
    "over keys too, which nobody",
    "latches, it is without end",
    '"without end."',
    "that minimise the condition",
    '"regularised"',  # a status of reconstruct.Decoder
    "floor t + 1 in place of ceil t",
    "of it is no cap",
    "and nobody in the village",  # a sentence that is spoken
)
FOLDERS = ("src", "papers", "docs", "examples", "tools", "tests", "csrc", ".github")
SKIPPED = ("docs/results/", "notebooks/", "tests/test_house_style.py", "CHANGELOG.md", "LICENSE")


def prose(path):
    """(line, text) of what a person reads in a file: comments and strings of code, a page without its code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        kinds = (tokenize.COMMENT, tokenize.STRING)
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in kinds and " " in token.string:
                yield token.start[0], re.sub(r"`[^`]*`|\{[^{}]*\}", "`code`", token.string)
    elif path.suffix == ".md":
        text = re.sub(r"^```.*?^```", lambda code: "\n" * code[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)
        # the table of these words names them
        text = re.sub(r"^\| avoid \|.*?\n\n", lambda t: "\n" * t[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)
        yield 1, re.sub(r"`[^`\n]*`", "`code`", text)
    else:
        comments = (m for m in re.finditer(r"//.*|/\*.*?\*/|#.*", text, re.DOTALL if path.suffix == ".css" else 0))
        for found in comments:
            yield text.count("\n", 0, found.start()) + 1, found[0]


def files(root):
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout.split()
    kinds = (".py", ".md", ".h", ".cpp", ".toml", ".yml")
    for name in listed:
        at_root = "/" not in name
        if name.endswith(kinds) and not name.startswith(SKIPPED) and (at_root or name.startswith(FOLDERS)):
            yield root / name


def findings(root):
    """(word, file:line, excerpt) of each avoided word."""
    for path in files(root):
        for line, text in prose(path):
            for quoted in QUOTED:
                text = text.replace(quoted, "")
            for word, finder in FINDERS.items():
                for found in finder.finditer(text):
                    at = line + text.count("\n", 0, found.start())
                    yield (
                        word,
                        f"{path.relative_to(root)}:{at}",
                        " ".join(text[max(0, found.start() - 30) : found.end() + 20].split()),
                    )


def test_no_avoided_word_is_left():
    assert list(findings(ROOT)) == []


def test_the_table_of_the_guide_lists_each_avoided_word():
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    table = re.search(r"^\| avoid \| use \|\n\| --- \| --- \|\n((?:\|.*\n)+)", guide, re.MULTILINE)[1]
    assert re.findall(r"^\| (.*?) \|", table, re.MULTILINE) == list(AVOIDED)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("a step", "it takes 47 us a step"),
        ("a step", "one answer a sequence"),
        ("came", "expected 3, came 4"),
        ("goes on", "training goes on from there"),
        ("stabilise", "a stabilised model"),
        ("is no TOML", "a file that is no table"),
        ("from 0 on", "a rate from 0 on"),
    ],
)
def test_a_finder_finds_its_word(word, text):
    assert FINDERS[word].search(text)


@pytest.mark.parametrize(
    "text", ["half a step", "the number of a step", "steps per second", "took a row and a column", "it is no larger"]
)
def test_usual_phrases_are_left_alone(text):
    assert not any(finder.search(text) for finder in FINDERS.values())


if __name__ == "__main__":
    counted = Counter(word for word, _, _ in findings(Path(sys.argv[1])))
    print(f"{sum(counted.values())} in all: {dict(counted.most_common())}")  # noqa: T201

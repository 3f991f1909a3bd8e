"""Formulas inside of sentences, as experiments write them (e^{-t/k}, w_j <= beta), typeset as MathML or in Unicode.

A formula is found by its scripts, the name of a Greek letter or an operator of two characters; all other text stays as it
is. Browsers draw MathML themselves, so that the page needs neither a network nor fonts of its own.
"""

from __future__ import annotations

import html
import itertools
import re
from dataclasses import dataclass

from markupsafe import Markup

GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "eps": "ε", "eta": "η", "theta": "θ", "lam": "λ", "lambda": "λ",
    "mu": "μ", "rho": "ρ", "sigma": "σ", "tau": "τ", "phi": "φ", "psi": "ψ", "omega": "ω", "Omega": "Ω", "Lambda": "Λ",
    "Lam": "Λ", "Psi": "Ψ", "Phi": "Φ", "Sigma": "Σ",
}  # fmt: skip
SIGNS = {"<=": "≤", ">=": "≥", "->": "→", "!=": "≠", "inf": "∞"}
RAISED = str.maketrans("0123456789+-=().nikmtx", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾·ⁿⁱᵏᵐᵗˣ")
LOWERED = str.maketrans("0123456789+-=()aehijklmnoprstuvx", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ")

_LETTER = "|".join(sorted(GREEK, key=len, reverse=True))
_NAME = rf"(?:{_LETTER}|sup|max|min|sum|log|d?[A-Za-z]|[A-Z]{{2}})\d?"
_BASE = re.compile(rf"(?<![\w.])(?:{_NAME}|\d+(?:\.\d+)?)(?=[\^_])")
_SCRIPT = re.compile(
    rf"[\^](?:-(?:\d+(?:\.\d+)?[a-z]|(?:\d+|[a-z])/\d+)\b|[-+]?(?:\d+(?:\.\d+)?|{_LETTER}|[A-Za-z]\b|[A-Za-z](?=[_^]))|\+)|_(?:{_LETTER}|[A-Za-z]+\d*|\d+)"
)
_SIGN = re.compile(r"<=|>=|->|!=|(?<![\w.])inf(?!\w)")
_MINUS = re.compile(
    r"(?<=\s)-(?=\s)|(?<![\w.)\]}|'\"-])-(?=[\w.(|])"
)  # not a hyphen: alone between spaces, or before a term
_GREEK = re.compile(rf"(?<![\w.])({_LETTER})(\d?)(?!\w)")
_TOKEN = re.compile(rf"\d+(?:\.\d+)?|(?:{_LETTER})(?![a-z])|[A-Za-z]+|<=|>=|->|!=|\S")
MAX_UNBROKEN = 24  # characters around formulas that a phone's line has room for in one piece
CLOSING = {"(": ")", "{": "}", "[": "]", "|": "|"}


@dataclass(frozen=True)
class Scripts:
    """A base with what stands below and above it, as text."""

    base: str
    below: str
    above: str


def typeset(text: object) -> Markup:
    """The text as HTML, everything escaped, its formulas as MathML and what stands in `backticks` as code."""
    prose = re.split(r"`([^`]+)`", str(text))  # code at the odd places
    pieces = (f"<code>{html.escape(part)}</code>" if k % 2 else _prose(part) for k, part in enumerate(prose))
    return Markup("".join(pieces))  # each of them is escaped


def _prose(text: str) -> str:
    """No line ends between a formula and the sign that stands right behind or before it, as in E_m(beta)."""
    atoms: list[str | Scripts] = []
    for part in _parts(text):
        atoms += [part] if isinstance(part, Scripts) else re.findall(r"\s+|\S+", part)
    made = []
    for space, group in itertools.groupby(atoms, key=lambda atom: isinstance(atom, str) and atom.isspace()):
        word = [*group]
        inner = "".join(_mathml(atom) if isinstance(atom, Scripts) else html.escape(atom) for atom in word)
        whole = not space and len(word) > 1 and sum(len(atom) for atom in word if isinstance(atom, str)) <= MAX_UNBROKEN
        made.append(f'<span class="formula">{inner}</span>' if whole else inner)
    return "".join(made)


def in_unicode(text: str) -> str:
    """The text with its formulas in characters of Unicode, for labels of figures.

    A script that Unicode has no characters for stands in braces, e^{−t/k}: the page's script raises or lowers those.
    """
    return "".join(_characters(part) if isinstance(part, Scripts) else part for part in _parts(text))


def _parts(text: str) -> list[str | Scripts]:
    parts: list[str | Scripts] = []
    place = 0
    while place < len(text):
        part, place = _next(text, place)
        if parts and isinstance(part, str) and isinstance(parts[-1], str):
            parts[-1] += part
        else:
            parts.append(part)
    return parts


def _next(text: str, place: int) -> tuple[str | Scripts, int]:
    """What begins at `place`: a base with scripts, a sign, a Greek letter, or one character."""
    end = _base_end(text, place)
    if end is not None:
        below, above, after = _scripts(text, end)
        if below or above:
            return _named(text[place:end], below, above), after
    for pattern in (_SIGN, _MINUS, _GREEK):
        match = pattern.match(text, place)
        if match and pattern is _GREEK:
            return _named(match.group(), "", ""), match.end()
        if match:
            return SIGNS.get(match.group(), "−"), match.end()
    return text[place], place + 1


def _named(base: str, below: str, above: str) -> Scripts:
    """beta0 is beta with index 0; U1_ij stays U1 with index ij."""
    match = _GREEK.fullmatch(base)
    return Scripts(match.group(1), match.group(2) + below, above) if match else Scripts(base, below, above)


def _base_end(text: str, place: int) -> int | None:
    match = _BASE.match(text, place)
    if match:
        return match.end()
    before = text[place - 1] if place else " "
    if text[place] in "(|[" and not before.isalnum():
        end = _closed(text, place)
        scripts = "^_" if text[place] == "|" else "^"  # |W|_2 is a norm; an index on another bracket is a name's
        return end if end is not None and text[end : end + 1] in [*scripts] else None
    return None


def _scripts(text: str, place: int) -> tuple[str, str, int]:
    scripts = {"_": "", "^": ""}
    while place < len(text) and text[place] in scripts and not scripts[text[place]]:
        kind, after = text[place], text[place + 1 : place + 2]
        if after and after in "{(":
            end = _closed(text, place + 1)
            if end is None:
                break
            scripts[kind], place = text[place + 2 : end - 1], end
            continue
        match = _SCRIPT.match(text, place)
        if match is None:
            break
        scripts[kind], place = match.group()[1:], match.end()
    return scripts["_"], scripts["^"], place


def _closed(text: str, place: int) -> int | None:
    """Where the bracket at `place` ends, within 80 characters; None where it does not."""
    opening, closing, depth = text[place], CLOSING[text[place]], 0
    for k in range(place, min(len(text), place + 80)):
        if text[k] == closing and (opening != closing or k > place):
            depth -= 1
        elif text[k] == opening:
            depth += 1
        if depth == 0:
            return k + 1
    return None


def _mathml(part: Scripts) -> str:
    return f"<math>{_element(part)}</math>"


def _element(part: Scripts) -> str:
    base = _token(part.base) if part.base.isalnum() else _row(part.base)
    pieces = [base, *([_row(part.below)] if part.below else []), *([_row(part.above)] if part.above else [])]
    if len(pieces) == 1:
        return pieces[0]
    name = "msubsup" if len(pieces) == 3 else "msub" if part.below else "msup"
    return f"<{name}>{''.join(pieces)}</{name}>"


def _row(text: str) -> str:
    """The inside of a base or script as one element."""
    made = []
    for part in _parts(text):
        made += [_element(part)] if isinstance(part, Scripts) else [_token(t) for t in _TOKEN.findall(part)]
    return made[0] if len(made) == 1 else f"<mrow>{''.join(made)}</mrow>"


def _token(token: str) -> str:
    if token[0].isdigit():
        return f"<mn>{token}</mn>"
    if token[0].isalpha():
        return f"<mi>{html.escape(GREEK.get(token, token))}</mi>"
    spaces = ' lspace="0" rspace="0"' if token == "|" else ""  # else browsers space |f| like a relation
    return f"<mo{spaces}>{html.escape({'-': '−', '*': '·'}.get(token, token))}</mo>"


def _characters(part: Scripts) -> str:
    base = GREEK.get(part.base) or (part.base if part.base.isalnum() else in_unicode(part.base))
    below, above = in_unicode(part.below), in_unicode(part.above)
    return base + _small(below, LOWERED, "_") + _small(above, RAISED, "^")


def _small(script: str, table: dict[int, int], sign: str) -> str:
    """The script in small characters where Unicode has all of them, else in braces behind its sign."""
    small = script.replace("−", "-").translate(table)
    if all(a != b for a, b in zip(small, script.replace("−", "-"), strict=True)):
        return small
    return f"{sign}{{{script}}}"

"""Formulas in sentences: found, typeset, and never a way for markup to come in."""

import re
from xml.etree import ElementTree

import pytest

from holdfast_papers.report.mathematics import _parts, in_unicode, typeset


@pytest.mark.parametrize(
    ("text", "mathml", "characters"),
    [
        ("k^-2", "<msup><mi>k</mi><mrow><mo>−</mo><mn>2</mn></mrow></msup>", "k⁻²"),
        ("e^{-t/k}", "<msup><mi>e</mi><mrow><mo>−</mo><mi>t</mi><mo>/</mo><mi>k</mi></mrow></msup>", "e^{−t/k}"),
        ("w_j", "<msub><mi>w</mi><mi>j</mi></msub>", "wⱼ"),
        ("beta0", "<msub><mi>β</mi><mn>0</mn></msub>", "β₀"),
        ("theta_max^2", "<msubsup><mi>θ</mi><mi>max</mi><mn>2</mn></msubsup>", "θₘₐₓ²"),
        ("rho", "<mi>ρ</mi>", "ρ"),
        ("G_f", "<msub><mi>G</mi><mi>f</mi></msub>", "G_{f}"),
    ],
)
def test_a_formula_is_typeset(text, mathml, characters):
    assert typeset(f"Here {text} is") == f"Here <math>{mathml}</math> is"
    assert in_unicode(text) == characters


def test_no_line_ends_between_a_formula_and_a_sign_next_to_it():
    tree = ElementTree.fromstring(
        f"<p>{typeset('the (E_m(beta)), and w_j here, for long-words-that-hold-a-beta-and-more')}</p>"
    )
    assert ["".join(span.itertext()) for span in tree.iter("span")] == ["(Em(β)),"]


def test_a_norm_has_its_index_and_its_bars_stand_next_to_what_they_hold():
    bar = '<mo lspace="0" rspace="0">|</mo>'
    assert typeset("|gamma|_2") == f"<math><msub><mrow>{bar}<mi>γ</mi>{bar}</mrow><mn>2</mn></msub></math>"
    assert in_unicode("|gamma|_2") == "|γ|₂"
    assert typeset("(a)_b") == "(a)_b" and "<msub>" not in typeset("f(x)|y|_")


def test_minus_signs_are_no_hyphens_and_hyphens_no_minus_signs():
    assert in_unicode("[-0.55, -0.1], a - b, f = -1/w, -log x") == "[−0.55, −0.1], a − b, f = −1/w, −log x"
    for text in ("held-out", "eq. 96-98", "1e-8", "--check", "read-out", "delta-100"):
        assert "−" not in in_unicode(text)


def test_what_stands_in_backticks_is_code():
    assert typeset("run `holdfast <x_1>` for x_1").startswith("run <code>holdfast &lt;x_1&gt;</code> for <math>")
    assert typeset("a ` alone") == "a ` alone"


@pytest.mark.parametrize(("text", "above"), [("t^-1/2", "-1/2"), ("e^-0.05t cos 0.7t", "-0.05t"), ("e^-t/10", "-t/10")])
def test_a_negative_exponent_holds_what_stands_next_to_it(text, above):
    (script,) = [part for part in _parts(text) if not isinstance(part, str)]
    assert script.above == above


def test_scripts_nest_and_brackets_are_bases_and_scripts():
    assert "<msub><mi>T</mi><mrow><mi>k</mi><mo>+</mo><mn>1</mn></mrow></msub>" in typeset("T_(k+1)")
    assert "<msup><mrow><mo>(</mo><mi>t</mi><mo>+</mo><mn>1</mn><mo>)</mo></mrow>" in typeset("(t+1)^-1.5")
    assert "<msub><mi>β</mi><mn>0</mn></msub>" in typeset("e^{-beta0 t}")


@pytest.mark.parametrize(
    "text", ["kernel_error_bound", "a sentence.", "x_{", "(((^2", "2 < 3 & 4", "delta-like", "inflow"]
)
def test_what_is_no_formula_stays_as_it_is(text):
    assert in_unicode(text).replace("δ", "delta") == text


def test_signs_are_written_as_people_write_them():
    assert in_unicode("a <= b, c >= d, x -> inf, e != f") == "a ≤ b, c ≥ d, x → ∞, e ≠ f"


@pytest.mark.parametrize(
    "text", ["<b>x_1</b>", "e^{<script>alert(1)</script>}", "x_<i>", "(<img src=x onerror=y>)^2", '"q" & k^2']
)
def test_every_text_gives_sound_markup_of_known_elements_alone(text):
    tree = ElementTree.fromstring(f"<p>{typeset(text)}</p>")
    known = {"p", "span", "math", "msub", "msup", "msubsup", "mrow", "mi", "mn", "mo"}
    assert {element.tag for element in tree.iter()} <= known
    known_attributes = ({}, {"class": "formula"}, {"lspace": "0", "rspace": "0"})
    assert all(element.attrib in known_attributes for element in tree.iter())


def test_thousands_of_odd_texts_end_and_lose_no_letter():
    import random

    choose = random.Random(0)
    for _ in range(3000):
        text = "".join(choose.choices(["x", "_", "^", "{", "}", "(", ")", "|", "2", "-", "beta", " ", "<", "."], k=12))
        tree = ElementTree.fromstring(f"<p>{typeset(text)}</p>")
        shown = "".join(tree.itertext()).replace("β", "beta")
        assert sorted(re.sub("[^a-z2]", "", shown)) == sorted(re.sub("[^a-z2]", "", text)), text

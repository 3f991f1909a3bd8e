"""Every public name says what it is and what each of its arguments means."""

import ast
import dataclasses
import doctest
import inspect
import re
import warnings

import pytest

import holdfast
import holdfast.errors
from public_names import SOURCES, modules_with_public_names


def public():
    """Each public function and class once, under the name of the highest package that lists it."""
    found = {}
    for module in modules_with_public_names():
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isfunction(value) or (inspect.isclass(value) and value.__module__.startswith("holdfast")):
                found.setdefault(value, f"{module.__name__}.{name}")
    return found


PUBLIC = public()
FUNCTIONS = [pytest.param(value, id=name) for value, name in PUBLIC.items() if inspect.isfunction(value)]
CLASSES = [pytest.param(value, id=name) for value, name in PUBLIC.items() if inspect.isclass(value)]


def unexplained(parameters, text):
    """The parameters, *constants and **options among them, without a line `name: ...` of their own under Args."""
    inherited = ("args", "kwargs")  # of nn.Module and Protocol, which take neither
    names = [p.name for p in parameters if p.name not in inherited]
    return [name for name in names if not re.search(rf"^    {name}: \S", text, re.MULTILINE)]


def unnamed(parameters, text):
    """The parameters that the text does not name; a method with one or two may do so within a sentence."""
    passed_on = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = [p.name for p in parameters if p.kind not in passed_on and p.name not in ("self", "cls")]
    return [name for name in names if not re.search(rf"\b{name}\b", text)]


def own_doc(value):
    """The docstring that was written for it: not one inherited, nor the signature that dataclasses put in its place."""
    text = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    generated = dataclasses.is_dataclass(value) and (text or "").startswith(f"{value.__name__}(")
    return "" if generated else inspect.cleandoc(text or "")


def ours(cls):
    return [c for c in cls.__mro__ if c.__module__.startswith("holdfast")]


def class_text(cls):
    """What a reader of the class sees of its constructor: the docstrings of it, its bases and their constructors."""
    texts = [own_doc(c) for c in ours(cls)]
    texts += [inspect.cleandoc(vars(c)["__init__"].__doc__ or "") for c in ours(cls) if "__init__" in vars(c)]
    return "\n".join(texts)


def members(cls):
    """(name, function, docstring) of the public methods and properties that the class defines itself."""
    fields = {f.name for f in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    for name, member in vars(cls).items():
        if name.startswith("_") or name in fields:  # a field's default may be a function
            continue
        if isinstance(member, property) or hasattr(member, "func"):
            yield name, None, inspect.getdoc(getattr(cls, name)) or ""
        elif inspect.isfunction(member) or isinstance(member, classmethod | staticmethod):
            yield name, getattr(member, "__func__", member), inspect.getdoc(getattr(cls, name)) or ""


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_public_function_says_what_it_computes_and_explains_each_argument(function):
    assert own_doc(function)
    assert unexplained(inspect.signature(function).parameters.values(), own_doc(function)) == []


@pytest.mark.parametrize("cls", CLASSES)
def test_a_public_class_says_what_it_is_and_explains_each_argument_of_its_constructor(cls):
    assert own_doc(cls)
    if not issubclass(cls, BaseException):
        assert unexplained(inspect.signature(cls).parameters.values(), class_text(cls)) == []


@pytest.mark.parametrize("cls", CLASSES)
def test_each_public_method_says_what_it_does_and_names_each_argument(cls):
    for name, function, text in members(cls):
        assert text, name
        if function is not None:
            assert (name, unnamed(inspect.signature(function).parameters.values(), text)) == (name, [])


def complete():
    """The functions at the root, and what a reader builds: their docstrings have every part."""
    names = [name for name in holdfast.__all__ if inspect.isfunction(getattr(holdfast, name))]
    layers = (
        [*{type.__name__: type for type in holdfast.nn.LAYERS.values()}] if isinstance(holdfast.nn.LAYERS, dict) else []
    )
    models = ["SequenceModel", "SequenceClassifier", "LanguageModel", "RecurrentStack", "StepFunction"]
    found = {f"holdfast.{name}": getattr(holdfast, name) for name in [*names, "GradientMonitor"]}
    return found | {f"holdfast.nn.{name}": getattr(holdfast.nn, name) for name in [*layers, *models]}


COMPLETE = complete()
PAPERS = re.compile(
    r"\b(iat|ssm|linrec|StableSSM)\b|Inverse\s+Approximation\s+Theory|[A-Z]\w+ and [A-Z]\w+, |Griffin|RNNs All"
)
# what no paper defines
NO_SOURCE = {
    "accelerate",
    "compare",
    "diagnose",
    "parameter_groups",
    "recurrences",
    "recurrent_rate",
    "stabilize",
    "study_task",
    "fit_decay",
}
NO_SOURCE |= {"S4D", "SelectiveSSM", "SequenceModel", "SequenceClassifier", "RecurrentStack", "StepFunction"}


@pytest.mark.parametrize("name", COMPLETE)
def test_a_complete_docstring_has_result_errors_source_and_an_example(name):
    text = own_doc(COMPLETE[name])
    assert len(text.splitlines()[0]) <= 125
    assert re.search(r"^Returns:\n    \S", text, re.MULTILINE)
    if name != "holdfast.recurrences":  # it refuses nothing
        errors = re.findall(r"^    (\w+): ", text.split("\nRaises:\n")[1].split("\n\n")[0], re.MULTILINE)
        known = vars(holdfast.errors) | vars(holdfast.memory) | vars(holdfast.stability)
        assert errors and all(issubclass(known[error], holdfast.HoldfastError) for error in errors)
    assert ">>> " in text
    assert PAPERS.search(text) or name.split(".")[-1] in NO_SOURCE


# every function that has an example, wherever it is public
EXAMPLES = COMPLETE | {
    name: value
    for value, name in PUBLIC.items()
    if inspect.isfunction(value) and name not in COMPLETE and ">>> " in own_doc(value)
}


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.usefixtures("user_mistakes")
def test_the_example_of_a_docstring_gives_what_it_shows(name, capsys):
    case = doctest.DocTestParser().get_doctest(own_doc(EXAMPLES[name]), {}, name, None, 0)
    with warnings.catch_warnings():
        done = doctest.DocTestRunner(verbose=False).run(case)
    assert done.attempted > 1
    assert done.failed == 0, capsys.readouterr().out


def test_no_sentence_is_left_behind_by_a_bracket_that_closed_too_early():
    """A text that is not a docstring and goes nowhere is the lost end of a caption or message."""
    lost = []
    for path in (path for source in SOURCES for path in source.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            for k, line in enumerate(node.body if isinstance(getattr(node, "body", None), list) else []):
                text = isinstance(line, ast.Expr) and isinstance(line.value, (ast.Constant, ast.JoinedStr))
                docstring = k == 0 and isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
                if text and not docstring and not _is_ellipsis(line):
                    lost.append(f"{path}:{line.lineno}")
    assert lost == []


def _is_ellipsis(line):
    return isinstance(line.value, ast.Constant) and line.value.value is ...

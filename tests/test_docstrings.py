"""Every public name says what it is and what each of its arguments means."""

import ast
import dataclasses
import inspect
import re

import pytest

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


def test_no_sentence_is_left_behind_by_a_bracket_that_closed_too_early():
    """A text that is no docstring and goes nowhere is the lost end of a caption or message."""
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

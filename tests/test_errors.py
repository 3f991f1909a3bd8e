import pytest

from holdfast import errors


def test_every_error_has_the_one_base_class():
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, Exception)]
    assert len(classes) > 5
    assert all(issubclass(c, errors.HoldfastError) for c in classes)


@pytest.mark.parametrize(("name", "nearest"), [("sofplus", "softplus"), ("EXP", "exp"), ("bst", "best")])
def test_unknown_name_lists_the_known_ones_nearest_first(name, nearest):
    error = errors.unknown_name("thing", name, ["relu", "exp", "softplus", "best"])
    assert str(error).startswith(f"unknown thing {name!r}. Did you mean {nearest!r}? Known: {nearest}, ")
    assert all(known in str(error) for known in ("relu", "exp", "softplus", "best"))


def test_of_many_names_the_nearest_twenty_are_listed_and_the_others_counted():
    names = [f"name{i}" for i in range(30)]
    text = str(errors.unknown_name("thing", "name29x", names))
    assert "Known: name29, " in text
    assert sum(f"{name}," in text or f"{name} " in text for name in names) == errors.SHOWN
    assert text.endswith(" and 10 more.")


def test_a_name_like_nothing_known_gets_the_plain_list():
    text = str(errors.unknown_name("thing", "zzzz", ["b", "a"]))
    assert text == "unknown thing 'zzzz'. Known: a, b."

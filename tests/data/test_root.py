"""Where data sets are looked for: HOLDFAST_DATA, else the user's cache folder."""

from pathlib import Path

import pytest

from holdfast.data import SETS, data_root, find_sets
from holdfast.errors import ArgumentError


def test_the_named_folder_is_the_data_root(tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path))
    assert data_root() == tmp_path


def test_a_named_folder_that_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path / "none"))
    with pytest.raises(ArgumentError, match=r"must name a folder, got .*; create it or unset the variable"):
        data_root()


def test_without_a_name_it_is_in_the_users_cache_whatever_lies_beside_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("HOLDFAST_DATA", raising=False)
    (tmp_path / "shared" / "data").mkdir(parents=True)
    (tmp_path / "clone").mkdir()
    monkeypatch.chdir(tmp_path / "clone")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_root() == tmp_path / "cache" / "holdfast" / "data"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == Path(tmp_path / ".cache" / "holdfast" / "data")


def test_a_set_is_there_when_every_one_of_its_files_is(tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    for name in SETS["mnist"]:
        assert not find_sets()["mnist"]
        (tmp_path / "mnist" / name).touch()
    assert [name for name, there in find_sets().items() if there] == ["mnist"]

import json
import math
import os
import random
import re
from pathlib import Path

import numpy as np
import pytest

from holdfast import Claim, Provenance, Result
from holdfast.errors import ArgumentError, DamagedResultError
from holdfast.results import config_hash, write_atomically


@pytest.fixture
def result():
    rng = np.random.default_rng(0)
    return Result(
        experiment="iat-fig1",
        config={
            "m": [2, 4],
            "law": "power",
            "exponent": 1.1,
            "limit": math.inf,
            "nested": {"flag": True, "none": None},
        },
        arrays={
            "errors": np.array([[1.0, np.inf], [np.nan, 1e-300]]),
            "modes": rng.normal(size=(20, 3)) + 1j * rng.normal(size=(20, 3)),
            "steps": np.arange(7),
        },
        claims=[
            Claim("radius", "the radius shrinks", "met", {"slope": -1.9}, {"slope": -2.0}),
            Claim("stable", "E stays finite", "not met", {"worst": math.inf}, explanation="one draw left the ball"),
        ],
        provenance=Provenance.collect(seed=3, preset="quick"),
        log=[{"step": 0, "loss": 0.5}, {"step": 1, "loss": math.nan}],
    )


def test_everything_comes_back_as_it_was_saved(result, tmp_path):
    again = Result.load(result.save(tmp_path / "unit"))
    assert again.config == result.config
    assert list(again.claims) == list(result.claims)
    assert again.provenance == result.provenance
    assert again.log[0] == result.log[0]
    assert math.isnan(again.log[1]["loss"])
    assert set(again.arrays) == set(result.arrays)
    for name, array in result.arrays.items():
        assert again.arrays[name].dtype == array.dtype
        assert np.array_equal(again.arrays[name], array, equal_nan=array.dtype.kind == "f")


def test_result_json_is_plain_json_that_other_programs_can_read(result, tmp_path):
    body = json.loads((result.save(tmp_path) / "result.json").read_text())
    assert body["experiment"] == "iat-fig1"
    assert body["config"]["limit"] == {"float": "inf"}


def test_saving_twice_gives_the_same_bytes(result, tmp_path):
    for name in ("a", "b"):
        result.save(tmp_path / name)
    files = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert len(files) == 3
    assert all((tmp_path / "a" / f).read_bytes() == (tmp_path / "b" / f).read_bytes() for f in files)


def test_200_random_truncations_and_bit_flips_are_all_detected_and_name_the_file(result, tmp_path):
    folder = result.save(tmp_path)
    files = sorted(folder.iterdir())
    rng = random.Random(0)
    for trial in range(200):
        path = files[trial % len(files)]
        whole = path.read_bytes()
        if trial // len(files) % 2:
            damaged = whole[: rng.randrange(len(whole))]
        else:
            place = rng.randrange(len(whole))
            damaged = whole[:place] + bytes([whole[place] ^ 1 << rng.randrange(8)]) + whole[place + 1 :]
        path.write_bytes(damaged)
        with pytest.raises(DamagedResultError, match=re.escape(str(path))):
            Result.load(folder)
        path.write_bytes(whole)
    Result.load(folder)


@pytest.mark.parametrize("name", ["result.json", "arrays", "log"])
def test_a_missing_file_is_named(result, tmp_path, name):
    folder = result.save(tmp_path)
    gone = next(p for p in folder.iterdir() if p.name.startswith(name))
    gone.unlink()
    with pytest.raises(DamagedResultError, match=f"{re.escape(gone.name)} is damaged or half-written: .*not there"):
        Result.load(folder)


def test_bytes_added_at_the_end_are_detected(result, tmp_path):
    folder = result.save(tmp_path)
    for path in folder.iterdir():
        whole = path.read_bytes()
        path.write_bytes(whole + b" ")
        with pytest.raises(DamagedResultError):
            Result.load(folder)
        path.write_bytes(whole)


def test_a_crash_before_the_last_rename_leaves_the_old_result(result, tmp_path, monkeypatch):
    folder = result.save(tmp_path)
    newer = Result(result.experiment, {"m": [8]}, {"errors": np.zeros(3)}, [], result.provenance)
    replace = os.replace

    def crash(source, target):
        if Path(target).name == "result.json":
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        newer.save(folder)
    monkeypatch.undo()
    assert Result.load(folder).config == result.config
    newer.save(folder)
    assert Result.load(folder).config == {"m": [8]}
    assert len(list(folder.iterdir())) == 3


def test_a_failed_write_leaves_no_temporary_file(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "x", b"1")
    assert list(tmp_path.iterdir()) == []


def test_config_hash_depends_on_content_and_not_on_order():
    assert config_hash({"a": 1, "b": [1.5, None]}) == config_hash({"b": [1.5, None], "a": 1})
    assert config_hash({"a": 1}) != config_hash({"a": 2})
    assert config_hash({"a": math.inf}) != config_hash({"a": -math.inf})


def test_what_cannot_be_saved_is_refused(result, tmp_path):
    with pytest.raises(ArgumentError, match="holds Python objects"):
        Result("x", {}, {"a": np.array([object()])}, [], result.provenance).save(tmp_path)
    with pytest.raises(ArgumentError, match="came function"):
        Result("x", {"f": config_hash}, {}, [], result.provenance).save(tmp_path)
    with pytest.raises(ArgumentError, match="'met', 'not met' or 'undecided', came 'maybe'"):
        Claim("x", "y", "maybe")


def test_provenance_names_versions_machine_and_seed(result):
    p = result.provenance
    assert p.seed == 3
    assert p.extra == {"preset": "quick"}
    assert set(p.packages) == {"torch", "numpy", "scipy"}
    assert int(p.machine["cores"]) >= 1
    assert p.machine["cpu"]

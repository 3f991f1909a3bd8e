import hashlib
import io
import json
import math
import os
import random
import re
import struct
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from holdfast._files import seal
from holdfast._provenance import Provenance
from holdfast.errors import ArgumentError, DamagedResultError
from holdfast_papers._manifest import unseal
from holdfast_papers.results import Claim, Result, config_hash, verify, write_atomically


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
    with pytest.raises(
        DamagedResultError, match=f"{re.escape(gone.name)} is damaged or half-written: .*does not exist"
    ):
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
    assert sorted(p.suffix for p in folder.iterdir()) == [".json", ".npz"]


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
    with pytest.raises(ArgumentError, match="got Python objects"):
        Result("x", {}, {"a": np.array([object()])}, [], result.provenance).save(tmp_path)
    with pytest.raises(ArgumentError, match="got function"):
        Result("x", {"f": config_hash}, {}, [], result.provenance).save(tmp_path)
    with pytest.raises(ArgumentError, match=r"unknown status 'maybe'.*met, not met, undecided"):
        Claim("x", "y", "maybe")


def test_provenance_names_versions_machine_and_seed(result):
    p = result.provenance
    assert p.seed == 3
    assert p.extra == {"preset": "quick"}
    assert set(p.packages) == {"torch", "numpy", "scipy"}
    assert int(p.machine["cores"]) >= 1
    assert p.machine["cpu"]


def reseal(folder, change):
    """Alters result.json and seals it again, as a person who knows the format can."""
    body = unseal(folder / "result.json")
    change(body)
    (folder / "result.json").write_bytes(seal(body))
    return folder


def test_saving_removes_only_files_that_the_old_manifest_lists(result, tmp_path):
    theirs = ["log-training.txt", "arrays-of-mine.npz", "log-0123456789ab.jsonl", ".hidden"]
    for name in theirs:
        (tmp_path / name).write_text("mine")
    result.save(tmp_path)
    replace(result, arrays={"errors": np.ones(2)}, log=[]).save(tmp_path)
    assert all((tmp_path / name).read_text() == "mine" for name in theirs)
    assert sorted(p.suffix for p in tmp_path.iterdir() if p.name not in theirs) == [".json", ".npz"]


@pytest.mark.parametrize("name", ["/elsewhere/docs", "../up", "a/b", "..", ".", "", "a\\b", "a\nb", "x" * 101, 7, None])
def test_an_experiment_that_could_be_a_path_is_damage_and_cannot_be_saved(result, tmp_path, name):
    folder = reseal(result.save(tmp_path / "unit"), lambda body: body.update(experiment=name))
    for read in (Result.load, verify):
        with pytest.raises(DamagedResultError, match="the id of an experiment must be up to 100 letters"):
            read(folder)
    with pytest.raises(ArgumentError, match="the id of an experiment must be"):
        replace(result, experiment=name).save(tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("file", ["../secret", "/etc/passwd", "log-training.txt", "arrays-x.npz", 3])
def test_a_manifest_that_names_other_files_is_damage_and_removes_none(result, tmp_path, file):
    (tmp_path / "secret").write_text("mine")
    folder = reseal(result.save(tmp_path / "unit"), lambda body: body["files"]["log"].update(file=file))
    with pytest.raises(DamagedResultError):
        Result.load(folder)
    result.save(folder)
    assert (tmp_path / "secret").read_text() == "mine"


def test_a_link_in_place_of_a_file_is_not_followed(result, tmp_path):
    folder = result.save(tmp_path / "unit")
    log = next(folder.glob("log-*"))
    log.rename(tmp_path / "elsewhere")
    log.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedResultError, match=f"{re.escape(str(log))} .*symbolic link"):
        Result.load(folder)


@pytest.mark.parametrize("name", ["result.json", "arrays", "log"])
def test_a_folder_or_pipe_in_place_of_a_file_is_named(result, tmp_path, name):
    folder = result.save(tmp_path)
    path = next(p for p in folder.iterdir() if p.name.startswith(name))
    path.unlink()
    path.mkdir()
    with pytest.raises(DamagedResultError, match=f"{re.escape(str(path))} .*a folder instead of a file"):
        Result.load(folder)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(DamagedResultError, match="a pipe, socket or device"):
        Result.load(folder)


def _deep(body):
    body["config"] = {}
    return json.dumps(body).replace('"config": {}', '"config": ' + "[" * 200_000 + "]" * 200_000)


FORGERIES = {
    "unknown claim field": lambda body: body["claims"][0].update(colour="red"),
    "claim without numbers": lambda body: body["claims"][0].update(numbers=[1, 2]),
    "text as a claim's number": lambda body: body["claims"][0].update(numbers={"slope": "steep"}),
    "unknown status": lambda body: body["claims"][0].update(status="perhaps"),
    "claims that are not a list": lambda body: body.update(claims=3),
    "no provenance": lambda body: body.pop("provenance"),
    "provenance of another kind": lambda body: body["provenance"].update(seconds="long", extra=[]),
    "files that are a list": lambda body: body.update(files=[]),
    "a page of nothing": lambda body: body.update(page={"figures": 1}),
    "a float of no number": lambda body: body["config"].update(limit={"float": "many"}),
}


@pytest.mark.parametrize("kind", FORGERIES)
def test_a_sealed_manifest_with_wrong_contents_is_damage_and_named(result, tmp_path, kind):
    folder = reseal(result.save(tmp_path), FORGERIES[kind])
    with pytest.raises(DamagedResultError, match=re.escape(str(folder / "result.json"))):
        Result.load(folder)


def test_json_200000_levels_deep_is_damage(result, tmp_path):
    folder = result.save(tmp_path)
    rest = _deep(unseal(folder / "result.json"))[1:].encode()
    digest = hashlib.sha256(rest).hexdigest().encode()
    (folder / "result.json").write_bytes(b'{"sha256": "' + digest + b'",\n' + rest + b"\n")
    for read in (Result.load, verify):
        with pytest.raises(DamagedResultError, match=r"result.json .*not valid JSON"):
            read(folder)


def _npy(header):
    """An NPY file of version 2 with that header and eight bytes."""
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header)) + header + b"\0" * 8


@pytest.mark.parametrize(
    "member",
    [
        _npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }\n"),
        _npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -1), }\n"),
        _npy(b"{'descr': '|V0', 'fortran_order': False, 'shape': (1000000000000,), }\n"),
        _npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n"),
        _npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }" + b" " * 60_000_000 + b"\n"),
        _npy(b"(" * 5000 + b"\n"),
        b"\x93NUMPY\x09\x00" + b"\0" * 20,
        b"nothing",
    ],
    ids=["shape", "negative", "no size", "objects", "header", "deep header", "version", "no array"],
)
def test_an_array_whose_header_lies_is_damage_and_costs_no_memory(result, tmp_path, member):
    folder = _with_archive(result.save(tmp_path), {"errors.npy": member})
    tracemalloc.start()
    try:
        with pytest.raises(DamagedResultError, match=re.escape(str(tmp_path))):
            Result.load(folder)
        # the header of 60 MB is unpacked once and read once; the arrays that the headers promise have 8 TB
        assert tracemalloc.get_traced_memory()[1] < 300e6
    finally:
        tracemalloc.stop()


def test_an_archive_that_unpacks_to_more_than_the_limit_is_refused_before_unpacking(result, tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast._codec.MAX_BYTES", 1_000_000)
    with pytest.raises(ArgumentError, match="at most 1,000,000 bytes of arrays in a result, got 16,000,000"):
        replace(result, arrays={"big": np.zeros(2_000_000)}).save(tmp_path / "unit")
    content = io.BytesIO()
    np.save(content, np.zeros(2_000_000))
    folder = _with_archive(result.save(tmp_path), {"big.npy": content.getvalue()})
    with pytest.raises(
        DamagedResultError, match="it unpacks to 16,000,128 bytes, and the most that is read is 1,000,000"
    ):
        Result.load(folder)


def _with_archive(folder, members):
    """The saved result with another archive of arrays, sealed again."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    name = f"arrays-{digest[:12]}.npz"
    (folder / name).write_bytes(buffer.getvalue())
    entry = {"file": name, "sha256": digest, "bytes": len(buffer.getvalue())}
    return reseal(folder, lambda body: body["files"].update(arrays=entry))


@pytest.mark.parametrize("name", ["file", "allow_pickle", "self", "a.npy", "größe", "a b/c"])
def test_array_names_that_numpy_takes_for_its_own_are_saved_like_others(result, tmp_path, name):
    folder = replace(result, arrays={name: np.arange(3)}).save(tmp_path)
    assert Result.load(folder).arrays[name].tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["figure.a", "", "a\0b", "a\\b", "\udcff", "a\nb", 3, None, "x" * 300])
def test_array_names_that_would_vanish_are_refused(result, tmp_path, name):
    with pytest.raises(ArgumentError, match="name"):
        replace(result, arrays={name: np.arange(3)}).save(tmp_path / "unit")
    assert not (tmp_path / "unit").exists()


def test_an_empty_log_is_not_written_and_an_entry_is(tmp_path):
    Result("own-toy", {}, {}, [], Provenance.collect()).save(tmp_path / "quiet")
    assert sorted(p.suffix for p in (tmp_path / "quiet").iterdir()) == [".json", ".npz"]
    assert Result.load(tmp_path / "quiet").log == []
    Result("own-toy", {}, {}, [], Provenance.collect(), log=[{"step": 1}]).save(tmp_path / "told")
    assert Result.load(tmp_path / "told").log == [{"step": 1}]

"""The MNIST loader: real files where the data root has them, a small set served over HTTP elsewhere."""

import functools
import gzip
import hashlib
import http.server
import struct
import threading
import tracemalloc

import pytest
import torch

from holdfast.data import MissingDataError, find_sets, mnist
from holdfast.data._download import DataFile
from holdfast.data._mnist import FILES, read_idx
from holdfast.errors import DamagedResultError, UnknownNameError

real = pytest.mark.skipif(not find_sets()["mnist"], reason="MNIST is not in the data root")


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + bytes(array.flatten().tolist())


IMAGES = torch.arange(3 * 28 * 28, dtype=torch.int64).remainder(251).to(torch.uint8).reshape(3, 28, 28)
LABELS = torch.tensor([7, 2, 1], dtype=torch.uint8)
CONTENTS = {"t10k-images-idx3-ubyte.gz": idx(IMAGES), "t10k-labels-idx1-ubyte.gz": idx(LABELS)}


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A web server with the small set, its address as the only mirror, and an empty cache folder."""
    served, cache = tmp_path / "served", tmp_path / "cache"
    served.mkdir()
    for name, content in CONTENTS.items():
        (served / name).write_bytes(gzip.compress(content))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(served)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}/"
    files = tuple(DataFile(n, hashlib.sha256(c).hexdigest(), len(c), (address,)) for n, c in CONTENTS.items())
    monkeypatch.setitem(FILES, "test", files)
    (tmp_path / "root").mkdir()
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path / "root"))
    yield served, tmp_path / "root" / "mnist", cache
    server.shutdown()
    server.server_close()
    thread.join()


@real
@pytest.mark.parametrize(("split", "count", "first"), [("train", 60_000, [5, 0, 4]), ("test", 10_000, [7, 2, 1])])
def test_real_set_has_the_official_split_and_every_class(split, count, first):
    found = mnist(split, download=False)
    assert found.images.shape == (count, 28, 28)
    assert found.labels[:3].tolist() == first
    assert sorted(found.labels.unique().tolist()) == list(range(10))


@real
def test_sequences_are_rows_of_pixels_between_0_and_1():
    found = mnist("test", download=False)
    sequences = found.sequences(torch.float64)
    assert sequences.shape == (10_000, 784)
    assert float(sequences.min()) == 0 and float(sequences.max()) == 1
    assert torch.equal((sequences[0].reshape(28, 28) * 255).round().to(torch.uint8), found.images[0])


def test_missing_files_are_downloaded_once_and_checked(mirror):
    served, folder, _ = mirror
    found = mnist("test")
    assert torch.equal(found.images, IMAGES) and found.labels.tolist() == [7, 2, 1]
    assert sorted(p.name for p in folder.iterdir()) == sorted(CONTENTS)
    for path in served.iterdir():
        path.unlink()
    assert torch.equal(mnist("test").images, IMAGES)  # from the folder: the server has nothing any more


def test_without_a_data_root_the_cache_folder_is_used(mirror, monkeypatch):
    _, _, cache = mirror
    monkeypatch.delenv("HOLDFAST_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert torch.equal(mnist("test").images, IMAGES)
    assert sorted(p.name for p in (cache / "holdfast/data/mnist").iterdir()) == sorted(CONTENTS)


@pytest.mark.parametrize("damage", ["truncated", "other content", "not gzip"])
def test_a_wrong_download_is_refused_and_leaves_nothing_behind(mirror, damage):
    served, folder, _ = mirror
    path = served / "t10k-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    path.write_bytes({"truncated": whole[:-9], "other content": gzip.compress(b"x"), "not gzip": b"<html>"}[damage])
    with pytest.raises(MissingDataError, match="no mirror delivered t10k-images"):
        mnist("test")
    assert not folder.exists() or list(folder.iterdir()) == []


def test_without_network_the_error_names_every_file_and_its_place(mirror):
    served, folder, _ = mirror
    for path in served.iterdir():
        path.unlink()
    with pytest.raises(MissingDataError) as caught:
        mnist("test")
    for text in (str(folder), *CONTENTS, "HOLDFAST_DATA"):
        assert text in str(caught.value)
    with pytest.raises(MissingDataError, match="download=False"):
        mnist("test", download=False)


def test_a_damaged_file_in_the_data_root_is_noticed(mirror):
    _, folder, _ = mirror
    mnist("test")
    path = folder / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(idx(LABELS + 1)))
    with pytest.raises(DamagedResultError, match="wrong SHA-256"):
        mnist("test")
    path.write_bytes(b"no gzip")
    with pytest.raises(DamagedResultError, match="not a complete gzip file"):
        mnist("test")


def test_a_folder_that_cannot_be_written_is_named(mirror):
    _, folder, _ = mirror
    folder.write_text("a file where the folder should be")
    with pytest.raises(MissingDataError, match="cannot be written"):
        mnist("test")


@pytest.mark.parametrize(
    "content", [b"", b"\x00\x00\x0d\x01", b"\x00\x00\x08\x03\x00", idx(LABELS)[:-1], idx(LABELS) + b"x"]
)
def test_what_is_not_idx_is_refused(content):
    with pytest.raises(DamagedResultError, match="some"):
        read_idx(content, "some.gz")


def test_an_unknown_split_names_the_known_ones(user_mistakes):
    with pytest.raises(UnknownNameError, match="train"):
        mnist("valid")


def _bomb(megabytes):
    """A gzip of that many megabytes of zeros, a thousandth of their size."""
    return gzip.compress(bytes(megabytes << 20))


def test_a_file_that_unpacks_to_gigabytes_is_refused_before_it_is_unpacked(mirror):
    _, folder, _ = mirror
    folder.mkdir()
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(CONTENTS["t10k-labels-idx1-ubyte.gz"]))
    # 2 MB of zeros pack into 2 kB, less than the images could have
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(_bomb(2))
    tracemalloc.start()
    try:
        with pytest.raises(DamagedResultError, match="unpacks to more than the expected 2,368 bytes"):
            mnist("test")
        # what is unpacked has 2 kB; gzip itself reads and writes buffers of up to 128 kB
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()


def test_a_file_larger_than_its_content_could_be_is_not_read(mirror):
    _, folder, _ = mirror
    folder.mkdir()
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(bytes(1 << 20))
    with pytest.raises(DamagedResultError, match=r"expected at most .* bytes, got"):
        mnist("test")


@pytest.mark.parametrize("served_instead", [_bomb(2), bytes(1 << 20)], ids=["bomb", "endless"])
def test_a_mirror_that_sends_too_much_is_left_and_nothing_is_kept(mirror, served_instead):
    served, folder, _ = mirror
    (served / "t10k-images-idx3-ubyte.gz").write_bytes(served_instead)
    with pytest.raises(MissingDataError, match=r"unpacks to more than|sends more than"):
        mnist("test")
    assert not folder.exists() or list(folder.iterdir()) == []

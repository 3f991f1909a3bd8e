"""Downloads: resumed where they broke, checked, unpacked by name; one process at a time; nothing of the user's is lost."""

import functools
import hashlib
import http.server
import io
import tarfile
import threading
import zipfile
from dataclasses import replace

import pytest

from holdfast.data import MissingDataError, load_task
from holdfast.data import _files as archives
from holdfast.data._download import DataFile, read_file
from holdfast.data._files import Archive, find_files
from holdfast.data._wikitext import ARCHIVES
from holdfast.errors import DamagedResultError

CONTENT = bytes(range(256)) * 600


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves parts of files; `server.most` bytes of an answer arrive, then the connection breaks."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = self.server.folder / self.path.strip("/")
        if not path.is_file():
            return self.send_error(404)
        content, asked = path.read_bytes(), self.headers.get("Range")
        self.server.asked.append(asked)
        first = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if first >= len(content):
            return self.send_error(416)
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        self.wfile.write(content[first:][: self.server.most])


@pytest.fixture
def server(tmp_path, monkeypatch):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.folder, server.asked, server.most = tmp_path / "served", [], None
    server.folder.mkdir()
    server.address = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=functools.partial(server.serve_forever, 0.01), daemon=True)
    thread.start()
    (tmp_path / "root").mkdir()
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path / "root"))
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def file(server):
    (server.folder / "some.txt").write_bytes(CONTENT)
    return DataFile("some.txt", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), (server.address,))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "root" / "set"


def read(folder, file):
    return read_file(folder, file, download=True, needed=(file,))


def test_a_broken_download_goes_on_where_it_stopped(server, file, folder):
    server.most = 100_000
    with pytest.raises(MissingDataError, match=r"100,000 of 153,600 bytes arrived; the next try continues from there"):
        read(folder, file)
    assert [p.name for p in folder.iterdir()] == [".some.txt.part"]
    assert read(folder, file) == CONTENT
    assert server.asked == [None, "bytes=100000-"]
    assert [p.name for p in folder.iterdir()] == ["some.txt"]


def test_a_beginning_of_another_file_is_thrown_away(server, file, folder):
    folder.mkdir()
    (folder / ".some.txt.part").write_bytes(b"something else")
    assert read(folder, file) == CONTENT  # the checksum failed, and the file was read from its start
    assert server.asked == ["bytes=14-", None]


def test_a_beginning_longer_than_the_file_is_thrown_away(server, file, folder):
    folder.mkdir()
    (folder / ".some.txt.part").write_bytes(bytes(len(CONTENT)))
    assert read(folder, file) == CONTENT


def test_the_next_mirror_is_asked_where_one_fails(server, file, folder):
    assert read(folder, replace(file, mirrors=(server.address + "nowhere/", server.address))) == CONTENT


def test_no_room_to_write_is_said_and_no_other_mirror_is_asked(server, file, folder, monkeypatch):
    def full(self, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("holdfast.data._download.io.FileIO", type("Full", (io.FileIO,), {"write": full}))
    with pytest.raises(MissingDataError, match=r"cannot be written \(No space left on device\)"):
        read(folder, replace(file, mirrors=(server.address, server.address)))
    assert len(server.asked) == 1


def tar_of(names):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in names.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
        link = tarfile.TarInfo("top/a.txt.link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return packed.getvalue()


def zip_of(names):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as found:
        for name, content in names.items():
            found.writestr(name, content)
    return packed.getvalue()


NAMES = {"top/a.txt": b"one", "top/in/b.txt": b"two", "top/c.md": b"not wanted", "../top/a.txt": b"outside"}
WANTED = ("a.txt", "in/b.txt")


def offered(server, packed, name, **changes):
    (server.folder / name).write_bytes(packed)
    digest = hashlib.sha256(packed).hexdigest()
    made = Archive(name, digest, 1 << 20, 1 << 10, (server.address,), "top", r"a\.txt|in/b\.txt|a\.txt\.link")
    return replace(made, **changes)


def find(folder, archive, **options):
    return find_files(folder, WANTED, archive, **{"download": True, "part": False} | options)


@pytest.mark.parametrize(("pack", "name"), [(tar_of, "x.tar.gz"), (zip_of, "x.zip")])
def test_only_wanted_files_of_an_archive_are_unpacked_and_it_is_removed(server, folder, pack, name):
    archive = offered(server, pack(NAMES), name)
    assert find(folder, archive) == folder
    files = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert files == {"a.txt": b"one", "in/b.txt": b"two"}
    assert find(folder, archive, download=False) == folder


def test_an_archive_that_the_user_put_there_is_used_and_stays(server, folder):
    archive = offered(server, zip_of(NAMES), "x.zip")
    folder.mkdir()
    (folder / "x.zip").write_bytes((server.folder / "x.zip").read_bytes())
    (folder / "a.txt").write_bytes(b"mine")
    find(folder, archive, download=False)
    assert server.asked == [] and (folder / "x.zip").is_file()
    assert (folder / "a.txt").read_bytes() == b"mine" and (folder / "in" / "b.txt").read_bytes() == b"two"
    (folder / "in" / "b.txt").unlink()
    (folder / "x.zip").write_bytes(b"PK")
    with pytest.raises(DamagedResultError, match=r"x\.zip: its file has another SHA-256; delete it"):
        find(folder, archive)


def test_a_wrong_archive_is_not_kept(server, folder):
    archive = offered(server, zip_of(NAMES), "x.zip", sha256="0" * 64)
    with pytest.raises(MissingDataError, match="another SHA-256"):
        find(folder, archive)
    with pytest.raises(MissingDataError, match=r"sends more than the 64 bytes"):
        find(folder, replace(archive, most=64))
    assert list(folder.iterdir()) == []


def test_an_archive_that_unpacks_to_more_than_it_should_leaves_nothing(server, folder):
    bomb = zip_of({"top/a.txt": bytes(1 << 22)})
    with pytest.raises(DamagedResultError, match=r"a\.txt unpacks to more than the expected"):
        find(folder, offered(server, bomb, "x.zip"))
    assert [p.name for p in folder.iterdir()] == ["x.zip"]


@pytest.mark.parametrize(
    ("packed", "words"),
    [
        (tar_of(NAMES)[:60], "is not a complete archive"),
        (tar_of({"top/a.txt": b"one"}), "lacks in/b.txt"),
        (b"no archive", "is not a complete archive"),
    ],
    ids=["cut off", "lacks a file", "no archive"],  # an archive holds the time: two processes would name it differently
)
def test_an_archive_that_is_not_whole_is_named(server, folder, packed, words):
    with pytest.raises(DamagedResultError, match=rf"x\.tar\.gz {words}"):
        find(folder, offered(server, packed, "x.tar.gz"))


def test_an_unpacking_that_was_killed_is_done_again(server, folder):
    work = folder / archives._UNPACKING
    work.mkdir(parents=True)
    (work / "a.txt").write_bytes(b"o")
    find(folder, offered(server, tar_of(NAMES), "x.tar.gz"))
    assert (folder / "a.txt").read_bytes() == b"one" and not work.exists()


def test_several_threads_download_a_file_once(server, file, folder):
    found = []
    threads = [threading.Thread(target=lambda: found.append(read(folder, file))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [CONTENT] * 3 and len(server.asked) == 1


def test_a_whole_set_comes_from_its_archive(server, monkeypatch):
    words = {f"wikitext-2/wiki.{split}.tokens": b"a b c d e f\n" * 4 for split in ("train", "valid", "test")}
    archive = offered(server, zip_of(words), "wikitext-2-v1.zip", top="wikitext-2", wanted=r"wiki\.\w+\.tokens")
    monkeypatch.setitem(ARCHIVES, "wikitext-2", archive)
    assert load_task("wikitext-2", length=4).size("train") == 6


class Odd(Handler):
    """Answers with headers of its own."""

    def do_GET(self):
        self.send_response(self.server.status)
        for name, value in self.server.odd.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(CONTENT)


@pytest.mark.parametrize(
    ("status", "headers", "whole"),
    [
        (200, {"Content-Length": "abc"}, True),
        (200, {"Content-Length": "-5"}, True),
        (200, {"Content-Length": "1e6"}, True),
        (302, {"Location": "http://[::"}, False),
        (302, {"Location": "http://xn--\u00e9.example/"}, False),
        (302, {"Location": "ftp://127.0.0.1:1/x"}, False),
        (206, {"Content-Range": "bytes abc"}, True),
    ],
)
def test_odd_headers_are_no_traceback(server, file, folder, status, headers, whole):
    server.RequestHandlerClass, server.status, server.odd = Odd, status, headers
    if whole:
        assert read(folder, file) == CONTENT
    else:
        with pytest.raises(MissingDataError, match=r"no mirror delivered some\.txt"):
            read(folder, file)


def test_a_mirror_that_sends_too_slowly_is_given_up_with_its_limit(server, file, folder, monkeypatch):
    clock = iter(range(0, 10**9, 30))
    monkeypatch.setattr(
        "holdfast.data._download.time.monotonic", lambda: next(clock)
    )  # 30 seconds pass between two reads
    monkeypatch.setattr("holdfast.data._download.CHUNK_BYTES", 1000)
    with pytest.raises(MissingDataError, match=r"bytes arrived within the limit of 75 seconds for up to 153,600"):
        read(folder, file)
    assert 0 < (folder / ".some.txt.part").stat().st_size < len(CONTENT)
    monkeypatch.undo()
    monkeypatch.setenv("HOLDFAST_DATA", str(folder.parent))
    assert read(folder, file) == CONTENT  # from where it stopped
    assert server.asked[-1] is not None

"""Files are replaced whole; what is no file is written to, and links are followed."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from accy_async.observe import files
from accy_async.observe.files import read_file, replace_file


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "report"
    for data in (b"first", b"second"):
        replace_file(target, data)
        assert target.read_bytes() == data
    assert os.listdir(tmp_path) == ["report"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    for data in (b"first", b"second"):
        replace_file(link, data)
        assert link.is_symlink()
        assert target.read_bytes() == data


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no such pipes")
def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    """As would be a device: root would have replaced ``/dev/null`` by a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    replace_file(pipe, b"whole")
    reader.join()
    assert read == [b"whole"]
    assert pipe.is_fifo()
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no such pipes")
@pytest.mark.parametrize("is_late", [False, True])
def test_a_pipe_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """Late: its writer has it open and has written nothing when patience ends."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    if is_late:
        monkeypatch.setattr(files, "_WRITER_WITHIN_S", 0.0)
    is_open, go_on = threading.Event(), threading.Event()

    def write() -> None:
        with open(os.open(pipe, os.O_RDWR if is_late else os.O_WRONLY), "wb") as file:
            is_open.set()
            go_on.wait()
            file.write(b"whole" * 100_000)

    def told(fd: int, is_blocking: bool) -> None:
        set_blocking(fd, is_blocking)
        go_on.set()

    set_blocking = os.set_blocking
    monkeypatch.setattr(os, "set_blocking", told)
    writer = threading.Thread(target=write)
    writer.start()
    if is_late:
        is_open.wait()
    else:
        go_on.set()
    assert read_file(pipe) == b"whole" * 100_000
    writer.join()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no such pipes")
def test_a_pipe_that_nobody_writes_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_WRITER_WITHIN_S", 0.0)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="nobody writes to this pipe"):
        read_file(tmp_path / "pipe")


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    assert read_file(tmp_path / "file") == b"0123456789"
    assert read_file(tmp_path / "file", 3) == b"012"
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path, b"")
    assert not os.listdir(tmp_path)

"""Files are replaced whole; what is no file is written to, and links are followed."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from accy_async.observe.files import replace_file


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


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path, b"")
    assert not os.listdir(tmp_path)

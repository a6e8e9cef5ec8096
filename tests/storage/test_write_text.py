"""Files that commands write: whole or not at all."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from prober.storage.watched_file import write_text

LIMIT_BYTES = 4096


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file of this process can have more than LIMIT_BYTES, so that a longer one fails halfway."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("before", ["good", None])
def test_a_file_that_cannot_be_written_whole_is_left_as_it_was(tmp_path: Path, before: str | None) -> None:
    """And nothing is left beside it."""
    file = tmp_path / "rules.yaml"
    if before is not None:
        file.write_text(before)
    with pytest.raises(OSError, match="File too large"):
        write_text(file, "x" * 2 * LIMIT_BYTES)
    assert [path.read_text() for path in tmp_path.iterdir()] == ([] if before is None else [before])


def test_a_file_keeps_its_mode_and_a_link_its_target(tmp_path: Path) -> None:
    """The file behind a link is replaced, with the permissions that it has."""
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("before")
    file.chmod(0o640)
    link.symlink_to(file)
    write_text(link, "after")
    assert (file.read_text(), file.stat().st_mode & 0o777, link.is_symlink()) == ("after", 0o640, True)
    assert sorted(tmp_path.iterdir()) == [file, link]


def test_a_pipe_and_a_device_are_written_to(tmp_path: Path) -> None:
    """They are not replaced by a file."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    write_text(fifo, "words")
    assert os.read(reader, 100) == b"words"
    os.close(reader)
    assert fifo.is_fifo()
    write_text(Path("/dev/null"), "words")
    with pytest.raises(OSError, match="No space left"):
        write_text(Path("/dev/full"), "words")

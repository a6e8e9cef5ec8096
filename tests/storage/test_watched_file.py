"""Files that others change."""

import os
from pathlib import Path

import pytest

from prober.storage import watched_file
from prober.storage.watched_file import Secret, WatchedFile, read_text, stamp


def test_a_stamp_sees_content_replacement_and_a_swapped_symlink(tmp_path: Path) -> None:
    """Another content, another file under the name, and another end of a symlink (a ConfigMap's) are all changes."""
    first, second, link = tmp_path / "1", tmp_path / "2", tmp_path / "link"
    first.write_text("a")
    link.symlink_to(first)
    seen = [stamp(str(link)), stamp(str(link))]
    first.write_text("ab")
    seen.append(stamp(str(link)))
    second.write_text("ab")
    swapped = tmp_path / "new"
    swapped.symlink_to(second)
    os.replace(swapped, link)
    seen.append(stamp(str(link)))
    assert seen[0] == seen[1]
    assert len(set(seen)) == 3


def test_nothing_there_has_no_stamp(tmp_path: Path) -> None:
    """A file that is gone, or a symlink that leads nowhere, is told from every file."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone")
    assert stamp(str(link)) is None


def test_a_token_is_read_without_the_white_space_around_it_and_again_when_it_changes(tmp_path: Path) -> None:
    """Editors end a file with a newline; rotation puts another file in its place."""
    path = tmp_path / "token"
    path.write_text("  one\n")
    secret = Secret(str(path))
    assert secret.read() == "one"
    fresh = tmp_path / "fresh"
    fresh.write_text("two\n")
    os.replace(fresh, path)
    assert secret.read() == "two"
    assert "two" not in repr(secret)


def test_a_file_that_becomes_unusable_keeps_the_last_token_and_says_what_is_wrong(tmp_path: Path) -> None:
    """Gone, empty, of two words, with a control character or not ASCII: the last token stays. The problem names key and file only."""
    path = tmp_path / "token"
    path.write_text("good")
    secret = Secret(str(path))
    assert secret.read() == "good"
    path.unlink()
    assert secret.read() == "good"
    assert secret.problem.startswith(f"auth.bearer_token_file {path}: ")
    for content in ("", "hush hush", "hüsh", "hush\0", "\0hush", "hu\x01sh", "hush\x7f", "hush\thush"):
        path.write_text(content)
        assert secret.read() == "good"
        assert secret.problem.startswith(f"auth.bearer_token_file {path}: ")
        assert "hush" not in secret.problem
    path.write_text("better")
    assert (secret.read(), secret.problem) == ("better", "")


def test_a_file_that_comes_back_as_it_was_is_no_problem_any_more(tmp_path: Path) -> None:
    """The problem ends with its cause, though the file that returns is the very one that was read before."""
    path, aside = tmp_path / "token", tmp_path / "aside"
    path.write_text("good")
    secret = Secret(str(path))
    secret.read()
    path.rename(aside)
    secret.read()
    assert secret.problem
    aside.rename(path)
    assert (secret.read(), secret.problem) == ("good", "")


def test_a_missing_token_is_reported_with_its_remedy(tmp_path: Path) -> None:
    """The message also says whether an earlier token stays in use."""
    secret = Secret(str(tmp_path / "token"))
    secret.read()
    assert secret.problem.endswith(
        "/token: No such file or directory; write the token there or fix the path: requests cannot be sent without it"
    )
    (tmp_path / "token").write_text("good")
    secret.read()
    (tmp_path / "token").unlink()
    secret.read()
    assert secret.problem.endswith("write the token there or fix the path: the last token stays in use")


def test_a_file_that_is_swapped_is_changed_and_not_gone(tmp_path: Path) -> None:
    """An editor takes it away and puts another one there: two looks without it are nothing."""
    path = tmp_path / "a"
    path.write_text("a")
    file = WatchedFile(str(path))
    file.mark_read()
    path.unlink()
    seen = [file.poll(), file.poll()]
    path.write_text("ab")
    assert [*seen, file.poll()] == ["", "", "changed"]
    file.mark_read()
    assert file.poll() == ""


def test_a_file_that_stays_away_is_gone_once_and_back_again_is_a_change(tmp_path: Path) -> None:
    """Even if it is the very one that was there before, since it was told that it is not."""
    path, aside = tmp_path / "a", tmp_path / "aside"
    path.write_text("a")
    file = WatchedFile(str(path))
    file.mark_read()
    path.rename(aside)
    assert [file.poll() for _ in range(5)] == ["", "", "gone", "", ""]
    aside.rename(path)
    assert file.poll() == "changed"


def test_a_text_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A device or a pipe may have none. A text up to the limit is read, from a pipe too."""
    monkeypatch.setattr(watched_file, "MAX_TEXT_BYTES", 5)
    with pytest.raises(OSError, match="is longer than 5 characters"):
        read_text("/dev/zero")
    (tmp_path / "file").write_text("fünf\n")
    assert read_text(tmp_path / "file") == "fünf\n"
    read_end, write_end = os.pipe()
    os.write(write_end, b"a\r\nb")
    os.close(write_end)
    assert read_text(f"/dev/fd/{read_end}") == "a\nb"
    os.close(read_end)


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path: Path) -> None:
    """Editors of Windows write one, which no JSON may have."""
    path = tmp_path / "config.json"
    path.write_bytes(b'\xef\xbb\xbf{"dtype": "bfloat16"}')
    assert read_text(path) == '{"dtype": "bfloat16"}'

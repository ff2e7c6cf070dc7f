"""The output of a driver as files: what is written is read once, in order, whatever the pieces."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmill.cluster import driver
from graphmill.errors import StorageError

pieces = st.lists(st.tuples(st.sampled_from(driver.STREAMS), st.binary(max_size=30), st.booleans()))


@settings(max_examples=30)
@given(attempts=st.lists(pieces, min_size=1, max_size=2))
def test_each_byte_is_shown_once(
    attempts: list[list[tuple[str, bytes, bool]]],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """Also of a driver that has begun again, and of a reader that comes late."""
    monkeypatch.setattr(driver, "PART_BYTES", 16)
    folder = str(tmp_path_factory.mktemp("log"))
    capfdbinary.readouterr()
    reader, expected = driver.Reader(folder), dict.fromkeys(driver.STREAMS, b"")
    for number, texts in enumerate(attempts):
        writer = driver.Writer(folder)
        for stream, text, is_flushed in texts:
            writer.add(stream, text)
            expected[stream] += text
            if is_flushed:
                writer.flush()
                reader.show()
        writer.flush()
        assert reader.exit_code() is None
        if number == len(attempts) - 1:
            writer.finish(75)
    assert reader.exit_code() == 75
    reader.show()
    assert not reader.show()
    assert tuple(capfdbinary.readouterr()) == tuple(expected.values())
    assert driver.Reader(folder).show() is any(expected.values())
    assert tuple(capfdbinary.readouterr()) == tuple(expected.values())


def test_a_write_that_fails_is_made_good_by_the_next(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    folder = tmp_path / "log"
    folder.write_text("in the way")
    writer = driver.Writer(str(tmp_path / "log"))
    writer.add("stdout", b"first\n")
    with pytest.raises(StorageError):
        writer.flush()
    folder.unlink()
    writer.add("stdout", b"second\n")
    writer.finish(0)
    driver.Reader(str(folder)).show()
    assert capfdbinary.readouterr().out == b"first\nsecond\n"

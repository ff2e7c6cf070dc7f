"""Which local folders other machines can see."""

from pathlib import Path

from graphmill.cli.in_a_container import is_of_one_machine


def test_memory_and_links_to_it_are_of_one_machine(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/dev/shm")
    assert is_of_one_machine("/dev/shm/not/there")
    assert is_of_one_machine(str(link / "file"))
    assert not is_of_one_machine("/proc/self")  # of a type that is no disk

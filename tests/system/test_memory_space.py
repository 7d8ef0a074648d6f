"""The memory there is to take, as Linux and a container's control group tell it."""

import pytest

from official_bert.system import memory_space


@pytest.mark.parametrize(
    ("limit", "expected"), [("max", 4096), ("3000", 1000), ("1000000", 4096), (None, 4096)]
)
def test_a_container_may_have_less_than_the_machine(tmp_path, limit, expected):
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:        4 kB\n")
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.stat").write_text("anon 2000\nfile 70000\n")
    assert memory_space.available(tmp_path, tmp_path) == expected


def test_a_system_that_does_not_tell_is_not_guessed_about(tmp_path):
    assert memory_space.available(tmp_path, tmp_path) is None

"""Which hosts are this machine."""

import pytest

from prober.config.hosts import is_loopback


@pytest.mark.parametrize(
    "host", ["localhost", "a.localhost", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "::1%lo"]
)
def test_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["127.evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1", "::2", "127.1", ""]
)
def test_names_of_others(host: str) -> None:
    assert not is_loopback(host)

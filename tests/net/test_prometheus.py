"""Asking a Prometheus."""

import base64

import pytest

from prober.net.prometheus import QueryFailed, instant
from tests.scripted import scripted

PASSWORD = "a password of some length"


async def test_an_answer_that_is_no_http_and_repeats_the_password_does_not_tell_it() -> None:
    """The message says what came instead of HTTP, without the credentials that were sent."""
    async with scripted(lambda asked: asked.head.partition(b"Authorization: ")[2]) as url:
        with pytest.raises(QueryFailed) as unanswered:
            await instant(url.replace("//", f"//user:{PASSWORD.replace(' ', '%20')}@"), "up")
    assert "not HTTP" in str(unanswered.value)
    assert base64.b64encode(f"user:{PASSWORD}".encode()).decode()[:12] not in str(unanswered.value)
    assert PASSWORD not in str(unanswered.value)

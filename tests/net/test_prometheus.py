"""Asking a Prometheus."""

import base64

import pytest

from prober.net.prometheus import QueryFailed, hourly_histograms, instant
from tests.scripted import scripted
from tests.wire.heads import body

PASSWORD = "a password of some length"


async def test_an_answer_that_is_no_http_and_repeats_the_password_does_not_tell_it() -> None:
    """The message says what came instead of HTTP, without the credentials that were sent."""
    async with scripted(lambda asked: asked.head.partition(b"Authorization: ")[2]) as url:
        with pytest.raises(QueryFailed) as unanswered:
            await instant(url.replace("//", f"//user:{PASSWORD.replace(' ', '%20')}@"), "up")
    assert "not HTTP" in str(unanswered.value)
    assert base64.b64encode(f"user:{PASSWORD}".encode()).decode()[:12] not in str(unanswered.value)
    assert PASSWORD not in str(unanswered.value)


async def test_a_prometheus_that_does_not_answer_is_told() -> None:
    """Refused, or not a Prometheus: the address and the reason."""
    labels = {"target": 'a"b', "workload": "w"}
    async with scripted(lambda _: body("404 Not Found", "")) as url:
        for asked_url, message in (("http://127.0.0.1:1", "onnect"), (url, "HTTP 404")):
            with pytest.raises(QueryFailed, match=message):
                await hourly_histograms(asked_url, "llmslo_ttft_seconds", labels, 1e9, 3)

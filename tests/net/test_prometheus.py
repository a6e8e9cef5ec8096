"""Asking a Prometheus."""

import asyncio
import base64

import pytest

from prober.net.prometheus import QueryFailed, instant

PASSWORD = "a password of some length"


async def test_an_answer_that_is_no_http_and_repeats_the_password_does_not_tell_it() -> None:
    """The message says what came instead of HTTP, without the credentials that were sent."""

    async def repeat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(head.partition(b"Authorization: ")[2])
        writer.close()

    server = await asyncio.start_server(repeat, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(QueryFailed) as unanswered:
            await instant(f"http://user:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{port}", "up")
    finally:
        server.close()
    assert "not HTTP" in str(unanswered.value)
    assert base64.b64encode(f"user:{PASSWORD}".encode()).decode()[:12] not in str(unanswered.value)
    assert PASSWORD not in str(unanswered.value)

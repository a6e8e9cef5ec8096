"""An HTTP/1.1 request on a new connection. Bytes are parsed when they are read, and timestamped with their arrival.

HTTP is parsed by llhttp (httptools), which is C.

Deadlines depend on content: role chunks and keep-alives do not extend them. They are compared with times of arrival: bytes that
surely arrived after a deadline are parsed only after the deadline was checked, and a timer reads pending bytes before it checks.

An exception in this code ends only this exchange, and is raised where `ended` is awaited.
"""

import asyncio
import re
import ssl
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import cast

import httptools

from prober.config.target import Timeouts
from prober.measure.outcome import Outcome, Verdict
from prober.measure.payload import error_message, shortened
from prober.measure.printable import mask_secrets
from prober.measure.recording import Recording
from prober.measure.timeline import Timeline
from prober.net.clock import Clock
from prober.net.stamped_socket import StampedSocket

MAX_STREAM_BYTES = 64 << 20  # limit of a stream on the wire, with headers, chunk framing and trailers
MAX_PLAIN_BYTES = 4 << 20  # limit of any other response
MAX_HEAD_BYTES = 64 << 10
MAX_ERROR_BYTES = 64 << 10
MAX_HEADERS = 200
LINGER_S = 1.0
NEVER_NS = 1 << 63
MAX_PAUSE_S = 366 * 86_400
# SETTINGS or GOAWAY, with which a server begins HTTP/2 (RFC 9113, sections 3.4 and 4.1).
_HTTP2_FRAME = re.compile(rb"\0..[\x04\x07].\0{4}", re.DOTALL)
_SECONDS = re.compile(r"-?[0-9]{1,15}")
_FORMATS = ("%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y")  # RFC 9110, 5.6.7
_LIMITS = ("requests", "tokens", "input-tokens", "output-tokens")
_MAX_DATE_CHARS = 40


class Exchange:
    """A request and its response. Call `send` once connected; `ended` is done when the exchange ends for any reason.

    If this code fails, `ended` raises the error; `received` then shows whether the server had sent anything.
    max_body_bytes: size limit of the decoded body; on the wire the body then has the limit of a stream. None: the body is not limited,
    but on the wire a response that is not streamed is limited to MAX_PLAIN_BYTES
    """

    def __init__(self, recording: Recording | None, clock: Clock, max_body_bytes: int | None = None) -> None:
        self.recording, self.clock, self._max_body_bytes = recording, clock, max_body_bytes
        self.connection: StampedSocket | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.broken: Verdict | None = None
        self.is_too_long = False  # beyond max_body_bytes
        self.is_sent = False
        self.headers_ns: int | None = None
        self.end_ns: int | None = None
        self._parts: list[bytes] = []  # parts of the body that the parser found in the last bytes
        self.on_body = self._parts.append  # a method of the list: runs for every chunk without a Python frame
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(lenient_spaces_after_chunk_size=True)  # RFC 9112, 7.1.1
        self._handled, self._is_cut = b"", False
        self._read_bytes = 0
        self._arrived_ns = self._earliest_ns = 0
        self._size = 0
        self._max_bytes = MAX_HEAD_BYTES  # limit for everything that is read
        self._streaming = False
        self._origin_ns = 0  # start of the timeouts
        self._timeouts: Timeouts | None = None
        self._check_ns = NEVER_NS  # no deadline before this time
        self._timer: asyncio.Handle | None = None

    @property
    def received(self) -> bool:
        """True if the server has sent any bytes."""
        return self._read_bytes > 0

    @property
    def refusal(self) -> str:
        """The server's text in an unsuccessful answer, with the address of a redirect; "" for a success."""
        if self.status is None or self.status < 300:
            return ""
        words = error_message(bytes(self.body[:MAX_ERROR_BYTES]), self.status)
        if self.status < 400:
            place = shortened(mask_secrets(self.headers.get("location", "")))
            where = f" (to {place})" if place else ""
            words += f"{words and ': '}redirects are not followed{where}; set the url to the new location"
        return words

    def departure(self, timeline: Timeline) -> Timeline:
        """Return `timeline` with the kernel's data on the connection: departure, acknowledgement, round trip, retransmissions."""
        connection = self.connection
        if connection is None or connection.sent_ns is None:
            return timeline
        connection.read_departures()
        info = connection.tcp_info()
        return replace(
            timeline,
            sent_ns=connection.sent_ns,
            handed_ns=connection.handed_ns,
            sent_earliest_ns=None if connection.sent_earliest_ns == connection.sent_ns else connection.sent_earliest_ns,
            acknowledged_ns=connection.acknowledged_ns,
            round_trip_s=None if info is None else info.round_trip_us / 1e6,
            retransmitted=None if info is None else info.retransmitted,
            read_delay_s=connection.read_delay_ns / 1e9 / connection.reads if connection.reads else 0.0,
            max_read_delay_s=connection.max_read_delay_ns / 1e9,
        )

    # -- calls of the prober --------------------------------------------------------------------------------------------

    def send(self, data: bytes, timeouts: Timeouts, delay_ns: int = 0) -> None:
        """Write the request. If the server has already sent anything, end the exchange instead.

        timeouts: they count from the time at which the request could have left if the prober had no delay, and from the last content
        delay_ns: time for which the server has already delayed the request; it is subtracted from the timeouts
        """
        self._timeouts = timeouts
        assert self.connection is not None
        while not self.ended.done() and self.connection.read():
            pass
        if self.ended.done():
            return
        if self._read_bytes and self.status is None:
            self._break(Outcome.MALFORMED, f"the server sent something before the request: {self._handled[:60]!r}")
            return
        self.is_sent = True
        self.connection.write_request(data)
        now_ns = self.clock.now_ns()
        self._origin_ns = (self.connection.handed_ns or now_ns) - delay_ns
        self._check(now_ns)

    def abort(self) -> None:
        """Close the connection."""
        self._end()
        self._stop_timer()
        if self.connection is not None:
            self.connection.close()

    # -- what the connection receives ----------------------------------------------------------------------------------

    def receive(self, at_ns: int, data: bytes, earliest_ns: int | None = None, *, is_cut: bool = False) -> None:
        """Parse bytes of the response: the last arrived at `at_ns`, the others at `earliest_ns` or later (None: all at `at_ns`).

        is_cut: see `Receiver`
        """
        if self._parser is None:
            return  # the server closes the connection
        self._arrived_ns, self._handled, self._is_cut = at_ns, data, is_cut
        self._earliest_ns = at_ns if earliest_ns is None else earliest_ns
        self._read_bytes += len(data)
        try:
            if self._earliest_ns > self._check_ns:  # else it may have arrived in time
                self._check(self._earliest_ns)
            if self._parser is None:
                return
            try:
                self._parser.feed_data(data)
            finally:
                self._hand_over()
        except httptools.HttpParserUpgrade:
            self._break(Outcome.MALFORMED, "the server switched protocols")
        except httptools.HttpParserCallbackError as problem:
            self._fail(cast(Exception, problem.__context__ or problem))
        except httptools.HttpParserError as problem:
            kind = "HTTP/2 instead of HTTP/1.1" if _HTTP2_FRAME.match(data) else f"not HTTP ({problem})"
            self._break(Outcome.MALFORMED, f"{kind}: {data[:60]!r}")
        except Exception as problem:
            self._fail(problem)

    def lost(self, at_ns: int, problem: Exception | None) -> None:
        """Record the end of the connection: a complete response or a failure. problem: None if the server closed it"""
        if self.ended.done():
            self._stop_timer()
            return
        try:
            self._lost(at_ns, problem)
        except Exception as failure:
            self._fail(failure)

    def _hand_over(self) -> None:
        """Pass the parsed part of the body to the recording, unless the response has ended. Ends the exchange above the size limit."""
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        if self._parser is None:
            return
        self._size += len(data)
        if not self._streaming:
            if len(self.body) < MAX_ERROR_BYTES or self.recording is None:
                self.body += data
            if self._max_body_bytes is not None and len(self.body) > self._max_body_bytes:
                self.is_too_long = True
                self._refuse_length(self._max_body_bytes)
        elif data and self.recording is not None:
            read = b"" if self._is_cut else self._handled
            if self.recording.feed(self._arrived_ns, data, self._earliest_ns, read):
                self._complete(self.recording.ended_ns)
        if self._read_bytes > self._max_bytes:
            self._refuse_length(self._max_bytes)

    def _lost(self, at_ns: int, problem: Exception | None) -> None:
        self._arrived_ns = at_ns
        if self.status is None and self._read_bytes and problem is None:
            self._break(Outcome.TRUNCATED, "the connection was closed inside the head of the answer")
        elif self.status is None and isinstance(problem, ssl.SSLError) and "ALERT" in (problem.reason or ""):
            # With TLS 1.3 the server judges the client's certificate only after the client has finished the handshake.
            reason = problem.reason.lower().replace("_", " ")
            remedy = "; see `tls.cert_file` and `tls.key_file` of the target" if "certificate" in reason else ""
            self._break(Outcome.TLS, f"the server ended the connection: {reason}{remedy}")
        elif self.status is None:
            sent = "before any answer" if self.is_sent else "before the request was sent"
            self._break(Outcome.RESET, f"the connection was closed {sent}{f' ({problem})' if problem else ''}")
        elif problem is not None and not isinstance(problem, ssl.SSLError):
            self._break(Outcome.RESET, f"the connection broke inside the answer ({problem})")
        elif "content-length" in self.headers or "chunked" in self.headers.get("transfer-encoding", ""):
            self._break(Outcome.TRUNCATED, "the connection was closed inside the answer")
        else:
            self._complete()  # a body without a length ends with the connection, which has no stamp

    # -- parser callbacks ----------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._parser is not None and len(self.headers) < MAX_HEADERS:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._parser is None:
            return  # bytes after the response
        status = self._parser.get_status_code()
        if status < 100:
            self._break(Outcome.MALFORMED, f"HTTP status {status:03d}")
            return
        if not self.is_sent and status < 400:  # a full server, or one that gave up waiting, answers before the request
            self._break(Outcome.MALFORMED, f"the server answered (HTTP {status}) before the request was sent")
            return
        if status < 200:
            self.headers.clear()
            return
        self.status, self.headers_ns = status, self._arrived_ns
        self._streaming = self.recording is not None and status < 300
        is_stream = self._streaming and self.recording is not None and self.recording.streamed
        self._max_bytes = MAX_STREAM_BYTES if is_stream or self._max_body_bytes is not None else MAX_PLAIN_BYTES
        coding = self.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("", "identity"):
            detail = f"the answer is compressed ({coding[:20]!r}), though identity was asked for; switch that off for the prober"
            self._break(Outcome.MALFORMED, detail)

    def on_message_complete(self) -> None:
        if self.status is not None:
            self._hand_over()
            self._complete()

    def _refuse_length(self, max_bytes: int) -> None:
        """End the exchange because the response exceeds its size limit."""
        part = "headers of more" if self.status is None else "the answer is longer"
        self._break(Outcome.MALFORMED, f"{part} than {max_bytes >> 10:,} KiB")

    # -- end ------------------------------------------------------------------------------------------------------------

    def _complete(self, end_ns: int | None = None) -> None:
        """End the exchange after a complete response. end_ns: its end; None: the last arrival."""
        if self.ended.done():
            return
        self.end_ns = end_ns if end_ns is not None else self._arrived_ns
        self._parser = None
        if self.recording is not None and self._streaming:
            self.recording.finish(self.headers.get("content-type", ""))
        self._end()

    def _break(self, outcome: Outcome, detail: str) -> None:
        """End the exchange with a failure. An incomplete last event is processed first, as it may be an error object."""
        if self.ended.done():
            return
        self.broken = Verdict(outcome, detail)
        self._parser = None
        if self.recording is not None:
            self.recording.cut()
            self.end_ns = self.recording.ended_ns
        self.abort()

    def _fail(self, problem: Exception) -> None:
        """Report an internal error to the waiting caller and close the connection."""
        if self.ended.done():
            detail = "an exchange failed after its end; please report this"
            self.ended.get_loop().call_exception_handler({"message": detail, "exception": problem})
        else:
            self.ended.set_exception(problem)
        self.abort()

    def _end(self) -> None:
        self._parser = None
        self._stop_timer()
        if not self.ended.done():
            self.ended.set_result(None)
            if self.connection is None:
                return
            if self.recording is not None and self.recording.has_failed:
                self.connection.close()  # further data are not needed
            else:
                # The server closes first, as requested, so that TIME_WAIT is on its side.
                self._timer = self.ended.get_loop().call_later(LINGER_S, self.connection.close)

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        """Read what has arrived before a deadline, then check it."""
        self._timer = None
        if self.ended.done() or self.connection is None:
            return
        if self.connection.read():
            if not self.ended.done():
                self._stop_timer()
                self._timer = self.ended.get_loop().call_soon(self._on_timer)
            return
        try:
            self._check(self.clock.now_ns())
        except Exception as problem:
            self._fail(problem)

    def _check(self, now_ns: int) -> None:
        """End the exchange if a deadline passed before `now_ns`; else schedule the next check. All bytes up to `now_ns` are parsed."""
        self._stop_timer()
        origin, limits = self._origin_ns, self._timeouts
        if self.ended.done() or limits is None:
            return
        waits = [(origin + round(limits.total * 1e9), Outcome.TIMEOUT_TOTAL, f"no end after {limits.total:g} s")]
        next_ns = NEVER_NS
        if self.recording is not None and self.recording.streamed:
            stall_ns = round(limits.stall * 1e9)
            if self.recording.first_ns is None:
                at = origin + round(limits.first_token * 1e9)
                progress = f"status {self.status}, {self._size} bytes" if self.status else "no answer"
                detail = f"no content after {limits.first_token:g} s ({progress})"
                waits.append((at, Outcome.TIMEOUT_FIRST_TOKEN, detail))
                next_ns = now_ns + stall_ns  # content that arrives now can stall from then on
            else:
                at = (self.recording.last_ns or 0) + stall_ns
                detail = (
                    f"neither content nor the end for {limits.stall:g} s after {self.recording.answer.chunks} chunks"
                )
                waits.append((at, Outcome.TIMEOUT_STALL, detail))
        at, outcome, detail = min(waits)
        if at < now_ns:
            self._break(outcome, detail)
            return
        self._check_ns = min(at, next_ns)
        self._timer = self.ended.get_loop().call_later((self._check_ns - now_ns) / 1e9 + 0.002, self._on_timer)


def requested_pause_s(headers: Mapping[str, str], unix_s: float) -> float | None:
    """Seconds that an answer asks the client to wait; None without such a request, for over a year, or if it cannot be read.

    Without `Retry-After`, the pause ends when the last exhausted limit is reset (`anthropic-ratelimit-*-remaining`, `-reset`). A
    negative number and a past date mean 0. A date is compared with the answer's own `Date`, as the server's clock may be wrong;
    without one it is compared with `unix_s`, the prober's wall clock.

    headers: names in lower case, or a mapping that ignores case
    """
    value = headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(value):
        pause_s = float(value)
    else:
        until_s = _http_date(value) if value else _limit_end(headers)
        if until_s is None:
            return None
        sent_s = _http_date(headers.get("date", "").strip())
        pause_s = until_s - (unix_s if sent_s is None else sent_s)
    return max(0.0, pause_s) if pause_s <= MAX_PAUSE_S else None


def _limit_end(headers: Mapping[str, str]) -> float | None:
    """Unix seconds at which the last exhausted rate limit is reset; None if no limit is exhausted. The headers have RFC 3339 times."""
    ends = []
    for name in (f"anthropic-ratelimit-{limit}" for limit in _LIMITS):
        try:
            end = datetime.fromisoformat(headers.get(f"{name}-reset", ""))
        except ValueError:
            continue
        if headers.get(f"{name}-remaining") == "0" and end.tzinfo is not None:
            ends.append(end.timestamp())
    return max(ends, default=None)


def _http_date(text: str) -> float | None:
    """Unix seconds of an HTTP date; None for anything else."""
    if not text.isascii() or len(text) > _MAX_DATE_CHARS:
        return None
    for layout in _FORMATS:
        try:
            return datetime.strptime(text, layout).replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
    return None

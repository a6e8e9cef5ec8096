"""An HTTP/1.1 request on a new connection: bytes get a timestamp on arrival and are parsed later.

Arrivals go through an inbox in their order. Pieces of a stream that begin and end with an event, and may contain neither the end of
the answer nor an error, wait there until something else arrives, a deadline depends on them, or too many wait: no timestamp waits for
the reading of another chunk, and to read them together costs less. Any other small arrival that finds the inbox empty is handled at
once. The rest is worked off in steps that all answers of the event loop take in turn (`turns`), so that one server's flood delays no
timestamp of another's.

HTTP is parsed by llhttp (httptools), which is C. JSON is parsed when the answer has ended, when a deadline depends on whether content
has arrived, or when too many bytes wait.

Deadlines depend on content: role chunks and keep-alives do not extend them. They are decided by timestamps: bytes that arrive after
a possible deadline are parsed only after that deadline was checked, so a late timer changes nothing.

An exception in this code ends only this exchange: it is raised to the caller that awaits `ended`.
"""

import asyncio
import select
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec, cast

import httptools

from prober.config.problems import mask_secrets
from prober.config.target import Timeouts
from prober.measure.outcome import Outcome, Verdict
from prober.measure.payload import error_message, shortened
from prober.measure.recording import Recording
from prober.net.clock import Clock
from prober.net.turns import turns

MAX_PARSED_EVENTS = 4  # per step
MAX_STEP_BYTES = 2 << 10  # of one arrival: as many as 400 chunks of one byte
MAX_STEP_PIECES = 16  # of a body, from several arrivals
MAX_WAITING_ARRIVALS = 256  # of a stream that are read together
END_OF_EVENT = b"\n\n\r\n"  # of an event and of a chunk of HTTP
MAX_INBOX_BYTES = 1 << 20  # of received bytes that wait; a connection with more is not read meanwhile
MAX_STREAM_BYTES = 64 << 20  # of a stream on the wire, with headers, chunk framing and trailers
MAX_PLAIN_BYTES = 4 << 20  # of any other response
MAX_HEAD_BYTES = 64 << 10
MAX_ERROR_BYTES = 64 << 10
MAX_HEADERS = 200
LINGER_S = 1.0
NEVER_NS = 1 << 63
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Lost:
    """The end of the connection; `problem` is None if the server closed it."""

    problem: Exception | None


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Deadlines of a request; `timeouts` count from `intended_ns` and from the last content."""

    intended_ns: int
    timeouts: Timeouts


def _guarded(callback: Callable[Concatenate["Exchange", P], None]) -> Callable[Concatenate["Exchange", P], None]:
    """Wrap a callback of the event loop or the parser, so that an exception ends its exchange."""

    @wraps(callback)
    def guarded(self: "Exchange", /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            callback(self, *args, **kwargs)
        except Exception as problem:
            self._fail(problem)

    return guarded


class Exchange(asyncio.Protocol):
    """A request and its response. Call `send` once connected; `ended` is done when the exchange ends for any reason.

    `ended` raises an internal error of this code; `received` then shows whether the server had sent anything.
    max_plain_bytes: limit of an answer that is no stream, with all framing
    max_body_bytes: instead of that, limit of its body, which may be as long as MAX_STREAM_BYTES on the wire
    """

    __slots__ = (  # more attributes than a dictionary finds quickly
        "_arrived_ns",
        "_body_pieces",
        "_can_wait",
        "_check_ns",
        "_deadlines",
        "_handled",
        "_has_turn",
        "_inbox",
        "_inbox_bytes",
        "_is_closing",
        "_is_event_stream",
        "_is_paused",
        "_marks",
        "_max_body_bytes",
        "_max_plain_bytes",
        "_parsed",
        "_parser",
        "_read_bytes",
        "_received",
        "_size",
        "_streaming",
        "_timer",
        "_turns",
        "body",
        "broken",
        "end_ns",
        "ended",
        "headers",
        "headers_ns",
        "is_too_long",
        "now_ns",
        "on_body",
        "recording",
        "sent_ns",
        "status",
        "transport",
    )

    def __init__(
        self,
        recording: Recording | None,
        clock: Clock,
        max_plain_bytes: int = MAX_PLAIN_BYTES,
        max_body_bytes: int | None = None,
    ) -> None:
        self.recording = recording
        self._max_plain_bytes, self._max_body_bytes = max_plain_bytes, max_body_bytes
        self.now_ns = clock.now_ns
        self.transport: asyncio.Transport | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.broken: Verdict | None = None
        self.is_too_long = False  # beyond max_body_bytes
        self.sent_ns: int | None = None
        self.headers_ns: int | None = None
        self.end_ns: int | None = None
        self._turns = turns()
        self._inbox: deque[tuple[int, bytes | Lost]] = deque()
        self._inbox_bytes = 0
        self._is_event_stream = False  # in chunks of HTTP, whose pieces may wait
        self._can_wait = False  # the next arrival, to be read with others: it begins an event
        self._marks: tuple[bytes, ...] = ()  # of an arrival that cannot wait
        self._has_turn = False
        self._is_paused = False
        self._is_closing = False  # nothing more of the answer is taken; what was received is being parsed
        self._parsed: list[bytes] = []  # parts of the body that `_parser` has found
        self.on_body = self._parsed.append  # of the parser; runs for every chunk, without a frame of Python
        self._body_pieces: list[tuple[int, bytes]] = []  # the same with their time of arrival
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._handled = b""
        self._read_bytes = 0
        self._arrived_ns = 0
        self._size = 0
        self._received = 0
        self._streaming = False
        self._deadlines: Deadlines | None = None
        self._check_ns = NEVER_NS  # no deadline before this time
        self._timer: asyncio.Handle | None = None

    @property
    def received(self) -> bool:
        """Whether the server has sent any bytes."""
        return self._received > 0

    @property
    def refusal(self) -> str:
        """Words of an answer that is no success: those of the server, and where a redirect leads. "" for a success."""
        if self.status is None or self.status < 300:
            return ""
        words = error_message(bytes(self.body[:MAX_ERROR_BYTES]), self.status)
        if self.status < 400:
            place = shortened(mask_secrets(self.headers.get("location", "")))
            where = f" (to {place})" if place else ""
            words += f"{words and ': '}redirects are not followed{where}; set the url to the new location"
        return words

    # -- calls of the prober --------------------------------------------------------------------------------------------

    def send(self, data: bytes, deadlines: Deadlines) -> None:
        """Write the request and record the time, unless something was received before it: the exchange ends with that."""
        self._deadlines = deadlines
        if self.ended.done():
            return
        if self._received and self.status is None:
            self._break(Outcome.MALFORMED, f"the server sent something before the request: {self._handled[:60]!r}")
            return
        if not self._is_readable():
            assert self.transport is not None
            self.sent_ns = self.now_ns()
            self.transport.write(data)
        self._check(self.now_ns())

    def abort(self) -> None:
        """Abort the connection. What was received before is read."""
        self._drain()
        self._end()
        if self.transport is not None:
            self.transport.abort()

    def first_ns(self) -> int | None:
        """Time of the first content; parses received bytes for it, a few events at a time."""
        if self.recording is None:
            return None
        if self.recording.first_ns is None and self.end_ns is None:
            try:
                if self._inbox and not self._has_turn:
                    self._step()
                self.recording.parse_pending(MAX_PARSED_EVENTS)
            except Exception as problem:
                self._fail(problem)
        return self.recording.first_ns

    def read(self) -> None:
        """Parse all received bytes."""
        self._drain()
        if self.recording is not None:
            self.recording.parse_pending()

    # -- transport callbacks -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        at_ns = self.now_ns()
        ends_event = data[-4:] == END_OF_EVENT
        if self._can_wait and ends_event and at_ns <= self._check_ns and len(data) <= MAX_STEP_BYTES:
            for mark in self._marks:
                if mark in data:
                    break
            else:
                self._inbox.append((at_ns, data))
                self._can_wait = len(self._inbox) < MAX_WAITING_ARRIVALS
                return
        self._received += len(data)
        self._can_wait = False
        if self._inbox or self._has_turn or at_ns > self._check_ns or len(data) > MAX_STEP_BYTES:
            self._arrive(at_ns, data)
            return
        try:
            self._read(at_ns, data)
        except Exception as problem:
            self._reading_failed(problem)
        self._can_wait = self._is_event_stream and ends_event
        if self.recording is not None and self.recording.has_urgent_work:
            self._take_turns()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self.ended.done() and self._timer:
            self._timer.cancel()
        self._arrive(self.now_ns(), Lost(exc))

    # -- inbox ----------------------------------------------------------------------------------------------------------

    def _arrive(self, at_ns: int, item: bytes | Lost) -> None:
        """Handle an arrival, at once if it is small and nothing waits before it. Empty bytes are a timer."""
        if self.ended.done():
            return  # while the connection is left for the server to close
        self._inbox.append((at_ns, item))
        if not self._has_turn and (isinstance(item, Lost) or len(item) <= MAX_STEP_BYTES):
            if not self._step():
                return
        elif not isinstance(item, Lost):
            self._inbox_bytes += len(item)
            if self._inbox_bytes > MAX_INBOX_BYTES and not self._is_paused and self.transport is not None:
                self._is_paused = True
                self.transport.pause_reading()
        self._take_turns()

    def _take_turns(self) -> None:
        if not self._has_turn and not self.ended.done():
            self._has_turn = True
            self._turns.add(self._turn)

    def _turn(self) -> bool:
        self._has_turn = self._step()
        if not self._has_turn:
            self._inbox_bytes = 0
            if self._is_paused and self.transport is not None and not self.transport.is_closing():
                self._is_paused = False
                self.transport.resume_reading()
        return self._has_turn

    def _step(self) -> bool:
        """Do a small part of the work: the end of the answer, urgent work of the recording, or the next arrival, in this order.
        Returns True while some is left.
        """
        recording = self.recording
        try:
            if self.ended.done():
                pass
            elif self._is_closing:
                self._finish()
            elif recording is not None and recording.has_urgent_work:
                recording.work()
                self._end_if_over(recording)
            elif self._inbox:
                self._work_inbox()
        except Exception as problem:
            self._reading_failed(problem)
        if self.ended.done():
            self._inbox.clear()
            return False
        return self._is_closing or bool(self._inbox) or (recording is not None and recording.has_urgent_work)

    def _reading_failed(self, problem: Exception) -> None:
        """End the exchange: the received bytes are no HTTP, or this code has failed."""
        if isinstance(problem, httptools.HttpParserUpgrade):
            self._break(Outcome.MALFORMED, "the server switched protocols")
        elif isinstance(problem, httptools.HttpParserError) and not isinstance(
            problem, httptools.HttpParserCallbackError
        ):
            self._break(Outcome.MALFORMED, f"not HTTP ({problem}): {self._handled[:60]!r}")
        else:
            self._fail(problem)

    def _work_inbox(self) -> None:
        """Handle the next arrivals: a deadline, the end of the connection, or a bounded part of the answer."""
        recording, inbox, pieces = self.recording, self._inbox, self._body_pieces
        while inbox and len(pieces) < MAX_STEP_PIECES:
            at_ns, item = inbox[0]
            if at_ns > self._check_ns or not item:
                self._hand_over()
                if recording is not None and recording.parse_pending(MAX_PARSED_EVENTS):
                    return
                self._check(at_ns)
                if self._is_closing:
                    return
            inbox.popleft()
            if isinstance(item, Lost):
                self._hand_over()
                self._lost(at_ns, item.problem)
                return
            if len(item) > MAX_STEP_BYTES:  # cut into all steps now: otherwise each step would copy the rest
                starts = range(MAX_STEP_BYTES, len(item), MAX_STEP_BYTES)
                inbox.extendleft((at_ns, item[start : start + MAX_STEP_BYTES]) for start in reversed(starts))
                item = item[:MAX_STEP_BYTES]
            self._parse(at_ns, item)
            if self._is_closing:
                return
        self._hand_over()

    def _end_if_over(self, recording: Recording) -> None:
        """End the answer if its recording says so."""
        if recording.is_over:
            self._complete(recording.ended_ns)

    def _read(self, at_ns: int, data: bytes) -> None:
        """Parse bytes as HTTP; the body goes to the recording."""
        self._parse(at_ns, data)
        self._hand_over()

    def _parse(self, at_ns: int, data: bytes) -> None:
        """Parse bytes as HTTP; the body goes to `_body_pieces`, even if bytes behind it are no HTTP."""
        if self._parser is None or not data:
            return
        self._arrived_ns, self._handled = at_ns, data
        self._read_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except Exception:
            self._hand_over()
            raise
        if len(self._parsed) == 1:
            self._body_pieces.append((at_ns, self._parsed.pop()))
        else:
            self._collect()

    def _collect(self) -> None:
        """Give the parts of the body that the parser found the time of their arrival."""
        for part in self._parsed:
            self._body_pieces.append((self._arrived_ns, part))
        self._parsed.clear()

    def _hand_over(self) -> None:
        """Give the pieces of the body to the recording, unless the response has ended before them, and check its size."""
        self._collect()
        pieces = self._body_pieces[:]
        self._body_pieces.clear()
        if self._parser is None:
            return
        for _, piece in pieces:
            self._size += len(piece)
        if not self._streaming:
            for _, piece in pieces:
                if len(self.body) < MAX_ERROR_BYTES or self.recording is None:
                    self.body += piece
        elif self.recording is not None and pieces and self.recording.feed_pieces(pieces):
            self._end_if_over(self.recording)
        self._bound()

    def _drain(self) -> None:
        """Read what has arrived, up to a deadline or the end of the connection."""
        try:
            while self._inbox and not self.ended.done():
                at_ns, item = self._inbox[0]
                if isinstance(item, Lost) or not item:
                    return
                self._inbox.popleft()
                self._read(at_ns, item)
        except Exception as problem:
            self._reading_failed(problem)

    def _lost(self, at_ns: int, problem: Exception | None) -> None:
        if self._timer:
            self._timer.cancel()
        self._arrived_ns = at_ns
        if self.status is None and self._read_bytes and problem is None:
            self._break(Outcome.TRUNCATED, "the connection was closed inside the head of the answer")
        elif self.status is None and isinstance(problem, ssl.SSLError) and "ALERT" in (problem.reason or ""):
            # TLS 1.3 judges the client's certificate after the handshake of the client has ended.
            reason = problem.reason.lower().replace("_", " ")
            remedy = "; see `tls.cert_file` and `tls.key_file` of the target" if "certificate" in reason else ""
            self._break(Outcome.TLS, f"the server ended the connection: {reason}{remedy}")
        elif self.status is None:
            sent = "before any answer" if self.sent_ns else "before the request was sent"
            self._break(Outcome.RESET, f"the connection was closed {sent}{f' ({problem})' if problem else ''}")
        elif problem is not None and not isinstance(problem, ssl.SSLError):
            self._break(Outcome.RESET, f"the connection broke inside the answer ({problem})")
        elif "content-length" in self.headers or "chunked" in self.headers.get("transfer-encoding", ""):
            self._break(Outcome.TRUNCATED, "the connection was closed inside the answer")
        else:
            self._complete()  # without a length the body ends with the connection

    def _is_readable(self) -> bool:
        """Whether data or the end of the connection wait in the socket. With TLS always False: those may be data of TLS itself."""
        assert self.transport is not None
        socket = self.transport.get_extra_info("socket")
        if socket is None or self.transport.get_extra_info("ssl_object") is not None:
            return False
        poll = select.poll()
        poll.register(socket, select.POLLIN)
        return bool(poll.poll(0))

    # -- parser callbacks ----------------------------------------------------------------------------------------------

    @_guarded
    def on_header(self, name: bytes, value: bytes) -> None:
        if self._parser is not None and len(self.headers) < MAX_HEADERS:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    @_guarded
    def on_headers_complete(self) -> None:
        if self._parser is None:
            return  # bytes behind the response
        status = self._parser.get_status_code()
        if status < 100:
            self._break(Outcome.MALFORMED, f"HTTP status {status:03d}")
            return
        if self.sent_ns is None and status < 400:  # a server that is full, or waits no longer, says so unasked
            self._break(Outcome.MALFORMED, f"the server answered (HTTP {status}) before the request was sent")
            return
        if status < 200:
            self.headers.clear()
            return
        self.status, self.headers_ns = status, self._arrived_ns
        if self.recording is not None and status < 300:
            self._streaming, self._marks = True, self.recording.api.urgent_marks
            is_chunked = "chunked" in self.headers.get("transfer-encoding", "")
            self._is_event_stream = self.recording.reads_together and is_chunked
        coding = self.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("", "identity"):
            detail = f"the answer is compressed ({coding[:20]!r}), though identity was asked for; switch that off for the prober"
            self._break(Outcome.MALFORMED, detail)

    @_guarded
    def on_message_complete(self) -> None:
        if self.status is not None:
            self._hand_over()
            self._complete()

    def _bound(self) -> None:
        """End the exchange if the response exceeds its size limit."""
        if self.status is None:
            if self._read_bytes > MAX_HEAD_BYTES:
                self._break(Outcome.MALFORMED, f"headers of more than {MAX_HEAD_BYTES >> 10} KiB")
            return
        stream = self._streaming and self.recording is not None and self.recording.streamed
        if self._max_body_bytes is not None and len(self.body) > self._max_body_bytes:
            self.is_too_long = True
            self._break(Outcome.MALFORMED, f"the answer is longer than {self._max_body_bytes:,} bytes")
            return
        limit = MAX_STREAM_BYTES if stream or self._max_body_bytes is not None else self._max_plain_bytes
        if self._read_bytes > limit:
            self._break(Outcome.MALFORMED, f"the answer is longer than {limit >> 10:,} KiB")

    # -- end ------------------------------------------------------------------------------------------------------------

    def _complete(self, end_ns: int | None = None) -> None:
        """The response has ended. Its events are parsed a few at a time, so that timestamps of other probes are not delayed."""
        if self._is_closing or self.ended.done():
            return
        self.end_ns = end_ns if end_ns is not None else self._arrived_ns
        self._close()

    def _break(self, outcome: Outcome, detail: str) -> None:
        """The response ends with a failure. Its events are parsed, since an error among them says more."""
        if self._is_closing or self.ended.done():
            return
        self.broken = Verdict(outcome, detail)
        self._close()
        if self.transport is not None:
            self.transport.abort()

    def _close(self) -> None:
        """Take nothing more, and parse what was received."""
        self._parser = None
        self._is_closing = True
        self._finish()
        self._take_turns()

    def _finish(self) -> None:
        recording = self.recording
        if recording is not None:
            if recording.parse_pending(MAX_PARSED_EVENTS):
                return
            if self.broken is not None:
                recording.cut()
                self.end_ns = recording.ended_ns
            elif self._streaming:
                recording.finish(self.headers.get("content-type", ""))
        self._end()

    def _fail(self, problem: Exception) -> None:
        """Report an internal error to the waiting caller and abort the connection."""
        self._parser = None
        if self._timer:
            self._timer.cancel()
        if self.ended.done():
            detail = "an exchange failed after its end; please report this"
            self.ended.get_loop().call_exception_handler({"message": detail, "exception": problem})
        else:
            self.ended.set_exception(problem)
        if self.transport is not None:
            self.transport.abort()

    def _end(self) -> None:
        self._parser = None
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if not self.ended.done():
            self.ended.set_result(None)
            if self.transport is None or self.transport.is_closing():
                return
            if self.recording is not None and self.recording.has_failed:
                self.transport.abort()  # further data are not needed
            else:
                # The server closes first, as requested, so that TIME_WAIT is on its side.
                self._timer = self.ended.get_loop().call_later(LINGER_S, self.transport.abort)

    def _on_timer(self) -> None:
        self._timer = None
        if not self.ended.done():
            self._arrive(self.now_ns(), b"")

    def _check(self, now_ns: int) -> None:
        """End the exchange if a deadline passed before `now_ns`; otherwise schedule the next check. All earlier events are parsed."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self.ended.done() or self._deadlines is None or self._is_closing:
            return
        if self.recording is not None and self.recording.has_failed:
            self._complete()  # although the server keeps the connection open
            return
        due = self._deadlines.intended_ns
        limits = self._deadlines.timeouts
        waits = [(due + round(limits.total * 1e9), Outcome.TIMEOUT_TOTAL, f"no end after {limits.total:g} s")]
        next_ns = NEVER_NS
        if self.recording is not None and self.recording.streamed:
            stall_ns = round(limits.stall * 1e9)
            if self.recording.first_ns is None:
                at = due + round(limits.first_token * 1e9)
                progress = f"status {self.status}, {self._size} bytes" if self.status else "no answer"
                detail = f"no content after {limits.first_token:g} s ({progress})"
                waits.append((at, Outcome.TIMEOUT_FIRST_TOKEN, detail))
                next_ns = now_ns + stall_ns  # content that arrives now can stall from then on
            else:
                at = (self.recording.last_ns or 0) + stall_ns
                detail = (
                    f"neither content nor the end for {limits.stall:g} s after {self.recording.content_chunks} chunks"
                )
                waits.append((at, Outcome.TIMEOUT_STALL, detail))
        at, outcome, detail = min(waits)
        if at < now_ns:
            self._break(outcome, detail)
            return
        self._check_ns = min(at, next_ns)
        self._timer = self.ended.get_loop().call_later((self._check_ns - now_ns) / 1e9 + 0.002, self._on_timer)

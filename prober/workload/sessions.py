"""Sessions: conversations of several turns. The prompt of a turn contains all earlier turns and their answers."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from prober.measure.request import Drawer, Message, Request
from prober.workload.prompt_length import PromptCalibration
from prober.workload.prompts import filler_text
from prober.workload.shapes import LengthDistribution
from prober.workload.workloads import TEXT_PLACES, Workload, known_length, nonce


@dataclass(frozen=True, slots=True)
class SessionWorkload(Workload):
    """Sends turns of conversations. The prompt of a turn is all earlier prompts, their answers, and a new message.

    prompt_tokens, output_tokens: lengths of one message and of one answer
    turns: number of turns of a session, after which a new session begins
    count: number of sessions at a time; 0 with think time. Requests continue the sessions in rotation, so the time between two turns of
        a session is about count ÷ rate
    think_time: in ms, from the end of an answer until the next turn is due. Sessions then begin at the rate of the schedule ÷ turns.
        None: requests continue the sessions in rotation
    """

    turns: int = field(kw_only=True)
    count: int = field(default=0, kw_only=True)
    think_time: LengthDistribution | None = field(default=None, kw_only=True)

    @property
    def max_concurrency(self) -> int | None:
        return self.count if self.think_time is None else None

    def shares(self) -> tuple[tuple[str, Workload, float], ...]:
        return tuple((f"{self.name}_turn{turn}", self, 1 / self.turns) for turn in range(1, self.turns + 1))

    def mean_tokens(self) -> tuple[float, float]:
        message, answer = self.prompt_tokens.mean(), self.output_tokens.mean()
        return message * (self.turns + 1) / 2 + answer * (self.turns - 1) / 2, answer

    def draw_lengths(self, series: str, at: int, rng: Random) -> tuple[int, int]:
        output, turn = max(1, self.output_tokens.draw(rng)), self.series.index(series)
        earlier = sum(self.prompt_tokens.draw(rng) + self.output_tokens.draw(rng) for _ in range(turn))
        return max(1, self.prompt_tokens.draw(rng)) + earlier, output

    @property
    def prompt_lengths(self) -> frozenset[object]:
        return frozenset(self.series)

    @property
    def prompt_text(self) -> str:
        text = f"{self.prompt_tokens.text} a message, {self.turns} turns"
        if self.think_time is not None:
            text += f", think time in ms after an answer {self.think_time.text}"
        return text + (f", model {self.adapters.names[0]}" if self.adapters is not None else "")

    def opened(self, rng: Random) -> Drawer:
        # With a random generator of its own, so that the order of answers changes nothing else.
        return SessionPool(self, Random(rng.getrandbits(64)))


@dataclass(slots=True, eq=False)
class Session:
    """A conversation. A turn is composed after the answer to the one before it has ended, because its prompt contains that answer.

    rng: own random generator, so that the order in which answers end changes no session
    turns_left: number of turns that are not composed yet
    prompt_tokens: number of tokens in `messages`: prompts as requested, answers as the server's usage counts them, else as requested
    think_s: seconds from the answer to the latest turn until the next turn is due; None: the pool continues the sessions in rotation
    """

    pool: "SessionPool"
    rng: Random
    turns_left: int
    messages: tuple[Message, ...] = ()
    prompt_tokens: int = 0
    answer_tokens: int = 0
    think_s: float | None = None

    def draw(self, number: int, due_ns: int, calibration: PromptCalibration | None) -> Request:
        """Returns the next turn. It may hit the prefix cache, so it has no salt; the nonce distinguishes sessions."""
        part, rng, turn, length = self.pool.part, self.rng, len(self.messages) // 2, known_length(calibration)
        message, self.answer_tokens = max(1, part.prompt_tokens.draw(rng)), max(1, part.output_tokens.draw(rng))
        words = length.words(message if turn else max(1.0, message - length.constant_tokens))
        text = filler_text(max(1, round(words)), rng.randrange(TEXT_PLACES))
        if part.think_time is not None:
            self.think_s = part.think_time.draw(rng) / 1e3
        self.messages = (*self.messages, ("user", text if turn else f"[{nonce(number)}] {text}"))
        self.prompt_tokens, self.turns_left = self.prompt_tokens + message, self.turns_left - 1
        tokens = self.prompt_tokens, self.answer_tokens
        return part.request(
            *(number, due_ns, part.series[turn], tokens, self.messages),
            warm=True,
            has_asked_length=True,
            adapter=part.adapters.names[0] if part.adapters is not None else "",
            session=self,
            keeps_answer=self.turns_left > 0,
        )

    def end_turn(self, answer: str | None, tokens: int | None) -> None:
        """Record the end of a turn. answer: its text, None ends the session; tokens: length of the answer, None if unknown"""
        if answer is None:
            self.turns_left = 0
        else:
            self.messages = (*self.messages, ("assistant", answer))
            self.prompt_tokens += self.answer_tokens if tokens is None else tokens
        self.pool.turn_ended(self)


class SessionPool:
    """The sessions of a workload. A request continues the ready session that has waited longest.

    With think time, a request begins a new session instead, and the session itself provides its later turns.

    waiting: callbacks of requests for which no session is ready; when a turn ends, the first one is removed and called
    """

    def __init__(self, part: SessionWorkload, rng: Random) -> None:
        self.part, self._rng = part, rng
        self.waiting: dict[object, Callable[[], None]] = {}
        count, turns = part.count, part.turns
        # Sessions, or numbers of turns of those that have not begun. The first ones are shorter, so that not all are at the same turn.
        self._ready: deque[Session | int] = deque(turns - at % turns for at in range(count))
        self.busy_text = f"all {count} sessions of {part.name} waited for an answer (sessions.count)"

    def draw(self, number: int, due_ns: int, calibration: PromptCalibration | None) -> Request:
        """Returns the next turn of a ready session. If none is ready, returns a first turn with `busy` set."""
        part = self.part
        if part.think_time is None and not self._ready:
            prompt, output = map(round, part.mean_tokens())
            return part.request(number, due_ns, part.series[0], (prompt, output), (), busy=self)
        session = part.turns if part.think_time is not None else self._ready.popleft()
        if isinstance(session, int):
            session = Session(self, Random(self._rng.getrandbits(64)), session)
        return session.draw(number, due_ns, calibration)

    def turn_ended(self, session: Session) -> None:
        """Make the session, or its successor after its last turn, ready for the next request."""
        if self.part.think_time is None:
            self._ready.append(session if session.turns_left else self.part.turns)
        if self.waiting:
            self.waiting.pop(next(iter(self.waiting)))()

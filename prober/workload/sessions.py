"""Sessions: conversations of several turns. The prompt of a turn contains all earlier turns and their answers."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal

from prober.measure.request import AssistantMessage, Drawer, Message, Request, ToolUse
from prober.workload.arrivals import derive_seed
from prober.workload.prompt_length import PromptCalibration
from prober.workload.prompts import filler_text
from prober.workload.requested_format import tool_schemas
from prober.workload.shapes import LengthDistribution
from prober.workload.workloads import TEXT_PLACES, Workload, known_length, nonce

Answers = Literal["own", "filler"]
# In the `prompt_text` of results.
OWN_ANSWERS, FILLER_ANSWERS = "the server's own answers", "filler in place of answers"
MADE_UP_TOOL, MADE_UP_ARGUMENTS = "read_file", '{"path":"src/main.py"}'


@dataclass(frozen=True, slots=True)
class SessionWorkload(Workload):
    """Sends turns of conversations. The prompt of a turn consists of all earlier prompts, their answers, and a new message.

    prompt_tokens, output_tokens: lengths of one message and of one answer
    prefix: an additional system message; `reuse`: share of the sessions with it
    adapters: each session uses one for all its turns
    turns: number of turns of a session; then a new session begins
    count: number of sessions at a time; 0 with think time. Requests continue the sessions in rotation, so a session's turns are about
    count ÷ rate apart
    think_time: in ms, from the end of an answer until the next turn is due. Sessions then begin at the rate of the schedule ÷ turns.
        None: requests continue the sessions in rotation
    own_pace: think time that replaces `count` where turns can follow their answers (`at_own_pace`); None: none
    answers: earlier answers in later prompts: the server's own, or filler of the requested length, equal in each run
    tool_results: share of later messages that are results of a made-up tool call; the others are the user's. If the server's own answer
    calls tools, the next message always contains their results
    """

    turns: int = field(kw_only=True)
    count: int = field(default=0, kw_only=True)
    think_time: LengthDistribution | None = field(default=None, kw_only=True)
    own_pace: LengthDistribution | None = field(default=None, kw_only=True)
    answers: Answers = field(default="own", kw_only=True)
    tool_results: float = field(default=0.0, kw_only=True)

    def at_own_pace(self) -> "SessionWorkload":
        """The workload with `own_pace` as think time, if it has one."""
        return self if self.own_pace is None else replace(self, count=0, think_time=self.own_pace, own_pace=None)

    @property
    def max_concurrency(self) -> int | None:
        return self.count if self.think_time is None else None

    def shares(self) -> tuple[tuple[str, Workload, float], ...]:
        return tuple((f"{self.name}_turn{turn}", self, 1 / self.turns) for turn in range(1, self.turns + 1))

    def mean_tokens(self) -> tuple[float, float]:
        message, answer = self.prompt_tokens.mean(), self.output_tokens.mean()
        shared = self.prefix.tokens * self.prefix.reuse if self.prefix is not None else 0.0
        return shared + message * (self.turns + 1) / 2 + answer * (self.turns - 1) / 2, answer

    def draw_lengths(self, series: str, at: int, rng: Random) -> tuple[int, int]:
        output, turn = max(1, self.output_tokens.draw(rng)), self.series.index(series)
        earlier = sum(self.prompt_tokens.draw(rng) + self.output_tokens.draw(rng) for _ in range(turn))
        if self.prefix is not None and rng.random() < self.prefix.reuse:
            earlier += self.prefix.tokens
        return max(1, self.prompt_tokens.draw(rng)) + earlier, output

    @property
    def prompt_lengths(self) -> frozenset[object]:
        return frozenset(self.series)

    @property
    def prompt_text(self) -> str:
        text = f"{self.prompt_tokens.text} a message, {self.turns} turns with "
        text += OWN_ANSWERS if self.answers == "own" else FILLER_ANSWERS
        if self.tool_results:
            text += f", {self.tool_results:.0%} of the later messages results of tools"
        if self.prefix is not None:
            text += f", system message of {self.prefix.tokens} in {self.prefix.reuse:.0%} of the sessions"
        if self.think_time is not None:
            text += f", think time in ms after an answer {self.think_time.text}"
        if self.adapters is not None and len(self.adapters.names) > 1:
            return f"{text}, {len(self.adapters.names)} adapters, each session on one"
        return text + (f", model {self.adapters.names[0]}" if self.adapters is not None else "")

    def opened(self, rng: Random) -> Drawer:
        # Its own random generator: the order of answers affects nothing else.
        return SessionPool(self, Random(rng.getrandbits(64)))


@dataclass(slots=True, eq=False)
class Session:
    """A conversation. A turn is composed only after the previous answer has ended, because its prompt contains that answer.

    rng: own random generator, so that the order in which answers end changes no session
    turns_left: number of turns that are not yet composed
    adapter: see `Request.adapter`
    turn: number of turns composed
    prompt_tokens: number of tokens in `messages`: prompts as requested, answers by the server's usage, or else as requested.
        A made-up tool call is not counted
    filler: text that replaces the answer to the latest turn; None: the server's own answer
    think_s: seconds from the answer to the latest turn until the next turn is due; None: the pool continues the sessions in rotation
    """

    pool: "SessionPool"
    rng: Random
    turns_left: int
    adapter: str = ""
    turn: int = 0
    messages: tuple[Message | AssistantMessage, ...] = ()
    filler: str | None = None
    prompt_tokens: int = 0
    answer_tokens: int = 0
    think_s: float | None = None

    def draw(self, number: int, due_ns: int, calibration: PromptCalibration | None) -> Request:
        """Compose the next turn. It may hit the prefix cache, so it has no salt; the nonce distinguishes sessions."""
        part, rng, turn, length = self.pool.part, self.rng, self.turn, known_length(calibration)
        message, self.answer_tokens = max(1, part.prompt_tokens.draw(rng)), max(1, part.output_tokens.draw(rng))
        words = length.words(message if turn else max(1.0, message - length.constant_tokens))
        text = filler_text(max(1, round(words)), rng.randrange(TEXT_PLACES))
        if part.think_time is not None:
            self.think_s = part.think_time.draw(rng) / 1e3
        if part.answers == "filler":
            self.filler = filler_text(max(1, round(length.words(self.answer_tokens))), rng.randrange(TEXT_PLACES))
        if turn == 0 and part.prefix is not None and rng.random() < part.prefix.reuse:
            shared = filler_text(max(1, round(length.words(part.prefix.tokens))), derive_seed("prefix", part.name))
            self.messages, self.prompt_tokens = (("system", shared),), part.prefix.tokens
        answer = self.messages[-1] if turn else ("", "")
        if turn and part.tool_results and rng.random() < part.tool_results and not isinstance(answer, AssistantMessage):
            tool = next(iter(tool_schemas(part.sampling)), MADE_UP_TOOL)
            answer = AssistantMessage(*answer, (ToolUse("", tool, MADE_UP_ARGUMENTS),))
        if isinstance(answer, AssistantMessage):
            self.messages = (*self.messages[:-1], self._with_results(answer, text))
        else:
            self.messages = (*self.messages, ("user", text if turn else f"[{nonce(number)}] {text}"))
        self.prompt_tokens += message
        self.turn, self.turns_left = turn + 1, self.turns_left - 1
        tokens = self.prompt_tokens, self.answer_tokens
        return part.request(
            *(number, due_ns, part.series[turn], tokens, self.messages),
            warm=True,
            has_asked_length=True,
            adapter=self.adapter,
            session=self,
            keeps_answer=self.turns_left > 0 and self.filler is None,
        )

    def _with_results(self, answer: AssistantMessage, text: str) -> AssistantMessage:
        """Add words of `text` to an answer as the results of its calls, at least one word each.

        Missing and repeated ids are replaced: the APIs refuse them, and some servers restart at 0 in each answer.
        """
        words, count = text.split(), len(answer.tools)
        ids = {
            tool.call_id
            for message in self.messages[:-1]
            if isinstance(message, AssistantMessage)
            for tool in message.tools
        }
        tools: list[ToolUse] = []
        for at, tool in enumerate(answer.tools):
            call_id = tool.call_id
            if not call_id or call_id in ids:
                call_id = f"{self.rng.getrandbits(36):09x}"  # nine letters and digits, as Mistral's templates require
            ids.add(call_id)
            result = words[len(words) * at // count : len(words) * (at + 1) // count] or words[:1]
            tools.append(ToolUse(call_id, tool.name, tool.arguments, " ".join(result)))
        return answer._replace(tools=tuple(tools))

    def end_turn(self, answer: AssistantMessage | None, tokens: int | None) -> None:
        """Record the end of a turn. answer: None ends the session; tokens: length of the answer, None if unknown"""
        if answer is None:
            self.turns_left = 0
        else:
            if self.filler is not None:
                answer = AssistantMessage("assistant", self.filler)
            self.messages = (*self.messages, answer if answer.tools else answer[:2])
            self.prompt_tokens += self.answer_tokens if tokens is None or self.filler is not None else tokens
        self.pool.turn_ended(self)


class SessionPool:
    """The sessions of a workload. A request continues the ready session that has waited longest.

    With think time, a request begins a new session instead, and the session schedules its later turns.

    waiting: callbacks of requests without a ready session; when a turn ends, the first is removed and called
    """

    def __init__(self, part: SessionWorkload, rng: Random) -> None:
        self.part, self._rng = part, rng
        self.waiting: dict[object, Callable[[], None]] = {}
        self._begun = 0
        count, turns = part.count, part.turns
        # Sessions, or turns of one that has not begun. The first ones are shorter, so that sessions are at different turns.
        self._ready: deque[Session | int] = deque(turns - at % turns for at in range(count))
        self.busy_text = f"all {count} sessions of {part.name} waited for an answer (sessions.count)"

    def draw(self, number: int, due_ns: int, calibration: PromptCalibration | None) -> Request:
        """The next turn of a ready session; without one, a first turn with `busy` set."""
        part = self.part
        if part.think_time is None and not self._ready:
            prompt, output = map(round, part.mean_tokens())
            return part.request(number, due_ns, part.series[0], (prompt, output), (), busy=self)
        session = part.turns if part.think_time is not None else self._ready.popleft()
        if isinstance(session, int):
            session = Session(self, Random(self._rng.getrandbits(64)), session)
            if part.adapters is not None:
                names = part.adapters.names
                session.adapter = names[self._begun // part.adapters.turn % len(names)]
                self._begun += 1
        return session.draw(number, due_ns, calibration)

    def turn_ended(self, session: Session) -> None:
        """Make the session, or after its last turn its successor, ready for the next request."""
        if self.part.think_time is None:
            self._ready.append(session if session.turns_left else self.part.turns)
        if self.waiting:
            self.waiting.pop(next(iter(self.waiting)))()

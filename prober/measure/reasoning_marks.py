"""Finds reasoning by its marks in the text of an answer, which a server without a reasoning parser sends as the model wrote it.

- An opening mark at the start of an answer, white space aside, begins reasoning. The first closing mark of its pair ends it.
- A closing mark alone also ends reasoning: some prompts contain the opening mark (DeepSeek-R1, Qwen3-Thinking), so all text before it
  was reasoning. It must be the first mark of the answer, and not quoted: not in code (after an odd number of backticks), not between
  quotation marks or brackets, and not a word of a sentence (after a space, without a line break, letter or digit after it).

The answer begins with the first text after the closing mark that is not white space.

    marks = ReasoningMarks()
    marks.feed("<think>")      # (True, "")
    marks.feed("2 + 2")        # (False, "")
    marks.feed("</think>\n4")  # (True, "4")
"""

import re
from typing import Literal

# Sources: SGLang's and vLLM's reasoning parsers, llama.cpp's chat templates, Google's `thought_tag_marker`.
MARKS = {
    "<think>": "</think>",  # DeepSeek-R1, Qwen3, GLM, MiniMax and most others
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",  # EXAONE, Gemini behind its chat API
    "<seed:think>": "</seed:think>",
    "◁think▷": "◁/think▷",  # Kimi
    "[THINK]": "[/THINK]",  # Mistral
    "<|START_THINKING|>": "<|END_THINKING|>",  # Cohere
    "<|channel>thought": "<channel|>",  # Gemma 4
    "<|channel|>analysis": "<|channel|>final<|message|>",  # gpt-oss
}
_ANY_MARK = re.compile("|".join(map(re.escape, (*MARKS, *MARKS.values()))))
_MAX_MARK_CHARS = max(map(len, (*MARKS, *MARKS.values())))
_QUOTES = frozenset({'""', "''", "()", "[]", "“”", "‘’", "«»", "„“"})


class ReasoningMarks:
    """Separates reasoning from answer in the text of one answer.

    has_reasoning: whether reasoning was found
    """

    def __init__(self) -> None:
        self.has_reasoning = False
        # Before the first text; text without a mark; after an opening mark; after a closing mark; the rest is answer.
        self._phase: Literal["start", "unmarked", "reasoning", "closed", "decided"] = "start"
        self._closing = ""
        self._tail = ""  # end of the previous text, in which a mark may have begun
        self._backticks = 0

    def feed(self, text: str) -> tuple[bool, str]:
        """Process the next text. Returns (True if it ends reasoning, so that all earlier text was reasoning; answer at its end)."""
        window = self._tail + text
        if self._phase == "start":
            window = window.lstrip()
            opening = next((mark for mark in MARKS if window.startswith(mark)), None)
            if opening is not None:
                self._phase, self._closing, self._tail, self.has_reasoning = "reasoning", MARKS[opening], "", True
                return True, self.feed(window[len(opening) :])[1]
            if any(mark.startswith(window) for mark in MARKS):
                self._tail = window
                return False, text
            self._phase = "unmarked"
        if self._phase == "reasoning":
            _, mark, behind = window.partition(self._closing)
            self._tail = window[1 - len(self._closing) :]
            return (True, self._close(behind)) if mark else (False, "")
        if self._phase == "closed":
            return False, self._close(text)
        if self._phase == "unmarked":
            self._backticks += text.count("`")
            self._tail = window[-1 - _MAX_MARK_CHARS :]
            match = _ANY_MARK.search(window)
            if match is not None and match.end() < len(window):
                self._phase = "decided"
                if match[0] not in MARKS and not self._is_quoted(window, *match.span()):
                    return True, self._close(window[match.end() :])
        return False, text

    def _close(self, behind: str) -> str:
        """Process the text after a closing mark. Returns the answer in it."""
        answer = behind.lstrip()
        self._phase, self.has_reasoning = "decided" if answer else "closed", True
        return answer

    def _is_quoted(self, window: str, begin: int, end: int) -> bool:
        before, behind = window[begin - 1 : begin], window[end]
        is_word = before in (" ", "\t") and behind not in "\r\n" and not behind.isalnum()
        return is_word or before + behind in _QUOTES or (self._backticks - window.count("`", begin)) % 2 == 1

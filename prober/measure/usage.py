"""The numbers of tokens that a server reports for an answer. Whether they can be right says `Recording.unusable_usage`."""

from typing import Any, NamedTuple

from prober.measure.payload import count

NO_COUNT = -1  # for a number of tokens that is none, so that the usage is unusable


class Usage(NamedTuple):
    """Token counts as the server reports them; None if not reported."""

    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None

    def over(self, earlier: "Usage") -> "Usage":
        """Returns these counts; those that are missing are taken from an earlier report of the same answer."""
        if earlier[2] is None and earlier[3] is None and self[0] is not None and self[1] is not None:
            return self  # as usual: every report has the same counts
        return Usage(*(old if new is None else new for new, old in zip(self, earlier, strict=True)))


def read_usage(usage: Any, prompt: str, answer: str) -> Usage | None:
    """The counts of a usage, whose keys begin with `prompt` and `answer`; None if it is empty."""
    if not usage:
        return None
    if not isinstance(usage, dict):
        return Usage(NO_COUNT, NO_COUNT)
    asked, completion = reported_count(usage, f"{prompt}_tokens"), reported_count(usage, f"{answer}_tokens")
    cached = reported_count(usage, f"{prompt}_tokens_details", "cached_tokens")
    reasoning = reported_count(usage, f"{answer}_tokens_details", "reasoning_tokens")
    if reasoning and count(usage, "total_tokens") == (asked or 0) + (completion or 0) + reasoning:
        completion = (completion or 0) + reasoning  # xAI counts reasoning beside the completion, all others in it
    return Usage(asked, completion, cached, reasoning)


def reported_count(table: Any, *path: str) -> int | None:
    """The number of tokens at `path` in a usage; None if it is not reported, NO_COUNT if it cannot be a number of tokens."""
    for key in path[:-1]:
        table = table.get(key) if isinstance(table, dict) else None
    if not isinstance(table, dict) or table.get(path[-1]) is None:
        return None
    number = count(table, path[-1])
    return NO_COUNT if number is None else number


def total(first: int | None, *more: int | None) -> int | None:
    """The sum of the numbers of tokens that are reported; None without the first, NO_COUNT if one is none."""
    if first is None:
        return None
    parts = [first, *(number for number in more if number is not None)]
    return NO_COUNT if NO_COUNT in parts else sum(parts)

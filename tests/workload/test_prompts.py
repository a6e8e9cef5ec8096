"""Prompt texts: nonces, prefixes and prompt files."""

from random import Random
from typing import Any

import orjson
import pytest

from prober.workload.prompts import BadPrompts, filler_text, parse_prompts
from prober.workload.shapes import Fixed
from prober.workload.workloads import FileWorkload, Prefix, RequestGenerator, Workload


def conversation(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"conversations": [{"from": role, "value": value} for role, value in turns]}


def sharegpt(*conversations: object) -> str:
    return orjson.dumps(conversations).decode()


def opening(name: str, seed: int, tokens: int) -> str:
    workload = Workload(name, Fixed(100), Fixed(1), Prefix(40, 1.0))
    return " ".join(RequestGenerator(workload, Random(seed)).draw(seed).messages[0][1].split()[:tokens])


@pytest.mark.parametrize("count", [1, 2, 8_191, 8_192, 8_193, 20_000])
def test_a_text_has_the_requested_number_of_words(count: int) -> None:
    """For any count and position, also beyond the end of the pool."""
    assert all(len(filler_text(count, at).split(" ")) == count for at in (0, 1, 8_191, 8_192, 10**30))


def test_a_warm_prefix_is_the_same_for_every_request_and_after_a_restart() -> None:
    """The prefix depends only on the workload, not on the seed, the nonce or the generator."""
    assert opening("rag", 1, 40) == opening("rag", 2, 40)
    assert opening("rag", 1, 41) != opening("rag", 2, 41)


def test_a_workload_does_not_warm_the_prefix_of_another() -> None:
    """Prefixes of two workloads differ from the first words on, so that they share no block of a prefix cache."""
    assert opening("rag", 1, 8) != opening("support", 1, 8)


def test_a_prompt_from_a_file_starts_with_the_nonce_in_its_first_message() -> None:
    """Prompts from a file are cold too, and the rest of the conversation is unchanged."""
    prompts = parse_prompts(
        '{"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]}', "p"
    )
    draw = RequestGenerator(FileWorkload("p", Fixed(1), Fixed(5), prompts=prompts), Random(1)).draw(0)
    assert draw.messages == (("system", f"[{0:020d}] be brief"), ("user", "hi"))
    assert (draw.output_tokens, draw.warm) == (5, False)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085"])
def test_only_a_line_feed_ends_a_line_of_jsonl(separator: str) -> None:
    """Characters that Python treats as line ends may occur in a text; they neither split it nor shift line numbers."""
    text = f'{{"prompt": "a{separator}b"}}'
    assert parse_prompts(text, "p") == ((("user", f"a{separator}b"),),)
    with pytest.raises(BadPrompts, match=r"^p: line 2: needs"):
        parse_prompts(f"{text}\n{{}}", "p")


@pytest.mark.parametrize(
    "text", ['\ufeff{"prompt": "a"}', '{"prompt": "a"}\r\n\r\n', '\ufeff[{"conversations": []}, %s]']
)
def test_a_byte_order_mark_and_windows_line_ends_are_accepted(text: str) -> None:
    """Files written on other systems are read unchanged."""
    text = text.replace("%s", sharegpt(conversation(("human", "a")))[1:-1])
    assert parse_prompts(text, "p") == ((("user", "a"),),)


def test_the_published_sharegpt_data_set_is_accepted() -> None:
    """Empty conversations and those without a question are skipped; names of other assistants are accepted."""
    text = sharegpt(
        conversation(),
        conversation(("gpt", "x")),
        *(conversation(("human", "q"), (name, "a"), ("human", "r")) for name in ("gpt", "chatgpt", "bing", "bard")),
    )
    assert set(parse_prompts(text, "p")) == {(("user", "q"), ("assistant", "a"), ("user", "r"))}
    assert len(parse_prompts(text, "p")) == 4


def test_a_conversation_begins_and_ends_with_the_user() -> None:
    """Answers before the first question, which chat templates reject, and after the last one are dropped; system stays."""
    text = sharegpt(conversation(("system", "s"), ("gpt", "x"), ("human", "q"), ("gpt", "a")))
    assert parse_prompts(text, "p") == ((("system", "s"), ("user", "q")),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"messages": []}', 'p: line 1: needs "messages" (a list of role and content)'),
        ('{"messages": [{"role": "user"}]}', 'p: line 1: needs "messages" (a list of role and content)'),
        ("{", "p: line 1: not JSON (Expecting property name enclosed in double quotes); each line is one JSON object"),
        ("\n7", 'p: line 2: needs "messages" (a list of role and content)'),
        ('{"prompt": "\\ud83d"}', r"p: line 1: half a surrogate pair in its text (\ud800 to \udfff); remove it"),
        (
            '{"messages": [{"role": "user", "content": "\\udc00"}]}',
            r"p: line 1: half a surrogate pair in its text (\ud800 to \udfff); remove it",
        ),
        (
            '[{"conversations": [{"from": "human", "value": "\\ud83d"}]}]',
            r"p: [0]: half a surrogate pair in its text (\ud800 to \udfff); remove it",
        ),
        ("[\n1 2]", "p: line 2: not JSON (Expecting ',' delimiter); mend it or use JSONL"),
        (
            sharegpt(conversation(("human", "q")), conversation(("robot", "q"))),
            'p: [1]: needs "conversations" (a list of from and value, from one of human, gpt, system)',
        ),
        ("[]", "p: no prompts in it; put one JSON object with `messages` on each line"),
    ],
)
def test_an_error_names_place_and_remedy(text: str, message: str) -> None:
    """The message names the file, the line or index, and the expected form."""
    with pytest.raises(BadPrompts) as error:
        parse_prompts(text, "p")
    assert str(error.value) == message


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"prompt": "a", "x": ' + "9" * 5_000 + "}"])
def test_json_beyond_the_limits_of_python_raises_bad_prompts(text: str) -> None:
    """Nesting and numbers beyond Python's limits are reported with their place, without traceback."""
    with pytest.raises(BadPrompts, match=r"^p: .*not JSON"):
        parse_prompts(text, "p")

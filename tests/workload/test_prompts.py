"""Texts that are sent: nonces, prefixes, and files as people have them."""

import subprocess
import sys
from random import Random
from typing import Any

import orjson
import pytest

from prober.workload.prompts import BadPrompts, filler, parse_prompts
from prober.workload.shapes import Fixed
from prober.workload.workloads import Drawer, Prefix, Workload


def conversation(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"conversations": [{"from": role, "value": value} for role, value in turns]}


def sharegpt(*conversations: object) -> str:
    return orjson.dumps(conversations).decode()


def opening(name: str, seed: int, tokens: int) -> str:
    workload = Workload(name, Fixed(100), Fixed(1), Prefix(40, 1.0))
    return " ".join(Drawer(workload, Random(seed)).draw(f"n{seed}").messages[0][1].split()[:tokens])


@pytest.mark.parametrize("count", [1, 2, 8_191, 8_192, 8_193, 20_000])
def test_a_text_has_as_many_words_as_asked_for(count: int) -> None:
    """Any count, from any position, past the end of the pool too."""
    assert all(len(filler().words(count, at).split(" ")) == count for at in (0, 1, 8_191, 8_192, 10**30))


def test_a_warm_prefix_is_the_same_for_every_request_and_after_a_restart() -> None:
    """The prefix depends on the workload alone: not on the seed, the nonce, or the drawer."""
    assert opening("rag", 1, 40) == opening("rag", 2, 40)
    assert opening("rag", 1, 41) != opening("rag", 2, 41)


def test_a_workload_does_not_warm_the_prefix_of_another() -> None:
    """Prefixes of two workloads differ from the first words on, so a prefix cache shares no block between them."""
    assert opening("rag", 1, 8) != opening("support", 1, 8)


def test_a_prompt_from_a_file_starts_with_the_nonce_in_its_first_message() -> None:
    """A file's prompts are cold too, and the rest of the conversation is as it stands."""
    prompts = parse_prompts(
        '{"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]}', "p"
    )
    draw = Drawer(Workload("p", Fixed(1), Fixed(5), prompts=prompts), Random(1)).draw("n")
    assert draw.messages == (("system", "[n] be brief"), ("user", "hi"))
    assert (draw.output_tokens, draw.warm) == (5, False)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085"])
def test_only_a_line_feed_ends_a_line_of_jsonl(separator: str) -> None:
    """Characters that Python takes for line ends may stand in a text; they neither break it nor shift line numbers."""
    text = f'{{"prompt": "a{separator}b"}}'
    assert parse_prompts(text, "p") == ((("user", f"a{separator}b"),),)
    with pytest.raises(BadPrompts, match=r"^p: line 2: needs"):
        parse_prompts(f"{text}\n{{}}", "p")


@pytest.mark.parametrize(
    "text", ['\ufeff{"prompt": "a"}', '{"prompt": "a"}\r\n\r\n', '\ufeff[{"conversations": []}, %s]']
)
def test_a_byte_order_mark_and_windows_line_ends_are_no_matter(text: str) -> None:
    """Files written on other systems are read as they are."""
    text = text.replace("%s", sharegpt(conversation(("human", "a")))[1:-1])
    assert parse_prompts(text, "p") == ((("user", "a"),),)


def test_the_published_sharegpt_set_is_read_as_it_is() -> None:
    """Empty conversations and ones without a question are passed over; other assistants' names are known."""
    text = sharegpt(
        conversation(),
        conversation(("gpt", "x")),
        *(conversation(("human", "q"), (name, "a"), ("human", "r")) for name in ("gpt", "chatgpt", "bing", "bard")),
    )
    assert set(parse_prompts(text, "p")) == {(("user", "q"), ("assistant", "a"), ("user", "r"))}
    assert len(parse_prompts(text, "p")) == 4


def test_a_conversation_begins_and_ends_with_the_user() -> None:
    """Chat templates refuse an answer before the first question; one after the last is the recorded one. System stays."""
    text = sharegpt(conversation(("system", "s"), ("gpt", "x"), ("human", "q"), ("gpt", "a")))
    assert parse_prompts(text, "p") == ((("system", "s"), ("user", "q")),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"messages": []}', 'p: line 1: needs "messages" (a list of role and content)'),
        ('{"messages": [{"role": "user"}]}', 'p: line 1: needs "messages" (a list of role and content)'),
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
        ("[\n1,]", "p: line 2: not JSON (Expecting value); mend it or use JSONL"),
        (
            sharegpt(conversation(("human", "q")), conversation(("robot", "q"))),
            'p: [1]: needs "conversations" (a list of from and value, from one of human, gpt, system)',
        ),
        ("[]", "p: no prompts in it; put one JSON object with `messages` on each line"),
    ],
)
def test_a_bad_file_says_where_and_what_to_do(text: str, message: str) -> None:
    """The message names the file, the line or index, and the form that is wanted."""
    with pytest.raises(BadPrompts) as error:
        parse_prompts(text, "p")
    assert str(error.value) == message


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"prompt": "a", "x": ' + "9" * 5_000 + "}"])
def test_json_that_python_cannot_take_is_a_bad_file_too(text: str) -> None:
    """Nesting and numbers beyond Python's limits are errors with a place, never a traceback."""
    with pytest.raises(BadPrompts, match=r"^p: .*not JSON"):
        parse_prompts(text, "p")


def test_the_package_does_without_numpy() -> None:
    """Start-up time and memory are small: nothing here imports numpy."""
    code = "import sys, prober.workload.arrivals, prober.workload.workloads\nsys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

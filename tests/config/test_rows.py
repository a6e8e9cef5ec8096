"""The file of a workload matrix."""

import re
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path

import pytest

from prober.config.load import load, load_workloads
from prober.config.problems import ConfigError
from prober.config.rows import Row, load_rows
from prober.workload.sessions import SessionWorkload
from prober.workload.shapes import Exponential, Fixed, LengthDistribution, Lognormal, Uniform
from prober.workload.workloads import Adapters, Mix, Prefix, Workload

EXAMPLE = Path(__file__).parents[2] / "docs/examples/matrix.yaml"
GOOD = {
    "name": "a",
    "prompt_tokens": "100",
    "output_tokens": "{uniform: {min: 4, max: 8}}",
    "rate": "2/s",
    "requests": "60",
    "accept": "['ttft<500ms:99%']",
}


def row(**changed: str | None) -> str:
    keys = {key: value for key, value in {**GOOD, **changed}.items() if value is not None}
    return "{" + ", ".join(f"{key}: {value}" for key, value in keys.items()) + "}"


def mistakes(*rows: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        load_rows(f"rows: [{', '.join(rows)}]", source="f")
    return [re.sub(r"^f:\d+: ", "", line) for line in str(error.value).splitlines()]


def test_rows_are_read_in_their_order() -> None:
    """Lengths, prefix, loop, amount and objectives; what is alike in two rows is one objective."""
    first, second = load_rows(
        "rows:\n- "
        + row(accept="['ttft<500ms:99%', 'success:99%']", hypothesis="text")
        + "\n- "
        + row(
            name="b",
            rate=None,
            concurrency="4",
            requests=None,
            duration="30s",
            prefix="{tokens: 50, reuse: 30%}",
            accept="[ttft<1s:95%, 'success:99%']",
        ),
        source="f",
    )
    assert isinstance(first.workload, Workload)
    assert isinstance(second.workload, Workload)
    assert (first.name, first.workload.name, first.hypothesis, first.closed) == ("a", "a", "text", False)
    assert (first.workload.prompt_tokens, first.workload.output_tokens) == (Fixed(100), Uniform(4, 8))
    assert (first.rate, first.concurrency, first.requests, first.duration) == (2.0, None, 60, None)
    assert [(each.name, each.threshold_s, each.objective) for each in first.accept] == [
        ("ttft", 0.5, Decimal("0.99")),
        ("success", None, Decimal("0.99")),
    ]
    assert (second.rate, second.concurrency, second.requests, second.duration) == (None, 4, None, 30.0)
    assert (second.closed, second.workload.prefix) == (True, Prefix(50, 0.3))
    assert [each.name for each in second.accept] == ["ttft-2", "success"]


def test_the_example_is_a_good_one() -> None:
    """It has open and closed loops, lengths of both kinds and a prefix."""
    rows = load_rows(EXAMPLE.read_text(), source="docs/examples/matrix.yaml")
    assert [each.closed for each in rows] == [False] * 5 + [True]
    assert {each.name for each in rows if each.prefix} == {"shared_prefix"}
    assert all(each.accept and each.hypothesis for each in rows)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"concurrency": "4"}, "rows[0]: has `rate` and `concurrency`; keep one of them"),
        ({"rate": None}, "rows[0]: needs `rate` or `concurrency`"),
        ({"duration": "3s"}, "rows[0]: has `requests` and `duration`; keep one of them"),
        ({"requests": None}, "rows[0]: needs `requests` or `duration`"),
        ({"rate": "2"}, "rows[0].rate: 2 is not a rate; write a positive number per time"),
        ({"rate": None, "concurrency": "0"}, "rows[0].concurrency: 0 in flight cannot be kept; use 1 to 2,000"),
        ({"requests": "0"}, "rows[0].requests: must be at least 1, is 0"),
        ({"requests": None, "duration": "0s"}, "rows[0].duration: must be more than 0, is '0s'"),
        ({"hypothesis": "[x]"}, "rows[0].hypothesis: must be text; write it in quotes"),
        ({"hypotesis": "x"}, 'rows[0].hypotesis: unknown key "hypotesis"; did you mean "hypothesis"? known: '),
        ({"name": None}, "rows[0].name: needed, but not given"),
        ({"name": "'a b'"}, "rows[0].name: 'a b' cannot be a name"),
        ({"prompt_tokens": None}, "rows[0].prompt_tokens: needed: a number of tokens or a distribution"),
        ({"prompt_tokens": "{fixed: 0}"}, "rows[0].prompt_tokens.fixed: must be at least 1, is 0"),
        (
            {"output_tokens": "{uniform: {min: 9, max: 3}}"},
            "rows[0].output_tokens: min, median or mean, and max are not in order",
        ),
        ({"output_tokens": "!!set {1}"}, "rows[0].output_tokens: {1} is not a count"),
        ({"prefix": "{tokens: 5, reuse: hot}"}, "rows[0].prefix.reuse: 'hot' is not a percentage"),
        ({"prefix": "{tokens: 5, reus: warm}"}, 'rows[0].prefix.reus: unknown key "reus"; did you mean "reuse"?'),
        ({"accept": None}, "rows[0].accept: needed: a list of what must hold"),
        ({"accept": "ttft<500ms:99%"}, "rows[0].accept: 'ttft<500ms:99%' is not a list"),
        ({"accept": "['ttft']"}, "rows[0].accept[0]: 'ttft' is no objective; write signal<threshold:objective"),
        ({"accept": "['success:99%', 'ttft<500:99%']"}, "rows[0].accept[1]: '500' is not a duration"),
        ({"accept": "['ttft:99%']"}, "rows[0].accept[0]: needed for signal `ttft`: a duration above 0"),
        ({"accept": "['success:100%']"}, "rows[0].accept[0]: 100% leaves nothing to judge"),
        ({"accept": "['speed<1s:99%']"}, "rows[0].accept[0]: 'speed' is not one of 'ttft'"),
        (
            {"accept": "['quality:99%']"},
            "rows[0].accept: `quality` judges answers that are checked; name a `workload` with golden prompts, tools",
        ),
        ({"adapters": "{names: [x]}"}, "rows[0].adapters.names: "),
        ({"adapters": "{names: [x, y, x]}"}, "rows[0].adapters.names: has a name twice; keep one of them"),
        (
            {"adapters": "{names: [x, y]}", "model": "x"},
            "rows[0].model: comes with `adapters`; remove it here, or that",
        ),
        (
            {"adapters": "{names: [x, y]}", "prefix": "{tokens: 5, reuse: warm}"},
            "rows[0].prefix: is cached for each adapter",
        ),
        ({"accept": "['ttft<30s:99%']"}, "rows[0].accept[0]: 30s is not below timeouts.first_token of 30s"),
    ],
)
def test_a_mistake_is_told_with_its_place(changed: dict[str, str | None], said: str) -> None:
    """Where it is, what is wrong, what to write."""
    assert mistakes(row(**changed))[0].startswith(said)


def test_all_mistakes_are_told_at_once() -> None:
    """Those of each row, those that are a configuration's too, and names that come twice."""
    found = mistakes(row(rate="2", prompt_tokens="x"), row(accept="['success:100%']"), "5")
    assert [line.split(": ")[0] for line in found] == [
        "rows[0].prompt_tokens",
        "rows[0].rate",
        "rows[1].name",
        "rows[1].accept[0]",
        "rows[2]",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "f:1: not a mapping; the least that works is `rows: "),
        ("[]", "f:1: not a mapping"),
        ("rows: []", "f:1: rows: needed: a list of rows"),
        ("rows: [", "f:1:8: "),
        (f"{{rows: [{row()}], row: 1}}", 'f:1: row: unknown key "row"; did you mean "rows"?'),
        (f"rows: [{row()[:-1]}, rate: 3/s}}]", "f:1:"),
    ],
)
def test_a_file_that_is_none_says_what_to_write(text: str, said: str) -> None:
    """Empty, of another shape, no YAML, keys unknown or twice."""
    with pytest.raises(ConfigError) as error:
        load_rows(text, source="f")
    assert str(error.value).startswith(said)


def test_a_row_may_name_a_workload_instead_of_lengths() -> None:
    """With all that the workload has, or a mix, whose parts are judged one by one."""
    rag = Workload("rag", Fixed(300), Fixed(20), Prefix(200, 0.5), {"temperature": 1})
    known: dict[str, Workload | Mix] = {"rag": rag, "day": Mix("day", ((rag, 1.0),))}
    text = "rows: [{name: a, workload: %s, rate: 2/s, requests: 40, accept: ['ttft<1s:90%%']%s}]"
    (row,) = load_rows(text % ("rag", ""), source="r", workloads=known)
    assert row.workload is rag
    (row,) = load_rows(text % ("day", ""), source="r", workloads=known)
    assert row.workload is known["day"]
    for name, more, said in (
        ("none", "", 'rows[0].workload: no workload "none"'),
        ("rag", ", prompt_tokens: 5", "rows[0].prompt_tokens: comes with `workload`; remove it here, or that"),
    ):
        with pytest.raises(ConfigError) as raised:
            load_rows(text % (name, more), source="r", workloads=known)
        assert said in str(raised.value)


def beside(**changed: str | None) -> str:
    """A load beside row `a`."""
    keys = {"beside": "a", "name": "load", "accept": None, "requests": None, "duration": "10s", "start": "20s"}
    return row(**{**keys, **changed})


STEADY = row(requests=None, duration="60s")


def test_a_row_beside_another_has_a_start_and_headers() -> None:
    """It is not judged, and its headers may come from the environment, so that the file has no key of a tenant."""
    keyed = beside(headers="{x-api-key: '${TENANT_KEY}'}")
    steady, load = load_rows(f"rows: [{STEADY}, {keyed}]", source="f", environ={"TENANT_KEY": "secret"})
    assert (load.beside, load.start, load.duration, load.accept) == ("a", 20.0, 10.0, ())
    assert load.headers == {"x-api-key": "secret"}
    assert "secret" not in repr(load)
    assert steady.ttft is not None
    assert steady.ttft.threshold_s == 0.5


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((beside(), STEADY), "rows[0].beside: 'a' is not the row before this one"),
        ((STEADY, beside(), beside(name="more")), "rows[2].beside: 'a' is not the row before this one"),
        ((row(), beside()), "rows[1].beside: 'a' needs `rate`, `duration` and a `ttft` in `accept`"),
        ((STEADY, beside(start="55s")), "rows[1]: ends 65s after the begin of 'a', which is sent for 60s"),
        (
            (STEADY, beside(accept="['success:99%']")),
            "rows[1].accept: a row `beside` another is its load and not judged",
        ),
        ((STEADY, beside(accept="['cost<2']")), "rows[1].accept: a row `beside` another is its load and not judged"),
        (
            (STEADY, beside(duration=None, requests="9")),
            "rows[1].requests: a row `beside` another has `rate` and `duration`",
        ),
        ((row(start="5s"),), "rows[0].start: is that of a row `beside` another"),
        ((row(shed_allowed="true"),), "rows[0].shed_allowed: is that of a row `beside` another"),
        ((STEADY, beside(headers="{x: '${NOT_THERE}'}")), "rows[1].headers"),
        ((STEADY, beside(headers="{host: x}")), "rows[1].headers.host: is set by the prober itself"),
    ],
)
def test_mistakes_of_rows_beside_others(rows: tuple[str, ...], said: str) -> None:
    assert any(line.startswith(said) for line in mistakes(*rows)), mistakes(*rows)


def test_a_row_is_compared_with_an_earlier_one() -> None:
    """A swap storm: the same traffic for one adapter before, and for eight in turn."""
    one, storm = load_rows(
        f"rows: [{row(model='x1')}, {row(name='b', against='a', adapters='{names: [x1, x2, x3], turn: 2}')}]",
        source="f",
    )
    assert isinstance(one.workload, Workload)
    assert isinstance(storm.workload, Workload)
    assert (one.workload.adapters, storm.workload.adapters) == (Adapters(("x1",)), Adapters(("x1", "x2", "x3"), 2))
    assert storm.against == "a"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"against": "b"}, "rows[1].against: 'b' is no row before this one"),
        (
            {"against": "a", "rate": "3/s"},
            "rows[1].against: 'a' has another rate or concurrency; give both rows the same",
        ),
    ],
)
def test_rows_that_differ_in_load_are_not_compared(changed: dict[str, str], message: str) -> None:
    """The ratio would be that of two rates."""
    assert mistakes(row(), row(name="b", **changed))[0].startswith(message)


def test_think_time_is_a_distribution_of_the_file() -> None:
    """Constant, exponential, lognormal and uniform, in ms; a row sends it by a rate and for a time."""
    texts: dict[str, LengthDistribution] = {
        "10s": Fixed(10_000),
        "{exponential: {mean: 10s, max: 2m}}": Exponential(10_000.0, 120_000),
        "{lognormal: {median: 10s, sigma: 0.8, max: 5m}}": Lognormal(10_000.0, 0.8, 0, 300_000),
        "{uniform: {min: 500ms, max: 2s}}": Uniform(500, 2_000),
    }
    for text, distribution in texts.items():
        config = (
            f"workloads: {{talk: {{prompt_tokens: 5, output_tokens: 5, sessions: {{turns: 3, think_time: {text}}}}}}}"
        )
        talk = load_workloads(config, source="c", read=str)["talk"]
        assert isinstance(talk, SessionWorkload)
        assert (talk.count, talk.turns, talk.think_time) == (0, 3, distribution)
        rows = "rows: [{name: a, workload: talk, accept: ['success:80%%'], %s}]"
        (loaded,) = load_rows(rows % "rate: 6/s, duration: 30s", source="f", workloads={"talk": talk})
        assert loaded.workload is talk
        with pytest.raises(ConfigError, match="sent for a time; write `duration`"):
            load_rows(rows % "rate: 6/s, requests: 30", source="f", workloads={"talk": talk})
        (of_users,) = load_rows(rows % "concurrency: 6, duration: 30s", source="f", workloads={"talk": talk})
        assert of_users.think_time_of_users == distribution
        with pytest.raises(ConfigError, match="no other think time"):
            load_rows(rows % "concurrency: 6, duration: 30s, think_time: 1s", source="f", workloads={"talk": talk})


@pytest.mark.parametrize(
    ("load", "think_time"),
    [
        ("rate: 6/s, duration: 30s", Fixed(200)),
        ("rate: 6/s, requests: 30", None),
        ("concurrency: 6, duration: 30s", None),
    ],
)
def test_a_think_time_beside_a_count_is_that_of_rows_with_a_schedule(
    load: str, think_time: LengthDistribution | None
) -> None:
    """All else continues the sessions in rotation."""
    talk = load_workloads(
        "workloads: {talk: {prompt_tokens: 5, output_tokens: 5, sessions: {turns: 3, count: 9, think_time: 200ms}}}",
        source="c",
        read=str,
    )["talk"]
    assert talk.think_time is None
    rows = f"rows: [{{name: a, workload: talk, accept: ['success:80%'], {load}}}]"
    (row,) = load_rows(rows, source="f", workloads={"talk": talk})
    ((part, _),) = row.workload.parts
    assert (part.think_time, part.max_concurrency) == (think_time, None if think_time else 9)


@pytest.mark.parametrize(
    ("sessions", "message"),
    [
        ("{turns: 3}", "workloads.talk.sessions: needs `count` or `think_time`"),
        ("{turns: 3, count: 4, answers: mine}", "workloads.talk.sessions.answers: "),
        (
            "{turns: 3, count: 4, tool_results: warm}",
            "workloads.talk.sessions.tool_results: 'warm' is not a percentage",
        ),
        ("{turns: 3, think_time: 7}", "workloads.talk.sessions.think_time: 7 is not a duration"),
        (
            "{turns: 3, think_time: {exponential: {mean: 9s, max: 1s}}}",
            "workloads.talk.sessions.think_time: min, median",
        ),
        (
            "{turns: 3, think_time: {}}",
            "workloads.talk.sessions.think_time: no distribution; write a plain value, or one of",
        ),
    ],
)
def test_a_wrong_think_time_is_refused(sessions: str, message: str) -> None:
    """With the place and the remedy."""
    config = f"workloads: {{talk: {{prompt_tokens: 5, output_tokens: 5, sessions: {sessions}}}}}"
    with pytest.raises(ConfigError) as raised:
        load_workloads(config, source="c", read=str)
    assert str(raised.value).startswith(f"c:1: {message}")


@pytest.mark.parametrize(("concurrency", "is_refused"), [(2, False), (3, True)])
def test_a_closed_loop_needs_as_many_sessions_as_requests_in_flight(concurrency: int, is_refused: bool) -> None:
    """Else a request would wait for a session, or a turn be sent before the answer to the one before it."""
    talk = SessionWorkload("talk", Fixed(5), Fixed(5), count=2, turns=3)
    row = {"name": "a", "workload": talk, "concurrency": concurrency, "requests": 9, "accept": ["success:50%"]}
    with (
        pytest.raises(ValueError, match=r"is more than `sessions.count` .2.; raise that, or lower it")
        if is_refused
        else nullcontext()
    ):
        Row.model_validate(row)


def test_think_time_is_refused_where_nothing_follows_an_answer() -> None:
    """Probes and sweeps send by their schedule only."""
    talk = "workloads: {talk: {prompt_tokens: 5, output_tokens: 5, sessions: {turns: 3, think_time: 1s}}}\n"
    for block in ("probes: [{workload: talk, rate: 1/s}]", "sweep: {workload: talk}"):
        text = f"{talk}slos: {{ok: {{signal: success, objective: 99%}}}}\ntargets: [{{url: 'http://a', {block}}}]"
        with pytest.raises(ConfigError, match="which only `prober matrix` does; use `count`"):
            load(text, source="c", engines=(), environment={}, read=str)

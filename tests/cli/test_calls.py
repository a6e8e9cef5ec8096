"""A mistake in a call is reported by the name of its option, before anything is sent."""

import inspect
import json
import socket
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from prober.cli.experiment import ResultOptions
from prober.cli.options import (
    EndpointOptions,
    WorkloadName,
    WorkloadOptions,
    expand_options,
    warm_up_length,
)
from prober.cli.target import target, workload
from prober.config.problems import ConfigError
from prober.measure.engines import DIALECTS
from prober.results.steadiness import LOOKS
from prober.workload.built_in import BUILT_IN
from prober.workload.shapes import Fixed, Uniform
from prober.workload.workloads import FileWorkload, Workload
from tests.commands import prober

NOBODY = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("gate", NOBODY, "--rate", "5"), 2, "prober gate: --rate: '5' is not a rate"),
        (("gate", "localhost:8000"), 2, "prober gate: URL: 'localhost:8000' is not an http or https URL"),
        (
            ("gate", NOBODY, "--workload", "none"),
            2,
            'prober gate: --workload: no workload "none"; known: agent, batch, chat',
        ),
        (("gate", NOBODY, "--margin", "5"), 2, "prober gate: --margin: '5' is not a percentage"),
        (("gate", NOBODY, "--prompt-tokens", "5"), 2, "--prompt-tokens and --output-tokens go together; give both"),
        (("gate", NOBODY, "--config.file", "none.yaml"), 2, "--config.file none.yaml: cannot be read"),
        (("gate", NOBODY, "--baseline", "none.json"), 2, "none.json: cannot be read: No such file or directory"),
        (("run", "--vantage", "$(NODE_NAME)"), 2, "prober run: --vantage: '$(NODE_NAME)' is not the name of a place"),
        (("watch",), 2, "prober watch: give a configuration file, or a URL"),
        (("watch", NOBODY, "--config.file", "a.yaml"), 2, "prober watch: URLs and a file: write the URLs into"),
        (("watch", "--config.file", "a.yaml", "--slo", "ttft<1s:99%"), 2, "prober watch: --slo: of URLs; write"),
        (("watch", "--config.file", "none.yaml", "--json"), 1, "--config.file none.yaml: cannot be read"),
        (("watch", NOBODY, "--slo", "ttft:99%"), 2, "prober watch: --slo 'ttft:99%': "),
        (("watch", NOBODY, "--rate", "5"), 2, "prober watch: --rate: '5' is not a rate"),
        (("watch", NOBODY, "--interval", "0s"), 2, "prober watch: --interval: "),
        (("watch", "http://me:secret@127.0.0.1:1"), 2, "prober watch: URL"),
        (("compare", NOBODY, NOBODY, "--cool-down", "5"), 2, "prober compare: --cool-down: '5' is not a duration"),
        (
            ("compare", NOBODY, NOBODY, "--margin", "0%"),
            2,
            "prober compare: --margin: '0%' is nothing; use more than 0%",
        ),
        (
            ("gate", NOBODY, "--warm-up", "some"),
            2,
            "prober gate: --warm-up 'some': write a number of requests, such as 50, a time, such as 20s, or steady",
        ),
        (
            ("compare", NOBODY, NOBODY, "--warm-up", "0"),
            2,
            "prober compare: --warm-up 0: a turn needs a request before it",
        ),
        (
            ("sweep", NOBODY, "--workers", "0"),
            2,
            "prober sweep: --workers: '0' is no number of workers; write auto, or 1",
        ),
        (
            ("sweep", NOBODY, "--workers", "2", "--ray", "head"),
            2,
            "prober sweep: --ray 'head': write HOST:PORT of the cluster's head, auto, or local",
        ),
        (("sweep", NOBODY, "--ray", "auto"), 2, "prober sweep: --ray sends with workers of the cluster; add --workers"),
        (("sweep", NOBODY, "--output", "no/where.json"), 2, "--output no/where.json: cannot be written: No such file"),
        (("sweep", NOBODY, "--warm-up", "-1"), 2, "prober sweep: --warm-up '-1': write a number of requests"),
        (("sweep", NOBODY, "--slo", "quality:99%"), 2, "no answer of workload 'probe' is checked"),
        (("sweep", NOBODY, "--slo", "success:99%"), 4, "Connection refused"),
        (("compare", "a.json", "b.json"), 2, "a.json: is neither a file that is there nor an address"),
        (
            ("run", "--web.listen-address", "9811"),
            2,
            "prober run: --web.listen-address: '9811': write host:9811 or :9811",
        ),
        (
            ("watch", NOBODY, "--web.listen-address", ":" + "9" * 5_000),
            2,
            "write host:port or :port, with a port up to 65535",
        ),
        (("sweep", NOBODY, "--fact", "a"), 2, "prober sweep: --fact 'a': has no '='"),
        (
            ("sweep", NOBODY, "--rates", "1,2", "--min-rate", "1/s"),
            2,
            "--rates names all rates, so --min-rate would not",
        ),
        (("run", NOBODY, "prober.yaml"), 2, "prober run: URLs and a file: write the URLs into"),
        (
            ("watch", "a.yaml", "b.yaml"),
            2,
            "prober watch: a.yaml, b.yaml: one configuration file, or URLs with http://",
        ),
        (("check", "no.yaml"), 1, "no.yaml"),
        (
            ("run", "http://a:b@127.0.0.1:1"),
            2,
            "prober run: URL …@127.0.0.1:1: '…@127.0.0.1:1' has a user or password in it",
        ),
        (("run", "127.0.0.1:1"), 2, "prober run: URL 127.0.0.1:1: '127.0.0.1:1' is not an http or https URL"),
        (("sweep", NOBODY, "--prompts", "none.json", "--output-tokens", "5"), 2, "--prompts none.json: cannot be read"),
        (("sweep", NOBODY, "--prompts", "p", "--trace", "t"), 2, "--prompts and --trace are each a workload; keep one"),
        (("sweep", NOBODY, "--output-tokens", "5"), 2, "--output-tokens goes with --prompt-tokens or --prompts"),
        (("sweep", NOBODY, "--golden", "chat"), 2, "--golden: workload 'chat' has no `golden` prompts"),
        (("diagnose", NOBODY, "--workload", "none"), 2, 'prober diagnose: --workload: no workload "none"'),
        (("sweep", NOBODY, "--min-rate", "5/s", "--max-rate", "2/s"), 2, "--max-rate: 2/s is below min_rate (5/s)"),
        (("sweep", NOBODY, "--rates", "1,x"), 2, "prober sweep: --rates '1,x': write rates from 1/1000d to 100000/s"),
        (("sweep", NOBODY, "--rates", "0, 2/s"), 2, "prober sweep: --rates '0, 2/s': write rates"),
        (("sweep", NOBODY, "--rates", "1,2", "--mode", "gentle"), 2, "--rates: only mode grid sends chosen rates"),
        (("run", "--shard", "2/2"), 2, "prober run: --shard: "),
        (
            ("run", "--web.external-url", "javascript:alert(1)"),
            2,
            "prober run: --web.external-url: 'javascript:alert(1)' is not an http or https URL; write https://prober.example.org",
        ),
        (("drain", "--pid", "0"), 2, "--pid"),
        (("once", NOBODY, "--engine", "none"), 2, 'prober once: --engine: no engine "none"'),
        (("diagnose", NOBODY, "--ttft", "5"), 2, "prober diagnose: --ttft: '5' is not a duration"),
        (("matrix", NOBODY, "--file", "none.yaml"), 2, "none.yaml: cannot be read"),
        (("mock", "--engine", "none"), 2, "prober mock: --engine 'none': is not one of drawn, simulated"),
        (("demo", "--trouble-after", "5"), 2, "--trouble-after"),
        (("sweep", NOBODY, "--step", "0s"), 2, "--step: must be more than 0, is '0s'"),
    ],
)
def test_a_wrong_call_names_the_option(arguments: tuple[str, ...], code: int, message: str, tmp_path: Path) -> None:
    """And what to write instead; nothing on standard output, no traceback."""
    done = prober(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_mock_at_a_taken_port_says_so() -> None:
    """Of what is usually another mock that still runs."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = prober("mock", "--port", port)
    assert done.returncode == 1
    assert f"prober mock: --port {port}: another program listens there; choose another port" in done.stderr


def test_a_header_without_a_colon_is_refused_and_not_shown() -> None:
    """It may be a secret."""
    with pytest.raises(ValueError, match="--header: one has no colon") as raised:
        target("gate", NOBODY, EndpointOptions(header=["X-A: b", "Bearer hunter2"]))
    assert "hunter2" not in str(raised.value)
    assert target("gate", NOBODY, EndpointOptions(header=["X-A: b:c"])).headers["X-A"] == "b:c"


def test_a_header_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others on the machine can read a command line."""
    monkeypatch.setenv("ENGINE_KEY", "hunter2")
    assert target("gate", NOBODY, EndpointOptions(header=["X-Api-Key: ${ENGINE_KEY}"])).headers == {
        "X-Api-Key": "hunter2"
    }
    with pytest.raises(ValueError, match="--header X-Api-Key: the environment has no OTHER_KEY"):
        target("gate", NOBODY, EndpointOptions(header=["X-Api-Key: ${OTHER_KEY}"]))


def test_what_is_sent_is_built_in_of_fixed_lengths_or_of_a_file(tmp_path: Path) -> None:
    """The file's other keys are nothing to the call: only its workloads are read, mixes of them too."""
    assert workload(WorkloadOptions("chat", 0, 0)) is BUILT_IN["chat"]
    lengths = workload(WorkloadOptions("chat", 300, 20))
    assert isinstance(lengths, Workload)
    assert (lengths.prompt_tokens, lengths.output_tokens) == (Fixed(300), Fixed(20))
    file = tmp_path / "prober.yaml"
    file.write_text(
        "targets: [{url: 'http://elsewhere', auth: {bearer_token_file: /gone}}]\n"
        "workloads: {mine: {prompt_tokens: 30, output_tokens: {uniform: {min: 4, max: 8}}}}\n"
    )
    lengths = workload(WorkloadOptions("mine", 0, 0, str(file)))
    assert isinstance(lengths, Workload)
    assert (lengths.name, lengths.prompt_tokens, lengths.output_tokens) == ("mine", Fixed(30), Uniform(4, 8))
    with pytest.raises(ValueError, match=r'--workload: no workload "other"; known: .*mine'):
        workload(WorkloadOptions("other", 0, 0, str(file)))
    with pytest.raises(ValueError, match=r"leave --config.file out"):
        workload(WorkloadOptions("mine", 3, 3, str(file)))
    file.write_text("targets: []")
    with pytest.raises(ConfigError, match="workloads: none is there"):
        workload(WorkloadOptions("mine", 0, 0, str(file)))
    file.write_text("a: [")
    with pytest.raises(ConfigError, match=r"--config.file .*prober.yaml:1:5: "):
        workload(WorkloadOptions("mine", 0, 0, str(file)))


def test_golden_prompts_ride_along_with_any_workload(tmp_path: Path) -> None:
    """A request in 20 is golden, whatever the weights of a mix; prompts of a file and traces too."""
    file, prompts, trace = tmp_path / "prober.yaml", tmp_path / "prompts.json", tmp_path / "trace.jsonl"
    file.write_text(
        "workloads:\n  sums: {golden: [{prompt: '17 + 25?', expect: {regex: '42'}}]}\n"
        "  day: {mix: [{workload: chat, weight: 6}, {workload: probe, weight: 2}]}\n"
    )
    prompts.write_text('[{"conversations": [{"from": "human", "value": "Why?"}]}]')
    trace.write_text(
        '{"timestamp": 0, "input_length": 9, "output_length": 5}\n{"timestamp": 9, "input_length": 7, "output_length": 2}'
    )
    for options, names in (
        (WorkloadOptions(config_file=str(file), golden="sums"), ("probe", "sums")),
        (WorkloadOptions("day", config_file=str(file), golden="sums"), ("chat", "probe", "sums")),
        (
            WorkloadOptions(output_tokens=9, config_file=str(file), prompts=str(prompts), golden="sums"),
            ("prompts", "sums"),
        ),
        (WorkloadOptions(config_file=str(file), trace=str(trace), golden="sums"), ("trace", "sums")),
    ):
        shares = workload(options).shares()
        assert tuple(name for name, _, _ in shares) == names
        assert shares[-1][2] == pytest.approx(0.05)
        assert sum(share for _, _, share in shares) == pytest.approx(1)
    plain = workload(WorkloadOptions(output_tokens=9, prompts=str(prompts)))
    assert isinstance(plain, FileWorkload)
    assert plain.prompts == ((("user", "Why?"),),)


def test_request_fields_are_added_to_any_workload(tmp_path: Path) -> None:
    """They stand beside those of the workload, of each part of a mix, and their format is checked; `@` reads a file."""
    tools = {"tools": [{"name": "now"}], "tool_choice": {"type": "any"}}
    (tmp_path / "tools.json").write_text(json.dumps(tools))
    calling = workload(WorkloadOptions(sampling=f"@{tmp_path / 'tools.json'}"))
    assert isinstance(calling, Workload)
    assert calling.name == "probe"
    assert calling.checks == {"tool_call"}
    assert calling.sampling == {"temperature": 0, **tools}
    file = tmp_path / "prober.yaml"
    file.write_text("workloads: {day: {mix: [{workload: chat}, {workload: probe}]}}")
    mixed = workload(WorkloadOptions("day", config_file=str(file), sampling='{"top_p": 0.5}'))
    assert [dict(part.sampling) for _, part, _ in mixed.shares()] == [{"temperature": 0, "top_p": 0.5}] * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{a", "--sampling: Expecting property name .*; write a JSON object, or @FILE of one"),
        ("[1]", "--sampling: is not a JSON object"),
        ('{"seed": 1}', "--sampling: `seed` is never sent; remove it"),
        ("@/nowhere", "--sampling /nowhere: cannot be read"),
        ('{"tools": [{"name": "f", "input_schema": {"type": 5}}]}', "--sampling: f: is not a JSON Schema"),
        ('{"json_schema": "of text"}', "--sampling: is not a JSON Schema: 'of text'"),
        ('{"guided_choice": []}', "--sampling: is empty"),
    ],
)
def test_wrong_request_fields_are_explained(text: str, message: str) -> None:
    """The option, what is wrong, what to write."""
    with pytest.raises(ValueError, match=message):
        workload(WorkloadOptions(sampling=text))


def test_a_look_whether_a_file_can_be_written_writes_none(tmp_path: Path) -> None:
    """A file that was there is left as it is, and no empty one is left of a command that is interrupted."""
    file = tmp_path / "kept.json"
    file.write_text("kept")
    ResultOptions(file).check()
    ResultOptions(tmp_path / "new.json").check()
    assert file.read_text() == "kept"
    assert list(tmp_path.iterdir()) == [file]
    (link := tmp_path / "link.json").symlink_to(tmp_path / "later.json")
    ResultOptions(link).check()
    assert link.is_symlink()
    with pytest.raises(ValueError, match=r"--output .*: cannot be written: Is a directory"):
        ResultOptions(tmp_path).check()


def test_one_probe_at_a_closed_port_says_what_happened_and_no_more() -> None:
    """No model, engine or usage, which nobody has told."""
    done = prober("once", NOBODY)
    assert done.returncode == 1, done.stderr
    assert done.stdout == "connect_refused\nGET 127.0.0.1:1/v1/models: tcp to 127.0.0.1:1: Connection refused\n"


def test_one_probe_says_that_the_format_of_its_answer_is_not_checked() -> None:
    """In front of the outcome, and beside the JSON document; a format that is checked needs no word."""
    says = "guided_grammar: answers are not checked against it\n"
    drawn = prober("once", NOBODY, "--sampling", '{"guided_grammar": "root ::= x"}')
    assert drawn.stdout.startswith(f"{says}connect_refused\n"), drawn.stderr
    document = prober("once", NOBODY, "--json", "--sampling", '{"guided_grammar": "root ::= x"}')
    assert (document.stderr, json.loads(document.stdout)["outcome"]) == (says, "connect_refused")
    assert prober("once", NOBODY, "--sampling", '{"guided_json": {}}').stdout.startswith("connect_refused\n")


ENGINE = get_type_hints(EndpointOptions, include_extras=True)["engine"]


@pytest.mark.parametrize(("option", "names"), [(ENGINE, DIALECTS), (WorkloadName, BUILT_IN)])
def test_the_help_lists_what_there_is(option: Any, names: dict[str, Any]) -> None:
    """Every dialect and every built-in workload."""
    (option_info,) = option.__metadata__
    assert set(names) <= set(option_info.help.rstrip(".").replace(",", " ").split())


def test_a_group_of_options_becomes_one_option_a_field() -> None:
    """Typer sees the options, the command gets the group."""
    calls: list[tuple[str, EndpointOptions, int]] = []

    @expand_options
    def command(url: str, endpoint: EndpointOptions, count: int = 1) -> None:
        calls.append((url, endpoint, count))

    parameters = inspect.signature(command).parameters
    assert list(parameters) == ["url", *(field.name for field in fields(EndpointOptions)), "count"]
    assert parameters["model"].default == "auto"
    defaults = {name: parameter.default for name, parameter in parameters.items()} | {
        "url": NOBODY,
        "api": "completions",
    }
    command(**defaults)
    assert calls == [(NOBODY, EndpointOptions(api="completions"), 1)]


def test_a_warm_up_is_a_number_of_requests_or_a_time_or_until_steady() -> None:
    """It is over after as many, or as long, and not before; the last one has limits of both."""
    by_number, by_time, until_steady = (warm_up_length(text) for text in ("50", "20s", "steady"))
    assert [by_number.is_over(sent, 1e6) for sent in (49, 50)] == [False, True]
    assert [by_time.is_over(1_000, elapsed_s) for elapsed_s in (19.9, 20.0)] == [False, True]
    assert warm_up_length("0").is_over(0, 0.0)
    limits = [
        until_steady.is_over(sent, elapsed_s)
        for sent, elapsed_s in ((LOOKS[-1] - 1, 299.9), (LOOKS[-1], 0.0), (0, 300.0))
    ]
    assert limits == [False, True, True]
    assert [str(length) for length in (by_number, by_time, until_steady)] == ["50", "20s", "steady"]


def test_a_think_time_is_refused_by_commands_that_send_by_their_schedule(tmp_path: Path) -> None:
    """All commands that name a workload; a diagnosis too, whose probes follow each other."""
    file = tmp_path / "prober.yaml"
    file.write_text("workloads: {talk: {prompt_tokens: 5, output_tokens: 5, sessions: {turns: 3, think_time: 1s}}}")
    with pytest.raises(ValueError, match="--workload talk: its sessions have a think time: turns follow their answers"):
        workload(WorkloadOptions(workload="talk", config_file=str(file)))

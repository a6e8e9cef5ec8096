"""Configuration: the one-line form, its defaults, and every mistake in words a person can act on."""

import re
from decimal import Decimal

import jsonschema
import pytest
import yaml
from pydantic import ValidationError

from prober.config.load import load
from prober.config.problems import ConfigError
from prober.config.schema import json_schema
from prober.config.target import Gamma, GammaShape, ProbeSpec, TargetSpec, Timeouts, estimate_per_day
from prober.measure.objective import Slo
from prober.workload.built_in import BUILT_IN

ENGINES = ("openai", "vllm")
ONE_LINE = "targets: [{url: http://localhost:8000}]"
GOOD = """
defaults: {rate: 12/min, timeouts: {first_token: 20s}}
slos:
  ttft: {signal: ttft, threshold: 500ms, objective: 99.9%}
  ok: {signal: success, objective: 99%, window: 7d}
workloads:
  rag: {prompt_tokens: {lognormal: {median: 4096, sigma: 0.5, max: 16000}}, output_tokens: 128,
        prefix: {tokens: 2048, reuse: warm}, sampling: {temperature: 0.7}}
  both: {mix: [{workload: rag, weight: 2}, {workload: chat}]}
targets:
  - {name: a, url: "https://llm.internal/v1/", probes: [{workload: both, arrivals: {gamma: {shape: 0.5}}, slos: [ok]}]}
  - {name: b, url: "http://h:1", budget: {tokens_per_day: 4M, cost_per_day: 5, price_per_million: {prompt: 0.6, completion: 0.6}}}
"""
FILES = {"p.jsonl": '{"prompt": "hi"}', "bad.jsonl": "{", "t.csv": "TIMESTAMP,ContextTokens,GeneratedTokens"}
FILES["seconds.jsonl"] = "".join(
    f'{{"timestamp": {at / 2}, "input_length": 9, "output_length": 9}}\n' for at in range(9)
)
TRACE = (
    "workloads: {{w: {{trace: {{file: seconds.jsonl{}}}}}}}\ntargets: [{{url: http://h, probes: [{{workload: w{}}}]}}]"
)


def read(path: str) -> str:
    try:
        return FILES[path]
    except KeyError:
        raise FileNotFoundError(2, "No such file or directory", path) from None


def loaded(text: str, **environment: str) -> tuple[TargetSpec, ...]:
    return load(text, source="c", engines=ENGINES, environment=environment, read=read).targets


def mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        loaded(text)
    return [re.sub(r"^c:\d+: ", "", line) for line in str(error.value).splitlines()]


def test_watching_leaves_storage_grafana_and_sweeps_to_the_prober_of_the_file() -> None:
    """All else is the same, also of the targets that are found."""
    text = """
storage: {path: /var/lib/prober}
grafana: {url: "http://g:3000", auth: {bearer_token_file: token}}
targets: [{name: a, url: "http://a:1", rate: 2/s, sweep: {max_rate: 5/s}}, {name: b, url: "http://b:1"}]
discovery: [{file: {files: [x.yaml]}, target: {rate: 3/s, sweep: {max_rate: 5/s}}}]
slos: {ttft: {signal: ttft, threshold: 500ms, objective: 99%}}
"""
    specs = load(text, source="c", engines=ENGINES, environment={}, read=read)
    assert [spec.sweep is not None for spec in specs.kinds] == [True, False, True]
    watching = specs.for_watching()
    assert [spec.sweep for spec in watching.kinds] == [None, None, None]
    assert (watching.storage.path, watching.grafana) == (None, None)
    assert [spec.probes for spec in watching.kinds] == [spec.probes for spec in specs.kinds]
    assert watching.slos == specs.slos
    assert watching.targets[1] == specs.targets[1]


def test_one_line_is_enough() -> None:
    """A url is all that is needed; the rest are the documented defaults."""
    (target,) = loaded(ONE_LINE)
    assert (target.key, target.name, target.model, target.engine) == ("localhost:8000", "localhost:8000", None, None)
    assert (target.api, target.stream, target.max_in_flight, target.warmup) == ("chat", True, 16, 3)
    assert target.connect_lead == 1.0
    assert target.timeouts == Timeouts(connect=10.0, first_token=30.0, stall=10.0, total=120.0)
    (probe,) = target.probes
    assert (probe.workload.name, probe.rate, probe.arrivals, probe.slos) == ("probe", 0.2, "poisson", ())


def test_everything_is_resolved() -> None:
    """Names are looked up, defaults inherited, units read, objectives exact."""
    a, b = loaded(GOOD)
    ok = Slo("ok", "success", None, Decimal("0.99"), 7 * 86400.0)
    assert a.url == "https://llm.internal/v1"
    assert a.probes[0].slos == (ok,)
    assert a.probes[0].arrivals == Gamma(gamma=GammaShape(shape=0.5))
    assert a.probes[0].workload.series == ("rag", "chat")
    assert a.probes[0].rate == pytest.approx(0.2)
    assert a.timeouts.first_token == 20.0
    assert b.probes[0].slos == (Slo("ttft", "ttft", 0.5, Decimal("0.999"), 30 * 86400.0), ok)
    use = estimate_per_day(b)
    assert use.tokens == pytest.approx(3.05e6, rel=0.01)
    assert use.dollars == pytest.approx(use.tokens * 0.6 / 1e6)


@pytest.mark.parametrize(
    ("target", "environment", "name"),
    [
        ("{url: http://localhost:8000, name: x}", {"POD_NAMESPACE": "ns", "POD_WORKLOAD": "llama"}, "x"),
        ("{url: http://localhost:8000, model: m}", {"POD_NAMESPACE": "ns", "POD_WORKLOAD": "llama"}, "ns/llama"),
        ("{url: http://localhost:8000, model: m}", {"POD_NAMESPACE": "ns", "POD_NAME": "llama-0"}, "ns/llama"),
        ("{url: http://localhost:8000}", {"POD_NAMESPACE": "ns", "POD_NAME": "q-7b-7d9f8b6c5-x2x4z"}, "ns/q-7b"),
        ("{url: http://localhost:8000}", {"POD_NAMESPACE": "ns", "POD_NAME": "qwen-x2x4z"}, "ns/qwen"),
        ("{url: http://localhost:8000}", {"POD_NAMESPACE": "ns", "POD_NAME": "qwen-large"}, "ns/qwen-large"),
        ("{url: http://localhost:8000}", {"POD_NAME": "prober-7d9f8b6c5-x2x4z"}, "localhost:8000"),
        ("{url: http://localhost:8000, model: m}", {}, "m"),
        ("{url: http://llm.internal}", {}, "llm.internal"),
        ("{url: http://127.0.0.1:8000}", {}, "127.0.0.1:8000"),
        ("{url: 'http://[::1]:8000'}", {}, "[::1]:8000"),
    ],
)
def test_a_target_without_a_name_is_called_by_what_is_configured(
    target: str, environment: dict[str, str], name: str
) -> None:
    """The name is given, the pod's, the model's, the host's, or the address on this machine."""
    assert loaded(f"targets: [{target}]", **environment)[0].name == name


@pytest.mark.parametrize(
    ("defaults", "target", "seconds"),
    [
        ("", "", 1200.0),
        ("starting_timeout: 45m", "", 2700.0),
        ("starting_timeout: 45m", "starting_timeout: 30s", 30.0),
        ("starting_timeout: 45m", "starting_timeout: 0", 0.0),
        ("starting_timeout: 0s", "", 0.0),
    ],
)
def test_how_long_an_engine_may_take_to_listen_is_inherited(defaults: str, target: str, seconds: float) -> None:
    """The target's own before the defaults' before 20 minutes; 0 needs no unit."""
    text = f"defaults: {{{defaults}}}\ntargets: [{{url: 'http://h', {target}}}]"
    assert loaded(text)[0].starting_timeout == seconds


@pytest.mark.parametrize("value", ["20", "false", "-1m", "never", "[1]"])
def test_a_starting_timeout_has_a_unit(value: str) -> None:
    """A bare number but 0 may be minutes or seconds: it is refused, and what to write is said."""
    (mistake,) = mistakes(f"targets: [{{url: 'http://h', starting_timeout: {value}}}]")
    assert mistake.startswith("targets[0].starting_timeout: ")
    assert "write a number and a unit, such as 500ms, 10s, 2m" in mistake


def test_equal_text_is_equal_and_a_change_shows() -> None:
    """A reload can tell which target changed."""
    assert loaded(GOOD) == loaded(GOOD)
    before, after = loaded(GOOD), loaded(GOOD.replace("12/min", "13/min"))
    assert before[0].key == after[0].key
    assert before[0] != after[0]


def test_code_builds_a_target_from_numbers_and_objects() -> None:
    """What a file writes as text with a unit or as a name is a number of seconds or the object itself in code."""
    slo = Slo("ttft", "ttft", 0.5, Decimal("0.99"), 30 * 86400.0)
    target = TargetSpec(
        url="http://h",
        rate=2.0,
        timeouts=Timeouts(stall=1.5),
        probes=(ProbeSpec(workload=BUILT_IN["chat"], slos=(slo,)),),
    )
    (probe,) = target.probes
    assert (target.url, target.timeouts.stall, probe.rate, probe.slos) == ("http://h/v1", 1.5, 2.0, (slo,))
    assert probe.workload is BUILT_IN["chat"]
    with pytest.raises(ValidationError):
        TargetSpec(url="http://h", timeouts={"stall": "1.5s"})  # type: ignore[arg-type]


def test_a_key_without_a_value_is_absent() -> None:
    """An empty key leaves what is inherited."""
    assert loaded("defaults: {rate: 3/s}\ntargets: [{url: http://h, rate: , stream: }]")[0].rate == 3.0


TTFT = "slos: {a: {signal: ttft, threshold: 500ms, objective: 99%}}\n"
OF_A_TARGET = [  # keys of the target, and what is said of them
    ("metrics: {interval: 100ms}", "metrics.interval: 0.1s is too often; use 0.5s or more"),
    ("sweep: {}", "sweep: there is no SLO to judge; add one to `slos`, such as {signal: ttft, threshold: 500ms, objective: 99%}"),
    ("decode_bound: {config_file: gone}",
     "decode_bound.config_file: cannot be read: [Errno 2] No such file or directory: 'gone'; name the model's config.json"),
    ("decode_bound: {active_parameters: 8e9, bytes_per_weight: 2}", "decode_bound: no config.json: configure the KV bytes per token"),
    ("decode_bound: {active_parameters: 8e9, bytes_per_weight: 2, kv_bytes_per_token: 131072, gpu: Abacus}",
     "decode_bound.gpu: the memory bandwidth of 'Abacus' is unknown (no data sheet entry): configure it with "
     "`memory_bandwidth`, in bytes/s"),
    ("metrics: {url: h/metrics}",
     "metrics.url: 'h/metrics' is not an http or https URL; write auto, none, or http://host:port/metrics"),
    ("rate: -1/s", "rate: '-1/s' is not a rate; write a positive number per time, such as 0.2/s, 12/min or 1/h"),
    ("rate: 0/s", "rate: '0/s' is no rate; it must be above 0 (leave the probe out to send none)"),
    ("max_in_flight: 0", "max_in_flight: must be at least 1, is 0"),
    ("arrivals: often", "arrivals: 'often' is not one of 'poisson', 'constant' or 'trace'"),
    ("arrivals: trace", "probes[0].arrivals: workload 'probe' has no trace; give it one, or use poisson"),
    ("engine: vlm", 'engine: no engine "vlm"; did you mean "vllm"? known: auto, openai, vllm'),
    ("headers: {Host: x}", "headers.Host: is set by the prober itself; remove it"),
    ('headers: {X-A: "a\\nb"}',
     "headers.X-A: has a control character, such as a line break, or a character outside ASCII in its value; remove it"),
    ("proxy_url: 'socks://p'", "proxy_url: 'socks://p' is not an http URL; write http://host:port"),
    ("probes: []", "probes: is empty; remove it for the default probe, or remove the target"),
    ("probes: [{workload: chat}, {workload: chat}]", "probes[1].workload: probes[0] fills the same series 'chat'; keep one of the two"),
    ("probes: [{slos: [x]}]", 'probes[0].slos[0]: no SLO "x"; known: none'),
    ("budget: {tokens_per_day: 4k}",
     "budget.tokens_per_day: 4,000 a day, but the schedule needs about 3,055,219; lower the rate or raise the budget"),
    ("budget: {cost_per_day: 1}", "budget.price_per_million: needed with cost_per_day: {prompt: 0.60, completion: 0.60}"),
    ("budget: {cost_per_day: 1, price_per_million: {prompt: 1, completion: 1}}",
     "budget.cost_per_day: $1.00 a day, but the schedule needs about $3.06; lower the rate or raise the budget"),
]  # fmt: skip
OF_A_SWEEP = [  # keys of `sweep`, where there is an SLO
    ("min_rate: 5/s, max_rate: 2/s", "max_rate: 2/s is below min_rate (5/s); raise it"),
    ("rates: [1/s, 2/s]", "rates: only mode grid sends chosen rates, the mode is gentle; write grid, or remove them"),
    ("mode: grid, rates: [2/s, 1/s]", "rates: must rise, each of them once"),
    ("workers: 0", "workers: 0 is no number of workers; write auto, or 1 to 256"),
    ("blackout: [always]", "blackout[0]: 'always' is not a time span; write it like Mon-Fri 08:00-20:00"),
    ("workload: chad",
     'workload: no workload "chad"; did you mean "chat"? known: agent, batch, chat, code_generation, long_context_qa, '
     "phase_2048_1024, phase_2048_128, phase_256_1024, phase_256_128, phase_4096_256_warm, probe, summarization"),
    ("demand_query: 'sum(rate(x_total[5m]))'", "demand_query: nobody can be asked; add prometheus: {url: http://prometheus:9090}"),
    ("limits: {cost: 2}", "limits.cost: needs prices: budget: {price_per_million: {prompt: 0.60, completion: 0.60}}"),
]  # fmt: skip
BESIDE_A_TARGET = [  # other blocks
    ("drift: {material: 1%}", "drift.material: 1.00% cannot be told from the wander of a healthy engine; use 5% to 100%"),
    ("prometheus: {url: prom}", "prometheus.url: 'prom' is not an http or https URL; write http://prometheus:9090"),
    ("slos: {a: {signal: success, objective: 99%, window: 1d}}",
     "slos.a.window: is too short for its burn-rate alerts, which look back up to 3d; use at least 6d"),
    ("slos: {a: {signal: quality, objective: 99%}}", "slos.a: no probe uses it; list it in the `slos` of one, or remove it"),
    ("defaults: {health: {failures: 6}}", "defaults.health.of: is 5, fewer than the 6 failures; raise it or lower `failures`"),
    ("workloads: {g: {golden: [{prompt: hi}]}}",
     "workloads.g.golden[0].expect: needed: one of {text: …}, {regex: …}, {json_schema: {…}} and {tool_call: …}; without it "
     "there is nothing to check"),
    ("workloads: {g: {golden: [{prompt: hi, expect: {regex: '('}}]}}",
     "workloads.g.golden[0].expect.regex: '(' is not a regular expression of RE2: missing ): ( (character 1); see "
     "github.com/google/re2/wiki/Syntax"),
    ("workloads: {g: {golden: [], output_tokens: 9}}",
     "workloads.g.golden: is empty; give it prompts, such as [{prompt: What is 2 + 2?, expect: {regex: '4'}}]"),
    ("workloads: {g: {golden: [{prompt: hi, expect: {text: ho}}], output_tokens: 10k}}",
     "workloads.g.output_tokens: of answers that are checked are at most 4,096, as the answer is kept to be checked"),
    ("workloads: {g: {sampling: {response_format: {type: json_object}}, prompt_tokens: 9, output_tokens: 10k}}",
     "workloads.g.output_tokens: of answers that are checked are at most 4,096, as the answer is kept to be checked"),
    ("workloads: {g: {sampling: {tools: [{name: f, parameters: {type: objec}}]}, prompt_tokens: 9, output_tokens: 9}}",
     "workloads.g.sampling: f: is not a JSON Schema: 'objec' is not valid under any of the given schemas"),
    ("workloads: {g: {sampling: {tools: [{name: f}]}, golden: [{prompt: hi, expect: {tool_call: g}}]}}",
     'workloads.g.golden[0].expect.tool_call: no tool in `sampling.tools` "g"; known: f'),
    ("workloads: {g: {golden: [{prompt: hi, expect: {text: ho}}], prompt_tokens: 10}}",
     "workloads.g.prompt_tokens: comes with `golden`; remove it here, or that"),
    ("slos: {a: {signal: success, threshold: 1s, objective: 99%}}", "slos.a.threshold: `success` has no threshold; remove it"),
    ("slos: {a: {signal: ttft, threshold: 30s, objective: 99%}}",
     "slos.a.threshold: 30s is not below timeouts.first_token of 30s, which would cut it; lower it or raise that"),
    ("slos: {a: {signal: success, objective: 100%}}", "slos.a.objective: 100% leaves nothing to judge; use 0% < objective < 100%"),
    ("slos: {a: {signal: latency, objective: 99%}}",
     "slos.a.signal: 'latency' is not one of 'ttft', 'ttft_answer', 'tpot', 'itl', 'e2e', 'success' or 'quality'"),
    ("workloads: {w: {output_tokens: 5, prompt_tokens: {normal: {}}}}",
     'workloads.w.prompt_tokens.normal: unknown key "normal"; did you mean "lognormal"? known: empirical, exponential, fixed, '
     "lognormal, uniform"),
    ("workloads: {w: {output_tokens: 5, prompt_tokens: {}}}",
     "workloads.w.prompt_tokens: no distribution; write a plain value, or one of fixed, uniform, exponential, lognormal, empirical"),
    ("workloads: {w: {output_tokens: 5, prompt_tokens: {uniform: {min: 5, max: 2}}}}",
     "workloads.w.prompt_tokens: min, median or mean, and max are not in order; it must be min ≤ median ≤ max"),
    ("workloads: {w: {output_tokens: 5, prompt_tokens: 5, sampling: {seed: 1}}}",
     "workloads.w.sampling.seed: is never sent: with a long prompt it kills some engines; remove it"),
    ("workloads: {w: {output_tokens: 5, prompts: {file: gone}}}",
     "workloads.w.prompts.file: cannot be read: [Errno 2] No such file or directory: 'gone'; name a file that is there"),
    ("workloads: {w: {output_tokens: 5, prompts: {file: bad.jsonl}}}",
     "workloads.w.prompts.file: bad.jsonl: line 1: not JSON (Expecting property name enclosed in double quotes); each line is "
     "one JSON object"),
    ("workloads: {w: {trace: {file: t.csv}}}",
     "workloads.w.trace.file: t.csv: 0 requests in it; a trace needs two or more to have a rate"),
    ("workloads: {m: {mix: []}}", "workloads.m.mix: needs at least one part, such as {workload: chat, weight: 2}"),
]  # fmt: skip
OF_A_FILE = [
    ("targets: [{url: http://a]", "c:1:25: did not find expected ',' or '}'; mend the YAML there"),
    ("slos: {a: {signal: quality, objective: 99%}}\ntargets: [{url: http://h, probes: [{slos: [a]}]}]",
     "targets[0].probes[0].slos: 'a' judges quality, but no answer of workload 'probe' is checked; give it `golden` prompts, "
     "tools or a `response_format`, or list other SLOs"),
    ("slos: {a: {signal: success, objective: 99%}, b: {signal: success, objective: 99%}}\n"
     "targets: [{url: http://h, probes: [{slos: [a]}], health: {slos: [a, b]}}, {url: http://i}]",
     "targets[0].health.slos[1]: no probe of the target is judged by 'b'; list it there"),
    ("targets: [5]", "targets[0]: 5 is not a mapping of keys; write it as key: value"),
    ("targets: [{url: ftp://h}]", "targets[0].url: 'ftp://h' is not an http or https URL; write http://host:port"),
    ("targets: [{url: 'http://u:p@h'}]",
     "targets[0].url: '…@h' has a user or password in it, which end up in logs; give the token as a file"),
    ("targets: [{url: 'http://h/?a=1'}]", "targets[0].url: has a query or fragment; give the base address only"),
    ("targets: [{url: http://localhost:2}, {url: http://localhost:2}]",
     "targets[1].name: is called 'localhost:2', as targets[0]; give each a name of its own"),
    ("targets: [{url: http://h}, {url: http://h:2}]", "targets[1].name: is called 'h', as targets[0]; give each a name of its own"),
    ("targets: [{url: http://h, name: a-rank-1}, {url: http://h:2, name: a, ranks: 2}]",
     "targets[0].name: is called 'a-rank-1', as rank 1 of targets[1]; give it another name"),
    ("targets: [{url: http://h, ranks: 2, engine: openai}]", "targets[0].ranks: only vLLM lets a client choose a rank; remove it"),
    ("targets: [{url: http://h, ranks: 2, headers: {x-data-parallel-rank: '1'}}]",
     "targets[0].headers.x-data-parallel-rank: `ranks` sends this header for each rank; remove one of them"),
    ("targets: [{url: http://h, labels: {rank: a}}]",
     "targets[0].labels.rank: 'rank' is a label of the prober itself; choose another name"),
]  # fmt: skip
BAD = [
    *((f"targets: [{{url: http://h, {keys}}}]", f"targets[0].{message}") for keys, message in OF_A_TARGET),
    *((f"{TTFT}targets: [{{url: http://h, sweep: {{{keys}}}}}]", f"targets[0].sweep.{message}") for keys, message in OF_A_SWEEP),
    *((f"{block}\n{ONE_LINE}", message) for block, message in BESIDE_A_TARGET),
    *OF_A_FILE,
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD)
def test_a_mistake_is_told_in_full(text: str, message: str) -> None:
    """Each mistake gives exactly one line: where it is, what is wrong, what to do."""
    assert mistakes(text) == [message]


def test_a_trace_in_seconds_is_not_sent_as_if_in_milliseconds() -> None:
    """2/s would become 2,000/s. With a speed the times are what the user means, and with other arrivals they are not used."""
    assert mistakes(TRACE.format("", ", arrivals: trace")) == [
        "workloads.w.trace: its times look like seconds, and would be sent as milliseconds, at 2,000/s; write milliseconds, or set "
        "`speed`: 0.001 if they are seconds, another than 1 if they are not"
    ]
    (replayed,) = loaded(TRACE.format(", speed: 0.001", ", arrivals: trace"))
    assert replayed.probes[0].rate == 2.0
    assert loaded(TRACE.format("", ", rate: 1/s"))[0].probes[0].rate == 1.0


def test_a_key_given_twice_is_refused() -> None:
    """YAML would keep the last one silently."""
    (told,) = mistakes("targets: [{url: http://a}]\ntargets: [{url: http://b}]")
    assert told == 'c:2:1: the key "targets" is already on line 1; keep one of the two'


def test_several_mistakes_of_one_key_are_all_reported() -> None:
    """Also those of a target whose other keys are wrong, and a name that two targets share; the same one only once."""
    text = """
slos:
  q: {signal: quality, objective: 99%}
  i: {signal: itl, threshold: 50ms, objective: 99%}
  slow: {signal: ttft, threshold: 90s, objective: 99%}
targets:
  - {url: 'http://h:1', name: a, stream: false, probes: [{slos: [q, i]}]}
  - {url: 'ftp://h:1', name: a}
  - {url: 'http://h:3', name: b, probes: [{slos: [slow]}]}
  - {url: 'http://h:4', name: c, probes: [{slos: [slow]}]}
"""
    with pytest.raises(ConfigError) as error:
        load(text, source="c", engines=(), environment={}, read=lambda path: path)
    lines = str(error.value).splitlines()
    assert "'q' judges quality" in lines[1]
    assert "'i' judges itl" in lines[1]
    assert [line.split(": ")[1] for line in lines] == [
        "slos.slow.threshold",
        "targets[0].probes[0].slos",
        "targets[1].url",
        "targets[1].name",
    ]


def test_all_mistakes_are_reported_at_once() -> None:
    """One mistake does not hide another."""
    told = mistakes("""
defaults: {rate: 5, arivals: poisson}
slos: {a: {signal: ttft, threshold: 500ms, objective: 100%}, b: {signal: e2e, objective: 99}}
workloads: {w: {prompt_tokens: -1, output_tokens: 1}}
targets:
  - {url: "http://u:p@h/", probes: [{workload: rga, slos: [aa]}], headers: {Host: x}}
  - {urll: http://h}
""")
    assert len(told) == 11
    assert len(set(told)) == 11


def test_the_schema_takes_what_is_right_and_refuses_unknown_keys() -> None:
    """Editors that know the schema agree with the prober."""
    schema = json_schema()
    for text in (ONE_LINE, GOOD):
        jsonschema.validate(yaml.safe_load(text), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load("targets: [{url: http://h, ulr: 1}]"), schema)

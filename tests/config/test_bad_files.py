"""Bad configuration files as users write them, and every line that they are answered with."""

import pytest

from prober.config.load import load
from prober.config.problems import ConfigError

RATE = "5 is not a rate; write a positive number per time, such as 0.2/s, 12/min or 1/h"
DURATION = "write a number and a unit, such as 500ms, 10s, 2m, 6h or 30d"
NEVER = "no such day ever comes; write five fields, such as 15 3 * * *"
TARGETS = "targets: needed: a list of targets, such as [{url: http://localhost:8000}]"
TOP = "known: defaults, discovery, drift, grafana, prometheus, slos, storage, targets, workloads"
TTFT = "slos: {a: {signal: ttft, threshold: 500ms, objective: 99%}}\n"
FILES = {
    # The file as a whole
    "empty": ("", "c:1: not a mapping; the least that works is `targets: [{url: http://localhost:8000}]`"),
    "only comments": (
        "# TODO\n# configure\n",
        "c:1: not a mapping; the least that works is `targets: [{url: http://localhost:8000}]`",
    ),
    "a list": (
        "- url: http://h\n",
        "c:1: not a mapping; the least that works is `targets: [{url: http://localhost:8000}]`",
    ),
    "two documents": (
        "targets: [{url: http://h}]\n---\ntargets: [{url: http://g}]\n",
        "c:2:1: another document begins; keep one in a file, without ---",
    ),
    "tab": (
        "targets:\n\t- url: http://h\n",
        "c:2:1: a tab cannot be there; indent with spaces",
    ),
    "byte order mark and Windows line ends": (
        "\ufefftargets:\r\n  - url: http://h\r\n    rate: 5\r\n",
        f"c:3: targets[0].rate: {RATE}",
    ),
    "a key twice": (
        "targets:\n  - url: http://h\n    rate: 1/s\n    rate: 2/s\n",
        'c:4:5: the key "rate" is already on line 3; keep one of the two',
    ),
    "an alias without its anchor": (
        "targets:\n  - url: http://h\n    sweep: *sweep\n",
        "c:3:12: a tag or an alias that is not known; put quotes around what begins with '!' or '*'",
    ),
    "an SLO of all requests that no engine can judge": (
        "slos:\n  a: {signal: quality, objective: 99%}\ntargets:\n  - url: http://h\n    metrics: {slos: [a]}\n",
        "c:5: targets[0].metrics.slos[0]: no engine's page tells `quality`; name SLOs on ttft, itl, tpot, e2e, success",
    ),
    # Keys
    "a misspelt block, and what it would have been": (
        "target:\n  - url: http://h\n",
        f'c:1: target: unknown key "target"; did you mean "targets"? {TOP}',
    ),
    "names below a misspelt block": (
        "slo:\n  a: {signal: ttft, threshold: 500ms, objective: 99%}\ntargets:\n  - url: http://h\n    probes: [{slos: [a]}]\n",
        f'c:1: slo: unknown key "slo"; did you mean "slos"? {TOP}',
    ),
    "a misspelt key that is needed": (
        "targets:\n  - name: a\n    ulr: http://h\n",
        'c:3: targets[0].ulr: unknown key "ulr"; did you mean "url"? known: allow_link_local, api, arrivals, auth, budget, '
        "connect_lead, context, decode_bound, engine, gpus, headers, health, labels, max_in_flight, metrics, model, name, "
        "probes, proxy_url, ranks, rate, starting_timeout, stream, sweep, timeouts, tls, tracing, url, warmup",
    ),
    "a missing key": ("targets:\n  - url: http://h\n\n  - name: b\n", "c:4: targets[1].url: needed, but not given"),
    "a mapping for a list": ("targets:\n  url: http://h\n", f"c:1: {TARGETS}"),
    "a key of the parent, indented": (
        "targets:\n  - url: http://h\n    timeouts:\n      total: 60s\n      rate: 1/s\n",
        'c:5: targets[0].timeouts.rate: unknown key "rate"; known: connect, first_token, stall, total',
    ),
    "a list item without its dash": (
        "slos:\n  - signal: success\n    objective: 99%\ntargets:\n  - url: http://h\n    probes: [{slos: [success]}]\n",
        "c:1: slos: must be a mapping of names",
    ),
    # Values
    "wrong units": (
        "targets:\n- url: http://h\n  rate: 5\n  connect_lead: 1\n  timeouts:\n    total: 1 hour\n    stall: -1s\n    connect: 0s\n",
        f"c:3: targets[0].rate: {RATE}",
        f"c:4: targets[0].connect_lead: 1 is not a duration; {DURATION}",
        f"c:6: targets[0].timeouts.total: '1 hour' is not a duration; {DURATION}",
        f"c:7: targets[0].timeouts.stall: '-1s' is not a duration; {DURATION}",
        "c:8: targets[0].timeouts.connect: must be more than 0, is '0s'",
    ),
    "guards that never or always act": (
        TTFT + "targets:\n- url: http://h\n  sweep:\n"
        "    guard: {kv_cache: 200%, production_ttft: 0s}\n"
        "- url: http://g\n  sweep:\n    guard:\n      kv_cache: -1%\n      burn: 0\n"
        "- url: http://f\n  sweep: {guard: {kv_cache: 0%}}\n",
        "c:5: targets[0].sweep.guard.kv_cache: '200%' is more than all; use at most 100%",
        "c:5: targets[0].sweep.guard.production_ttft: must be more than 0, is '0s'",
        "c:9: targets[1].sweep.guard.kv_cache: '-1%' is not a percentage; write it with its sign, such as 99% or 99.9%",
        "c:10: targets[1].sweep.guard.burn: must be more than 0, is 0",
        "c:12: targets[2].sweep.guard.kv_cache: '0%' is nothing; use more than 0%",
    ),
    "a drift that is always or never found": (
        "drift: {false_alarms: 5/s, material: 500%, accept_after: 0s}\ntargets: [{url: http://h}]\n",
        "c:1: drift.false_alarms: is more than one an hour for each signal; use 1/h or less",
        "c:1: drift.material: '500%' is more than all; use at most 100%",
        "c:1: drift.accept_after: must be more than 0, is '0s'",
    ),
    "schedules that never fire": (
        TTFT
        + "targets:\n- url: http://h\n  sweep: {schedule: '0 3 31 2 *'}\n- url: http://g\n  sweep: {schedule: '0 0 30 2 *'}\n"
        "- url: http://f\n  sweep:\n    schedule: 0 0 31 4,6,9,11 *\n",
        f"c:4: targets[0].sweep.schedule: '0 3 31 2 *': {NEVER}",
        f"c:6: targets[1].sweep.schedule: '0 0 30 2 *': {NEVER}",
        f"c:9: targets[2].sweep.schedule: '0 0 31 4,6,9,11 *': {NEVER}",
    ),
    "a schedule and a time zone that are none": (
        TTFT + "targets:\n- url: http://h\n  sweep:\n    schedule: daily\n    timezone: Berlin\n",
        "c:5: targets[0].sweep.schedule: 'daily': Wrong number of fields; got 1, expected 5; write five fields, such as 15 3 * * *",
        "c:6: targets[0].sweep.timezone: 'Berlin' is not a time zone; write one such as UTC or Europe/Berlin",
    ),
    "a blackout of the whole week": (
        TTFT
        + "targets:\n- url: http://h\n  sweep:\n    blackout:\n      - Mon-Fri 00:00-24:00\n      - Sat 00:00-12:00\n"
        "      - Sat 10:00-23:00\n      - Sun 00:00-24:00\n      - Sat 22:30-00:30\n",
        "c:5: targets[0].sweep.blackout: is the whole week, so that no sweep ever starts; leave some time, or remove `sweep`",
    ),
    "a blackout over all due times": (
        TTFT
        + "targets:\n- url: http://h\n  sweep: {schedule: '*/30 8-19 * * mon-fri', blackout: [Mon-Fri 07:00-20:00]}\n",
        "c:4: targets[0].sweep.blackout: holds every time of the schedule '*/30 8-19 * * mon-fri'; leave one free, or change the "
        "schedule",
    ),
    # Several mistakes
    "three SLOs with a mistake each, and a sweep that needs one": (
        "slos:\n  a: {signal: ttft, objective: 99%}\n  b: {signal: e2e, threshold: 2s, objective: 99}\n"
        "  my slo: {signal: success, objective: 99%}\ntargets:\n  - url: http://h\n    probes: [{slos: [a, b, my slo]}]\n"
        "    sweep: {schedule: 0 25 * * *, slos: [a, b, c]}\n",
        "c:2: slos.a.threshold: needed for signal `ttft`: a duration above 0, such as 500ms",
        "c:3: slos.b.objective: 99 is not a percentage; write it with its sign, such as 99% or 99.9%",
        "c:4: slos.my slo: 'my slo' cannot be a name; use letters, digits, '_', '.' and '-'",
        "c:8: targets[0].sweep.schedule: '0 25 * * *': Error validating expression '25': the last value (25) is higher than the "
        "maximum value (23); write five fields, such as 15 3 * * *",
        'c:8: targets[0].sweep.slos[2]: no SLO "c"; known: a, b, my slo',
    ),
    "workloads with mistakes, and those who name them": (
        "workloads:\n  t:\n    trace: {file: gone.jsonl}\n  v: {prompt_tokens: 5}\n"
        "  m:\n    mix: [{workload: v}, {workload: t}, {workload: w}]\n"
        "targets:\n  - url: http://h\n    probes: [{workload: t, arrivals: trace}, {workload: m}]\n",
        "c:3: workloads.t.trace.file: cannot be read: [Errno 2] No such file or directory: 'gone.jsonl'; name a file that is there",
        "c:4: workloads.v.output_tokens: needed: a number of tokens or a distribution",
        'c:6: workloads.m.mix[2].workload: no workload that is no mix "w"; known: agent, batch, chat, code_generation, '
        "long_context_qa, phase_2048_1024, phase_2048_128, phase_256_1024, phase_256_128, phase_4096_256_warm, probe, "
        "summarization, t, v",
    ),
    "a rule with three mistakes": (
        "discovery:\n  - file: {files: [t.txt, t.json]}\n    relabel:\n      - source_labels: [pod-name]\n        regex: (\n"
        "        action: discard\n        target_label: name\n",
        "c:2: discovery[0].file.files[0]: 't.txt' ends in none of .json, .yml and .yaml",
        "c:4: discovery[0].relabel[0].source_labels[0]: 'pod-name' is no name of a label",
        "c:5: discovery[0].relabel[0].regex: '(' is no expression of RE2: missing ): (",
        'c:6: discovery[0].relabel[0].action: no action "discard"; known: drop, dropequal, hashmod, keep, keepequal, labeldrop, '
        "labelkeep, labelmap, lowercase, replace, uppercase",
    ),
    "a timeout without its unit does not shorten the others": (
        "defaults:\n  timeouts: {first_token: 90}\nslos: {a: {signal: ttft, threshold: 60s, objective: 99%}}\ntargets: [{url: http://h}]\n",
        f"c:2: defaults.timeouts.first_token: 90 is not a duration; {DURATION}",
    ),
    "the same mistake in defaults and in a target": (
        "defaults:\n  rate: 5\ntargets:\n  - url: http://h\n    rate: 5\n  - url: http://g\n",
        f"c:2: defaults.rate: {RATE}",
        f"c:5: targets[0].rate: {RATE}",
    ),
    "a mistake in an anchor, which two targets use": (
        "targets:\n  - url: http://h\n    sweep: &sweep\n      min_rate: 5\n  - url: http://g\n    sweep: *sweep\n"
        + TTFT,
        f"c:4: targets[0].sweep.min_rate: {RATE}",
    ),
    "a mistake in a merged mapping": (
        "targets:\n  - &base\n    url: http://h\n    rate: 1/s\n    connect_lead: 1\n  - <<: *base\n    url: http://g\n    rate: 5\n",
        f"c:5: targets[0].connect_lead: 1 is not a duration; {DURATION}",
        f"c:8: targets[1].rate: {RATE}",
    ),
    "two targets in one line": (
        "targets: [{url: http://h, rate: 5},\n          {url: http://g, rate: 5}, {url: http://f, rate: 5}]\n",
        f"c:1: targets[0].rate: {RATE}",
        f"c:2: targets[1].rate: {RATE}",
        f"c:2: targets[2].rate: {RATE}",
    ),
    "a name with dots": (
        "workloads:\n  a: {prompt_tokens: 5, output_tokens: 5}\n  a.b:\n    prompt_tokens: 5\n    output_tokens: none\n"
        "targets: [{url: http://h}]\n",
        "c:5: workloads.a.b.output_tokens: 'none' is not a count; write a whole number, such as 128, 200k or 4M",
    ),
    "an SLO without use beside a mistake elsewhere": (
        TTFT + "grafana:\n  url: http://g\ntargets: [{url: http://h, probes: [{slos: []}]}]\n",
        "c:1: slos.a: no probe uses it; list it in the `slos` of one, or remove it",
        "c:2: grafana.auth: needed, but not given",
    ),
    "numbers and truths for text": (
        "targets:\n  - url: http://h\n    name: 1\n    model: yes\n    stream: 'no'\n    headers: {X-Tenant: 12}\n"
        "    labels: {job: llm}\n",
        "c:3: targets[0].name: 1 is not text; write it in quotes",
        "c:4: targets[0].model: True is not text; write it in quotes",
        "c:5: targets[0].stream: 'no' is not true or false",
        "c:6: targets[0].headers.X-Tenant: must be text; write it in quotes",
        "c:7: targets[0].labels.job: 'job' is set by Prometheus, to that of the prober; choose another name, such as target_job",
    ),
}


def read(path: str) -> str:
    raise FileNotFoundError(2, "No such file or directory", path)


@pytest.mark.parametrize(("text", "lines"), [(text, lines) for text, *lines in FILES.values()], ids=FILES)
def test_every_mistake_of_a_file_has_its_line(text: str, lines: list[str]) -> None:
    """Each once, from top to bottom, with the line to edit; none that only follows from another."""
    with pytest.raises(ConfigError) as error:
        load(text, source="c", engines=("openai", "vllm"), environment={}, read=read)
    assert str(error.value).splitlines() == lines


@pytest.mark.parametrize("schedule", ["0 3 29 2 *", "0 3 29 2 mon", "* * * * *", "0 3 31 * *", "0 3 last 2 *"])
def test_a_schedule_that_fires_seldom_is_right(schedule: str) -> None:
    """Also one that waits for a leap year, or for one whose 29 February is a Monday."""
    load(
        f"{TTFT}targets: [{{url: http://h, sweep: {{schedule: '{schedule}', blackout: [00:00-02:59, Tue-Sun 03:00-24:00]}}}}]",
        source="c",
        engines=(),
        environment={},
        read=read,
    )

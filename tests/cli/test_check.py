"""Output of `prober check`."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from prober.cli.check import check
from prober.cli.exit_codes import ExitCode
from prober.config.load import load
from prober.config.web import load_web
from prober.daemon.rules import groups
from prober.exposition.alerting import RuleOptions
from prober.web.web_config import Loaded
from tests.scripted import Asked, Script, threaded
from tests.wire.heads import body as answer_body

NAMES = ("a", "b", "c", "d", "e", "f")
CONFIG = """
workloads: {one: {prompt_tokens: 100, output_tokens: 10}}
defaults: {rate: 1/s}
targets:
""" + "".join(
    f"- {{name: {name}, url: 'http://127.0.0.1:1/{name}', probes: [{{workload: one}}],\n"
    "   budget: {cost_per_day: 1000, price_per_million: {prompt: 1, completion: 10}}}\n"
    for name in NAMES
)


@pytest.fixture
def checked(tmp_path: Path) -> "Call":
    return Call(tmp_path)


class Call:
    def __init__(self, folder: Path, config: str = CONFIG) -> None:
        self._config = folder / "prober.yaml"
        self._config.write_text(config)
        self._app = typer.Typer()
        self._app.command()(check)

    def configured(self, text: str) -> Result:
        self._config.write_text(text)
        return self()

    def __call__(self, *flags: str) -> Result:
        return CliRunner().invoke(self._app, ["--config.file", str(self._config), *flags])

    def costs(self, *flags: str) -> dict[str, tuple[str, ...]]:
        """Name to probes/s, tokens a day and dollars a day."""
        rows = [line.split() for line in self(*flags).stdout.splitlines()]
        return {row[0]: tuple(row[1:5]) for row in rows if row and row[0] in NAMES}


def test_a_secret_in_the_configuration_is_a_warning(checked: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says where, not what; from the environment it is none, and without it there is nothing to start with."""
    monkeypatch.setenv("ENGINE_KEY", "hunter22")
    output = checked.configured("targets: [{url: 'http://127.0.0.1:1', name: a, headers: {X-Api-Key: hunter22}}]")
    assert output.exit_code == 0
    assert "targets[0].headers.X-Api-Key: a secret stands in the configuration itself" in output.stdout
    assert "hunter22" not in output.output
    text = "targets: [{url: 'http://127.0.0.1:1', name: a, headers: {X-Api-Key: '${ENGINE_KEY}'}}]"
    assert "a secret" not in checked.configured(text).stdout
    monkeypatch.delenv("ENGINE_KEY")
    missing = checked.configured(text)
    assert missing.exit_code == 1
    assert "the environment has no ENGINE_KEY" in missing.output


def test_a_configuration_without_slos_is_a_warning(checked: Call) -> None:
    """It is valid and gets no page about a budget; with an SLO there is no warning."""
    text = "targets: [{url: 'http://127.0.0.1:1', name: a}]\n"
    without, some = checked.configured(text), checked.configured(text + "slos: {s: {signal: success, objective: 99%}}")
    assert (without.exit_code, some.exit_code) == (0, 0)
    assert "yaml: slos: none, so LLMErrorBudgetBurn cannot fire" in without.stdout
    assert "WARNING" not in some.stdout


def test_a_format_that_is_not_checked_is_a_warning(checked: Call) -> None:
    """With its place and the reason; one that is checked is none."""
    text = """
workloads:
  tags: {prompt_tokens: 9, output_tokens: 9, sampling: {structured_outputs: {structural_tag: '{}'}}}
  json: {prompt_tokens: 9, output_tokens: 9, sampling: {structured_outputs: {json: {type: object}}}}
targets: [{url: 'http://127.0.0.1:1', name: a, probes: [{workload: json}, {workload: tags}]}]
"""
    output = checked.configured(text)
    assert output.exit_code == 0
    (warning,) = [line for line in output.stdout.splitlines() if "sampling" in line]
    assert warning.startswith("WARNING")
    assert warning.endswith(
        "yaml:3: workloads.tags.sampling: structured_outputs.structural_tag: answers are not checked against it"
    )


SWEPT = """
prometheus: {{url: 'http://127.0.0.1:1'}}
slos: {{quick: {{signal: ttft, threshold: 500ms, objective: 95%}}}}
workloads: {{one: {{prompt_tokens: 100, output_tokens: 10}}}}
defaults: {{rate: 0.1/s}}
targets:
- {{name: a, url: 'http://127.0.0.1:1/a', probes: [{{workload: one}}]{budget}, sweep: {{workload: one{sweep}}}}}
- {{name: b, url: 'http://127.0.0.1:1/b', probes: [{{workload: one}}]}}
"""
# 8,640 probes of 110 tokens are 950,400 a day; in 25 hours, and at four standard deviations, 1,031,742.
PRICES = "price_per_million: {prompt: 1, completion: 10}"


def swept(folder: Path, budget: str = "", sweep: str = "") -> Call:
    text = SWEPT.format(
        budget=f", budget: {{{budget}}}" if budget else "", sweep="".join(f", {block}" for block in [sweep] if block)
    )
    return Call(folder, text)


def rows(output: Result) -> list[list[str]]:
    """Of the sweeps: name, tokens and $ of one, how often, tokens and $ a day."""
    lines = output.stdout.splitlines()
    begin = next(index for index, line in enumerate(lines) if line.startswith("Of these figures sweeps take"))
    return [line.split()[2:8] for line in lines[begin + 2 :] if line.startswith("sweep of ")]


def test_what_sweeps_take_is_in_the_figures_and_told_apart(tmp_path: Path) -> None:
    """By their limits and schedule; a target without sweeps costs what it did."""
    limited = swept(tmp_path, PRICES, "schedule: '0 0,12 * * *', limits: {tokens: 110k}")
    output = limited()
    assert output.exit_code == 0, output.output
    assert rows(output) == [["a", "110,000", "0.20", "2", "220,000", "0.40"]]
    assert "sweep.limits.tokens" in output.stdout
    # 8,640 + 2,000 requests of 100 and 10 tokens, at $0.0002
    assert limited.costs()["a"] == ("0.1", "1,064,000", "106,400", "2.13")
    assert limited.costs()["b"] == ("0.1", "864,000", "86,400", "–")


@pytest.mark.parametrize(("workload", "is_assumed"), [("workload: one, ", False), ("", True)])
def test_it_is_said_that_the_lengths_of_users_requests_are_not_known(
    tmp_path: Path, workload: str, is_assumed: bool
) -> None:
    """The figures of a sweep without a workload are those of `probe`."""
    text = SWEPT.format(budget="", sweep="").replace("sweep: {workload: one", f"sweep: {{{workload}mode: gentle")
    output = Call(tmp_path, text)()
    assert output.exit_code == 0, output.output
    assert ("the figures are those of `probe`" in output.stdout) is is_assumed


@pytest.mark.parametrize(
    ("budget", "sweep", "row", "by"),
    [
        (PRICES, "schedule: '0 3 * * *', limits: {requests: 500}", ["55,000", "0.10", "1"], "sweep.limits.requests"),
        (PRICES, "schedule: '0 3 * * *', limits: {cost: 0.1}", ["55,000", "0.10", "1"], "sweep.limits.cost"),
        (
            "",
            "schedule: '0 * * * *', max_rate: 1/s",
            ["2,640", "–", "4"],
            "no limit but its rates and the 600 s",
        ),
        ("", "limits: {time: 10s}", ["1,100", "–", "on"], "no limit but its rates and the 10 s"),
        ("tokens_per_day: 1040000", "", ["8,258", "–", "on"], "no limit of its own: what the budget leaves"),
    ],
)
def test_what_limits_a_sweep_is_said(tmp_path: Path, budget: str, sweep: str, row: list[str], by: str) -> None:
    """The bound is the sweep's limits, else the maximum of its plan, else the budget that the probes leave."""
    output = swept(tmp_path, budget, sweep)()
    assert output.exit_code == 0, output.output
    ((_, *columns),) = rows(output)
    assert columns[:3] == row
    assert by in output.stdout


@pytest.mark.parametrize(
    ("budget", "sweep", "message"),
    [
        (
            "tokens_per_day: 2M",
            "schedule: '0 * * * *', min_gap: 1h, limits: {tokens: 50k}",
            "targets[0].sweep.limits: the probes take 950,400 tokens a day and 24 sweeps of up to 50,000 tokens each, together more "
            "than budget.tokens_per_day of 2,000,000 tokens; lower the limits to 43,733 tokens a sweep",
        ),
        (
            "tokens_per_day: 1.2M",
            "limits: {tokens: 260k, time: 1h}, mode: adaptive",
            "and 1 sweep of up to 260,000 tokens",
        ),
        (
            f"cost_per_day: 1.9, {PRICES}",
            "schedule: '0 3 * * *', limits: {cost: 0.2}",
            "targets[0].sweep.limits: the probes take $1.73 a day and 1 sweep of up to $0.20 each, together more than "
            "budget.cost_per_day of $1.90",
        ),
        (
            "tokens_per_day: 1M",
            "schedule: '0 3 * * *'",
            "targets[0].budget.tokens_per_day: 1,000,000 tokens leave 0 tokens beside what the probes need, and the warm-up of a "
            "sweep takes 330 tokens: none would begin; raise it to 1,032,072 tokens and what sweeps shall take",
        ),
    ],
)
def test_sweeps_that_do_not_fit_the_budget_are_a_mistake(tmp_path: Path, budget: str, sweep: str, message: str) -> None:
    """With its place and what to do, on standard error; with twice the budget it is none."""
    done = swept(tmp_path, budget, sweep)()
    assert done.exit_code == 1
    assert f"{tmp_path}/prober.yaml:7: " in done.stderr
    assert message in done.stderr
    assert done.stdout.splitlines()[-1].endswith("2 targets; 1 sweep limit and budget do not fit")
    doubled = budget.replace("2M", "4M").replace("1.2M", "2.4M").replace("1M", "2M").replace("day: 1.9,", "day: 4,")
    assert swept(tmp_path, doubled, sweep)().exit_code == 0


@pytest.mark.parametrize(
    ("sweep", "is_warned"),
    [
        ("schedule: '*/15 * * * *', min_gap: 0s", False),
        ("schedule: '*/15 * * * *', min_gap: 0s, demand_query: users", True),
        ("schedule: '*/5 * * * *', min_gap: 0s", True),
        ("schedule: '*/5 * * * *', min_gap: 0s, limits: {time: 2m}", False),
        ("schedule: '*/5 * * * *'", False),  # min_gap leaves six hours
        ("min_gap: 0s", False),
    ],
)
def test_sweeps_that_leave_no_time_to_measure_the_demand_are_a_warning(
    tmp_path: Path, sweep: str, is_warned: bool
) -> None:
    """Headroom is unknown there, so its alert cannot fire; it can with a sweep every quarter of an hour."""
    output = swept(tmp_path, "", sweep)()
    assert output.exit_code == 0
    assert ("targets[0].sweep.schedule: " in output.stdout) is is_warned
    assert ("LLMHeadroomLow cannot fire" in output.stdout) is is_warned
    assert ("all right" in output.stdout) is not is_warned


def test_sweeps_of_what_is_discovered_are_in_it_too(tmp_path: Path) -> None:
    """Of each target that is found; a mistake names the discovery's key."""
    (tmp_path / "found.json").touch()
    text = """
slos: {quick: {signal: ttft, threshold: 500ms, objective: 95%%}}
discovery: [{file: {files: ['%s/found.json']}, target: {budget: {tokens_per_day: 5M}, sweep: {limits: {tokens: %s}}}}]
"""
    good, bad = (Call(tmp_path, text % (tmp_path, limit))() for limit in ("100k", "3M"))
    assert bad.exit_code == 1
    assert good.exit_code == 0, good.output
    assert "each of discovery file" in good.stdout.partition("sweeps take at most")[2]
    assert "prober.yaml:3: discovery[0].target.sweep.limits: the probes take 3,055,219 tokens a day" in bad.stderr


def one(objective: str) -> str:
    return (
        f"slos: {{x: {{signal: success, objective: {objective}}}}}\ntargets: [{{name: a, url: 'http://127.0.0.1:1'}}]"
    )


def test_the_last_line_is_the_verdict(tmp_path: Path) -> None:
    """With the figures it is about; an alert that cannot fire is told with its key on standard error."""
    good, bad = Call(tmp_path, one("95%"))(), Call(tmp_path, one("90%"))()
    assert good.exit_code == 0
    assert good.stdout.splitlines()[-1].endswith("prober.yaml: 1 target, all right")
    assert good.stderr == ""
    assert bad.exit_code == 1
    assert bad.stdout.splitlines()[-1].endswith("prober.yaml: 1 target; 1 alert cannot fire")
    assert bad.stderr.count("\n") == 1
    assert "prober.yaml:1: slos.x.objective: a, probe: its alert cannot fire: burn rate 14.4 of" in bad.stderr
    slow = Call(tmp_path, one("99%") + "\ndefaults: {rate: 1/h}")()
    assert "prober.yaml:1: slos.x: a, probe: its alert cannot fire: its long window of 1h has 1 probes" in slow.stderr


def test_what_is_not_on_this_machine_is_a_warning(tmp_path: Path) -> None:
    """Files of tokens, certificates and lists; there may be one where the prober runs, so it is no mistake."""
    missing = f"{tmp_path}/none"
    config = f"""
targets:
- {{name: a, url: 'http://127.0.0.1:1', auth: {{bearer_token_file: {missing}}}, tls: {{ca_file: {missing}}}}}
discovery:
- {{name: one, file: {{files: [{missing}.json, '{missing}*.json', '{tmp_path}/*.yaml']}}}}
- {{name: two, http: {{url: 'http://127.0.0.1:1', auth: {{bearer_token_file: {missing}}}}}}}
"""
    done = Call(tmp_path, config)()
    assert done.exit_code == 0
    paths = [line.split(": ")[2] for line in done.stdout.splitlines() if "on this machine" in line]
    assert paths == [
        "targets[0].auth.bearer_token_file",
        "targets[0].tls.ca_file",
        "discovery[0].file.files[0]",
        "discovery[0].file.files[1]",
        "discovery[1].http.auth.bearer_token_file",
    ]
    assert done.stdout.splitlines()[-1].endswith("1 target and those of discovery one, two; 6 warnings")
    broken = Call(tmp_path, config.replace("name: a", "name: 1"))()
    assert broken.exit_code == 1
    assert [line.split(": ")[2] for line in broken.stdout.splitlines() if "on this machine" in line] == paths
    assert broken.stderr == f"{tmp_path}/prober.yaml:3: targets[0].name: 1 is not text; write it in quotes\n"


def test_an_address_that_is_refused_is_a_warning(tmp_path: Path) -> None:
    """The address is one that the prober refuses when it connects; no warning where it is allowed."""
    target = "targets: [{name: a, url: 'http://169.254.169.254', allow_link_local: %s}]"
    assert (
        "targets[0].url: 169.254.169.254 is a link-local address: refused" in Call(tmp_path, target % "false")().stdout
    )
    assert "link-local" not in Call(tmp_path, target % "true")().stdout


def test_a_good_web_configuration_is_told_in_a_line(checked: Call, tmp_path: Path) -> None:
    """With what it comes to; an empty one guards nothing, and that is told too."""
    web = tmp_path / "web.yaml"
    web.write_text(f"basic_auth_users: {{me: '$2y$10${'a' * 53}'}}")
    assert "web.yaml: 1 user, no TLS\n" in checked("--web.config.file", str(web)).stdout
    web.write_text("")
    assert "web.yaml: neither TLS nor users\n" in checked("--web.config.file", str(web)).stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "tls_server_config: {cert_fil: a}",
            'tls_server_config.cert_fil: unknown key "cert_fil"; did you mean "cert_file"?',
        ),
        ("basic_auth_users: [a]", "basic_auth_users: must be a mapping; write it as name: value"),
        ("tls_server_config: {cert_file: none, key_file: b}", "tls_server_config: cert_file "),
        ("http_server_config: {http2: 3}", "http_server_config.http2: must be true or false"),
    ],
)
def test_a_mistake_in_a_web_configuration_names_the_key_and_what_to_do(
    checked: Call, tmp_path: Path, text: str, message: str
) -> None:
    """And speaks of the file, not of what reads it."""
    web = tmp_path / "web.yaml"
    web.write_text(text)
    done = checked("--web.config.file", str(web))
    assert done.exit_code == 1
    assert re.search(rf"web.yaml(:1)?: {re.escape(message)}", done.stderr)
    assert "Errno" not in done.stderr


USER = f"basic_auth_users: {{me: '$2y$10${'a' * 53}'}}"
TLS = "tls_server_config: {cert_file: a, key_file: b"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "neither TLS nor users"),
        (USER, "1 user, no TLS"),
        (f"{TLS}}}", "TLS, no users"),
        (f"{TLS}}}\n{USER}", "TLS, 1 user"),
        (
            f"{TLS}, client_auth_type: RequireAndVerifyClientCert, client_ca_file: c}}",
            "TLS, required client certificates",
        ),
    ],
)
def test_how_pages_are_guarded_in_words(text: str, words: str) -> None:
    """The prober's log and `prober check` have the same words."""
    assert Loaded(load_web(text, "w")).words == words


def of_engines(count: int, *rates: str) -> str:
    """A configuration with so many targets, of which the first have these rates."""
    targets = "".join(
        f"- {{name: engine-{number}, url: 'http://127.0.0.1:1/{number}'{f', rate: {rates[number]}' if number < len(rates) else ''}}}\n"
        for number in range(count)
    )
    slos = "success: {signal: success, objective: 99.5%}, ttft: {signal: ttft, threshold: 1s, objective: 99%}"
    return f"slos: {{{slos}}}\ntargets:\n{targets}"


def test_equal_rows_of_many_targets_are_one(tmp_path: Path) -> None:
    """The tables of any number of targets fit a screen; a target with another rate has rows of its own."""
    lines = Call(tmp_path, of_engines(17))().stdout.splitlines()
    assert len(lines) <= 25
    assert [line.split()[:5] for line in lines if "16 more, each" in line] == [
        ["engine-0", "and", "16", "more,", "each"]
    ]
    assert len([line for line in lines if "engine-0, probe and 16 more" in line]) == 8
    lines = Call(tmp_path, of_engines(200, "1/s"))().stdout.splitlines()
    assert len(lines) <= 35
    assert len([line for line in lines if line.startswith("engine-0 ")]) == 1
    assert len([line for line in lines if "engine-0, probe  " in line]) == 8
    swept_ = of_engines(17).replace("'}", "', sweep: {schedule: '0 3 * * *'}}")
    lines = Call(tmp_path, swept_)().stdout.splitlines()
    assert [line for line in lines if line.startswith("sweep of engine-0 and 16 more, each ")]
    cannot = Call(tmp_path, of_engines(17).replace("99.5%", "90%"))()
    assert cannot.stderr.count("its alert cannot fire: burn rate 14.4") == 1
    assert "slos.success.objective: engine-0, probe and 16 more: its alert cannot fire" in cannot.stderr


@pytest.mark.parametrize(
    ("objective", "rate", "text"),
    [
        (
            "99.5%",
            "0.2/s",
            "99.5% is met on 20,000 events or more, 28 h at 0.2/s; use 99% or 0.93/s for a verdict within 6 h",
        ),
        ("99.5%", "1/s", "99.5% is met on 20,000 events or more, 6 h at 1/s"),
        (
            "99.9%",
            "0.2/s",
            "99.9% is met on 100,000 events or more, 6 d at 0.2/s; use 99% or 4.63/s for a verdict within 6 h",
        ),
        ("99%", "0.2/s", "99% is met on 1,000 events or more, 83 min at 0.2/s"),
        ("98%", "1/min", "98% is met on 1,000 events or more, 17 h at 1/min; use 2.78/min for a verdict within 6 h"),
    ],
)
def test_how_long_an_slo_has_no_verdict_is_said_before_it_is_an_alert(
    tmp_path: Path, objective: str, rate: str, text: str
) -> None:
    """With an objective and a rate at which it is no longer than six hours; what is sooner has no advice."""
    config = of_engines(1).replace("99.5%", objective) + f"defaults: {{rate: {rate}}}"
    (line,) = [line for line in Call(tmp_path, config)().stdout.splitlines() if line.startswith("slos.success: ")]
    assert line.removeprefix("slos.success: ").startswith(text)


@contextmanager
def a_prometheus(*groups: dict[str, object], body: str = "") -> Iterator[str]:
    """The address of a Prometheus with these rule groups."""

    def reply(asked: Asked) -> Script:
        assert asked.path == "/api/v1/rules?exclude_alerts=true"
        return answer_body("200 OK", body or {"status": "success", "data": {"groups": groups}})

    with threaded(reply) as url:
        yield url


def loaded(config: str, file: str) -> list[dict[str, object]]:
    """The rules of a configuration as Prometheus lists them, from this file."""
    specs = load(config, source="c", engines=(), environment={}, read=str)
    return [
        {
            "name": group["name"],
            "file": file,
            "rules": [{"name": rule.get("alert") or rule["record"], "query": rule["expr"]} for rule in group["rules"]],
        }
        for group in groups(specs, RuleOptions())
    ]


def test_whether_a_prometheus_has_the_rules_once_is_checked(tmp_path: Path) -> None:
    """Loaded once is right, also beside rules of others; twice names both files; missing ones are named; each is a failure."""
    config = of_engines(1)
    once, twice = loaded(config, "/etc/a.yaml"), loaded(config, "/etc/b.yaml")
    other: dict[str, object] = {
        "name": "node",
        "file": "/etc/node.yaml",
        "rules": [{"name": "NodeDown", "query": "up == 0"}] * 2,
    }
    call = Call(tmp_path, config)

    def check_with(*groups: dict[str, object]) -> Result:
        with a_prometheus(*groups) as url:
            return call("--prometheus", f"{url}/")

    good = check_with(*once, other)
    assert (good.exit_code, good.stderr) == (0, "")
    assert "--prometheus: all rules of this configuration are loaded, each once." in good.stdout
    doubled = check_with(*once, *twice)
    assert doubled.exit_code == ExitCode.FAILED
    assert re.fullmatch(r"--prometheus: rules are loaded 2 times, by /etc/a.yaml and /etc/b.yaml: .*\n", doubled.stderr)
    in_one_file = check_with(*once, *({**group, "name": f"{group['name']}-2"} for group in once))
    assert "by group llm-slo-prober of /etc/a.yaml and group llm-slo-prober-2 of /etc/a.yaml: " in in_one_file.stderr
    assert "not loaded" not in doubled.stderr
    partly = check_with(*once[:-1])
    assert partly.exit_code == ExitCode.FAILED
    assert re.search(
        "rules of this configuration are not loaded: .*load the file that `prober rules` writes",
        partly.stderr,
    )
    assert "loaded 2 times" not in partly.stderr
    assert "all right" not in partly.stdout
    assert re.search(r"are not loaded: (\w+, ){2}\w+ and \d+ more; ", check_with(other).stderr)


def test_what_is_no_prometheus_is_a_mistake_of_the_flag(tmp_path: Path) -> None:
    """With its address; a password in it is not repeated."""
    call = Call(tmp_path, of_engines(1))
    assert "--prometheus: http://127.0.0.1:1/api/v1/rules" in call("--prometheus", "http://127.0.0.1:1").stderr
    with a_prometheus(body="<html>") as url:
        done = call("--prometheus", url.replace("//", "//me:secretpassword@"))
    assert done.exit_code == ExitCode.FAILED
    assert "not an answer of Prometheus" in done.stderr
    assert "secretpassword" not in done.output

"""What `prober check` says of several replicas."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from prober.cli.check import check
from prober.config.web import load_web
from prober.limits.shard import shard_of

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


def test_replicas_without_shards_multiply_what_probing_costs(checked: Call) -> None:
    """Rate, tokens and dollars; it is a warning, and says what to do."""
    one, three = checked.costs(), checked.costs("--replicas", "3")
    assert one == dict.fromkeys(NAMES, ("1", "8,640,000", "864,000", "17.28"))
    assert three == dict.fromkeys(NAMES, ("3", "25,920,000", "2,592,000", "51.84"))
    said = checked("--replicas", "3").stdout
    assert "WARNING: 3 replicas without shards of their own cost 3 times as much; --shard=ordinal/3" in said
    assert "A budget is one replica's: 3 of them may use 3 times as much." in said
    assert "WARNING" not in checked().stdout


def test_shards_do_not(checked: Call) -> None:
    """Each target is one replica's; how many each has is said, and what nobody probes."""
    assert checked.costs("--replicas", "3", "--shard", "ordinal/3") == checked.costs()
    said = checked("--replicas", "3", "--shard", "ordinal/3").stdout
    shares = [sum(shard_of(name, 3) == index for name in NAMES) for index in range(3)]
    assert f"Targets of the shards: {', '.join(map(str, shares))}." in said
    assert "WARNING" not in said
    assert "A budget is one replica's: each counts its own targets." in said
    few = checked("--replicas", "2", "--shard", "ordinal/3").stdout
    assert f"WARNING: 2 replicas of 3 shards: {shares[2]} targets are probed by nobody" in few


def test_one_shard_shows_its_own_targets(checked: Call) -> None:
    """And replicas of the same shard multiply again."""
    mine = {name for name in NAMES if shard_of(name, 2) == 1}
    assert set(checked.costs("--shard", "1/2")) == mine
    assert checked.costs("--shard", "1/2", "--replicas", "2")[min(mine)][0] == "2"
    assert "WARNING: 2 replicas without shards of their own" in checked("--shard", "1/2", "--replicas", "2").stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--shard", "2/2"), "--shard: '2/2': shard 2 of 2 does not exist"),
        (("--shard", "ordinal/2", "--replicas", "3"), "replica 2 does not start; as many replicas as shards"),
    ],
)
def test_what_cannot_be_is_refused(checked: Call, flags: tuple[str, ...], message: str) -> None:
    """With exit code 1."""
    done = checked(*flags)
    assert done.exit_code == 1
    assert message in done.output


def test_a_secret_in_the_configuration_is_a_warning(checked: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says where, not what; from the environment it is none, and without it there is nothing to start with."""
    monkeypatch.setenv("ENGINE_KEY", "hunter22")
    said = checked.configured("targets: [{url: 'http://127.0.0.1:1', name: a, headers: {X-Api-Key: hunter22}}]")
    assert said.exit_code == 0
    assert "targets[0].headers.X-Api-Key: a secret stands in the configuration itself" in said.stdout
    assert "hunter22" not in said.output
    text = "targets: [{url: 'http://127.0.0.1:1', name: a, headers: {X-Api-Key: '${ENGINE_KEY}'}}]"
    assert "WARNING" not in checked.configured(text).stdout
    monkeypatch.delenv("ENGINE_KEY")
    missing = checked.configured(text)
    assert missing.exit_code == 1
    assert "the environment has no ENGINE_KEY" in missing.output


def test_all_replicas_together_stand_in_a_row_of_their_own(checked: Call) -> None:
    """Whenever somebody asks what several come to, and then only."""
    together = ("6", "51,840,000", "5,184,000", "103.68")

    def row(*flags: str) -> tuple[str, ...]:
        (found,) = [line.split() for line in checked(*flags).stdout.splitlines() if line.startswith("all of ")]
        return tuple(found[4:8])

    assert row("--shard", "ordinal/3") == together  # as many replicas as shards
    assert row("--replicas", "2") == ("12", "103,680,000", "10,368,000", "207.36")
    assert "all of" not in checked().stdout


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
    assert "prober.yaml: slos.x.objective: a, probe: its alert cannot fire: burn rate 14.4 of" in bad.stderr
    slow = Call(tmp_path, one("99%") + "\ndefaults: {rate: 1/h}")()
    assert "prober.yaml: slos.x: a, probe: its alert cannot fire: its 1h hold 1 probes" in slow.stderr


def test_an_empty_shard_is_warned_of(tmp_path: Path) -> None:
    """It would have nothing to do; what is yet to be discovered is not counted as nothing."""
    targets = ", ".join(
        f"{{name: {name}, url: 'http://127.0.0.1:1/{name}'}}" for name in NAMES if not shard_of(name, 2)
    )
    said = Call(tmp_path, f"targets: [{targets}]")("--shard", "ordinal/2").stdout
    assert "WARNING: shard 1 of 2 has no target and probes nothing" in said
    assert said.splitlines()[-1].endswith(" targets; 1 warning")
    (tmp_path / "found.json").touch()
    found = f"discovery: [{{file: {{files: ['{tmp_path}/found.json']}}}}]"
    said = Call(tmp_path, found)("--shard", "ordinal/2").stdout
    assert "Targets of the shards: not known before discovery." in said
    assert "WARNING" not in said
    assert said.splitlines()[-1].endswith("prober.yaml: the targets of discovery file, all right")


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
    told = [line.split(": ")[2] for line in done.stdout.splitlines() if "on this machine" in line]
    assert told == [
        "targets[0].auth.bearer_token_file",
        "targets[0].tls.ca_file",
        "discovery[0].file.files",
        "discovery[0].file.files",
        "discovery[1].http.auth.bearer_token_file",
    ]
    assert done.stdout.splitlines()[-1].endswith("1 target and those of discovery one, two; 5 warnings")


def test_an_address_that_is_refused_is_a_warning(tmp_path: Path) -> None:
    """As the prober refuses it when it connects; not where it is allowed."""
    target = "targets: [{name: a, url: 'http://169.254.169.254', allow_link_local: %s}]"
    assert "targets[0].url: 169.254.169.254 is link-local: refused" in Call(tmp_path, target % "false")().stdout
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
            'tls_server_config.cert_fil: unknown key; remove it; did you mean "cert_file"?',
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
    assert f"web.yaml: {message}" in done.stderr
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
    """As the prober's log and `prober check` say it."""
    assert load_web(text, "w").words == words

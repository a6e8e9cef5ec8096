"""`prober rules`: writes the recording rules and alerts that a configuration needs, after checking that each can fire."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from prober.cli.exit_codes import ExitCode, exit_on, fail, saved
from prober.cli.options import ConfigFile, split_file
from prober.cli.output import echo
from prober.config.labels import LABEL_NAME, OWN_LABELS
from prober.config.problems import ConfigError
from prober.daemon.configuration_file import read_config
from prober.daemon.rules import as_operator, groups
from prober.exposition.alerting import RuleOptions
from prober.features.slo.firing import firing_checks

HEAD = "# Written by `prober rules`; change the configuration or the options and write it again.\n"
DEFAULT = RuleOptions()


class Format(StrEnum):
    """Output formats of the rules, the values of `--format`."""

    PROMETHEUS = "prometheus"
    OPERATOR = "operator"


def rules(
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="YAML configuration; default: prober.yaml.", show_default=False)
    ] = "",
    config_file: ConfigFile = "",
    form: Annotated[
        Format, typer.Option("--format", help="prometheus: a rule file; operator: a PrometheusRule.")
    ] = Format.PROMETHEUS,
    output: Annotated[Path | None, typer.Option(help="File to write; default: standard output.")] = None,
    compare: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if --output differs.")] = False,
    selector: Annotated[
        str, typer.Option(help="Label matchers that narrow the prober's series, such as 'job=\"a\"'; default: none.")
    ] = DEFAULT.selector,
    several_probers: Annotated[
        bool,
        typer.Option(
            "--several-probers",
            help="Several probers send to one target, as replicas or from several vantages: what most see pages, the rest warns.",
        ),
    ] = False,
    label: Annotated[list[str] | None, typer.Option(help="Label NAME=VALUE for every alert; repeatable.")] = None,
    group_label: Annotated[
        list[str] | None,
        typer.Option(
            help="Label that tells probers of different places apart, such as cluster: nothing is summed over it; repeatable."
        ),
    ] = None,
    runbook_url: Annotated[
        str, typer.Option(help="Base URL of runbook links; {instance}: where a prober is scraped.")
    ] = DEFAULT.runbook_url,
    dashboard_url: Annotated[str, typer.Option(help="Base URL of Grafana; default: no links.")] = DEFAULT.dashboard_url,
    prober_url: Annotated[
        str,
        typer.Option(help="Base URL of links to the prober's page; {instance}: where the target's prober is scraped."),
    ] = DEFAULT.prober_url,
) -> None:
    """Write rules whose alerts can all fire, but not on one bad probe; otherwise print what to change.

    They serve every SLO of every prober that a Prometheus scrapes: load them once. They change only with the features that are used.
    """
    config_file = split_file("rules", [*filter(None, [file])], config_file)[1] or "prober.yaml"
    with exit_on(ConfigError, command="rules", code=ExitCode.FAILED):
        configuration = read_config(config_file)
        uses = configuration.uses()
    problems = [
        f"{config_file}: slos.{slo.name}: {check.use.target}, workload {check.use.workload}: its alert cannot fire: "
        + check.problem
        for slo, using in uses.items()
        for check in firing_checks(slo, using)
        if check.problem
    ]
    if problems:
        fail("\n".join(problems), ExitCode.FAILED)
    with exit_on(ValueError, command="rules"):
        labels, group_labels = _labels(label or []), _group_labels(group_label or [])
    options = RuleOptions(
        selector,
        labels,
        runbook_url.rstrip("/"),
        dashboard_url.rstrip("/"),
        prober_url.rstrip("/"),
        group_labels=group_labels,
        target_labels=configuration.label_names,
        has_several_probers=several_probers,
    )
    rule_groups = groups(configuration, options)
    document = as_operator(rule_groups) if form is Format.OPERATOR else {"groups": rule_groups}
    text = HEAD + as_yaml(document)
    if output is None:
        echo(text, end="")
    elif not compare:
        with saved(text, output, "prober rules: --output"):
            pass
    elif not output.exists() or output.read_text(encoding="utf-8") != text:
        fail(f"{output} is out of date with {config_file}; write it again without --check", ExitCode.FAILED)


def _labels(pairs: list[str]) -> tuple[tuple[str, str], ...]:
    labels = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"--label {pair!r}: write NAME=VALUE, such as team=inference")
        labels.append((name, value))
    return tuple(labels)


def _group_labels(names: list[str]) -> tuple[str, ...]:
    for name in names:
        if not LABEL_NAME.fullmatch(name) or name in OWN_LABELS:
            raise ValueError(
                f"--group-label {name!r}: write the name of a label that the prober itself does not give, such as cluster"
            )
    return tuple(dict.fromkeys(names))


class _Dumper(yaml.SafeDumper):
    """YAML dumper that writes PromQL as block text, for readable diffs of rule files."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def as_yaml(document: dict[str, Any]) -> str:
    """Write a document as YAML; equal input gives equal text."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)

"""GPU panels of the engine dashboard and the rule that they read, over the page of an exporter of DCGM or AMD, as Prometheus stores it
under several jobs, beside probers that read NVML themselves and others that do not."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prober.daemon.dashboards import documents
from prober.daemon.rules import groups
from prober.exposition.alerting import RuleOptions
from tests.daemon import promtool as rules
from tests.daemon.promtool import Rules, Series, case, run_cases
from tools.dashboard_lint.rules import expressions, panels

PAGE = (Path(__file__).parent / "dcgm_exporter.prom").read_text()
AMD_PAGE = (Path(__file__).parent / "amd_exporter.prom").read_text()
PROBER = 'job="llm-slo-prober",instance="central:9742"'
EXPORTER = 'job="dcgm-exporter",instance="10.0.0.7:9400"'
LLAMA, MISTRAL = "llm/llama-0", "llm/mistral-0"
ENGINE = documents()["engine.json"]
Rename = Callable[[str], str]


def recorded(*group_labels: str) -> list[Rules]:
    """The group of the rule."""
    options = RuleOptions(group_labels=group_labels, target_labels=("team",))
    return [group for group in groups(None, options) if group["name"] == "llm-slo-gpu"]


RULES = recorded()


def honoured(labels: str) -> str:
    """Stored by a job with `honor_labels`."""
    return labels


def exported(labels: str) -> str:
    """Stored by a job without it, as is the default: the exporter's own pod takes the labels."""
    renamed = re.sub(r",(container|namespace|pod)=", r",exported_\1=", labels)
    return f'{renamed},container="exporter",namespace="gpu-operator",pod="dcgm-exporter-x5k2p"'


def without_pods(labels: str) -> str:
    """Outside of Kubernetes."""
    return re.sub(r",(container|namespace|pod)=\"[^\"]*\"", "", labels)


def of_node(labels: str) -> str:
    """Outside of Kubernetes, by a job that names the target of the node."""
    return f'{without_pods(labels)},target="llama"'


def of_node_and_pods(labels: str) -> str:
    """By a job that names a target, of pods that are targets too."""
    return f'{labels},target="llama"'


def renamed_host(labels: str) -> str:
    """Of a later release of the exporter."""
    return labels.replace("Hostname=", "hostname=")


def exporter(rename: Rename, *, cluster: str = "", page: str = PAGE) -> Series:
    """The series of the page, constant."""
    place = f',cluster="{cluster}"' if cluster else ""
    lines = re.findall(r"^(\w+)\{(.+)\} (\S+)$", page, re.MULTILINE)
    assert len(lines) > 20
    return {f"{name}{{{EXPORTER}{place},{rename(labels)}}}": f"{float(value):g}x60" for name, labels, value in lines}


def target(name: str, *, cluster: str = "") -> Series:
    place = f',cluster="{cluster}"' if cluster else ""
    return {f'llmslo_target_state{{{PROBER}{place},target="{name}",state="ready"}}': "1x60"}


def read_by_prober(name: str) -> Series:
    """A GPU of which this prober reads all but the memory bandwidth."""
    gpu = f'job="llm-slo-prober",instance="sidecar:9742",target="{name}",gpu="0"'
    return {
        f'llmslo_gpu_info{{{gpu},uuid="GPU-a0",name="NVIDIA H100 80GB HBM3"}}': "1x60",
        f"llmslo_gpu_utilization_ratio{{{gpu}}}": "0.96x60",
        f"llmslo_gpu_power_watts{{{gpu}}}": "611x60",
        f"llmslo_gpu_memory_used_bytes{{{gpu}}}": "30x60",
        f"llmslo_gpu_memory_total_bytes{{{gpu}}}": "40x60",
        f"llmslo_gpu_xid_errors_total{{{gpu}}}": "0x60",
        f'llmslo_gpu_pcie_bytes_total{{{gpu},direction="sent"}}': "0+60x60",
    }


def query(title: str, ref: str = "A") -> str:
    (expr,) = (
        target["expr"]
        for panel in panels(ENGINE)
        if panel["title"] == title
        for target in panel["targets"]
        if target["refId"] == ref
    )
    assert isinstance(expr, str)
    return expr


def of_row() -> str:
    """What the title of the row says."""
    return next(expr for place, expr in expressions(ENGINE) if place == "variable 'gpus'")


def asked(expr: str, one: str, cluster: str = "") -> str:
    """As Grafana asks for one target."""
    for name, value in (("$__rate_interval", "5m"), ("$one", one), ("$cluster", cluster)):
        expr = expr.replace(name, value)
    return re.sub(r"\$(namespace|job|workload)\b", ".*", expr)


def expects(expr: str, one: str, expected: dict[str, float], *, at: str = "30m", cluster: str = "") -> dict[str, Any]:
    """The value of each GPU."""
    return rules.expects(
        asked(expr, one, cluster), at, {f'target="{one}",gpu="{gpu}"': value for gpu, value in expected.items()}
    )


def counted(one: str, number: int | None, told: str, cluster: str = "") -> list[dict[str, Any]]:
    """The number of GPUs, and the title of the row."""
    return [
        rules.expects(asked(query("GPUs"), one, cluster), "30m", {} if number is None else {"": number}),
        rules.expects(asked(of_row(), one, cluster), "30m", {f'told="{told}"': told != "no data"}),
    ]


FIRST = "node-7/0"
OF_LLAMA: dict[tuple[str, str], dict[str, float]] = {
    ("Utilisation", "A"): {FIRST: 0.97, "node-7/1": 0.64},
    ("Memory bandwidth in use", "A"): {FIRST: 0.75},
    ("SM occupancy and tensor units", "A"): {},
    ("SM occupancy and tensor units", "B"): {FIRST: 0.25},
    ("Memory in use", "A"): {FIRST: 0.75, "node-7/1": 0.5},
    ("Power", "A"): {FIRST: 612.5, "node-7/1": 498},
    ("SM clock", "A"): {FIRST: 1.755e9, "node-7/1": 1.98e9},
    ("Temperature", "A"): {FIRST: 61, "node-7/1": 64},
    ("PCIe and NVLink", "A"): {FIRST: 3e6},
    ("PCIe and NVLink", "B"): {FIRST: 5e6},
}
NOTHING: dict[tuple[str, str], dict[str, float]] = {panel: {} for panel in OF_LLAMA}
FALLBACK = "from the DCGM exporter"
OF_PROBER: dict[tuple[str, str], dict[str, float]] = {
    ("Utilisation", "A"): {"0": 0.96},
    ("Power", "A"): {"0": 611},
    ("Memory in use", "A"): {"0": 0.75},
    ("PCIe and NVLink", "A"): {"0": 1},
}
OF_LLAMA_ON_AMD: dict[tuple[str, str], dict[str, float]] = NOTHING | {
    ("Utilisation", "A"): {"mi/0": 0.97, "mi/1": 0.64},
    ("SM occupancy and tensor units", "A"): {"mi/0": 0.25},
    ("SM occupancy and tensor units", "B"): {"mi/0": 0.5},
    ("Memory in use", "A"): {"mi/0": 0.75, "mi/1": 0.5},
    ("Power", "A"): {"mi/0": 612, "mi/1": 498},  # the second by the name of the MI200
    ("SM clock", "A"): {"mi/0": 2.1e9, "mi/1": 1.4e9},  # of several on one GPU the highest
    ("Temperature", "A"): {"mi/0": 61, "mi/1": 64},
}
AMD_PREFIXED = re.sub(r"(?m)^gpu_", "amd_gpu_", AMD_PAGE)
FROM_AMD = "from AMD's exporter"
SCENES: dict[str, tuple[Series, str, dict[tuple[str, str], dict[str, float]], int | None, str]] = {
    "labels exported": (exporter(exported) | target(LLAMA), LLAMA, OF_LLAMA, 2, FALLBACK),
    "AMD": (exporter(exported, page=AMD_PAGE) | target(LLAMA), LLAMA, OF_LLAMA_ON_AMD, 2, FROM_AMD),
    "AMD with a prefix": (exporter(honoured, page=AMD_PREFIXED) | target(LLAMA), LLAMA, OF_LLAMA_ON_AMD, 2, FROM_AMD),
    "AMD, read by the prober too": (
        exporter(exported, page=AMD_PAGE) | target(LLAMA) | read_by_prober(LLAMA),
        LLAMA,
        OF_LLAMA_ON_AMD | OF_PROBER,
        1,
        "read by the prober",
    ),
    "labels honoured": (exporter(honoured) | target(LLAMA), LLAMA, OF_LLAMA, 2, FALLBACK),
    "host renamed": (exporter(renamed_host) | target(LLAMA), LLAMA, OF_LLAMA, 2, FALLBACK),
    "pod of a service": (
        exporter(exported) | target("llm/llama/llama-0"),
        "llm/llama/llama-0",
        OF_LLAMA,
        2,
        FALLBACK,
    ),
    "target named by the job": (
        exporter(of_node) | target("llama"),
        "llama",
        OF_LLAMA | {("Utilisation", "A"): {FIRST: 0.97, "node-7/1": 0.64, "node-7/2": 0.03}}
        | {("Power", "A"): {FIRST: 612.5, "node-7/1": 498, "node-7/2": 71}}
        | {("SM clock", "A"): {FIRST: 1.755e9, "node-7/1": 1.98e9, "node-7/2": 1.2e9}}
        | {("Temperature", "A"): {FIRST: 61, "node-7/1": 64, "node-7/2": 33}},
        3,
        FALLBACK,
    ),
    "its neighbour on the node": (
        exporter(exported) | target(LLAMA) | target(MISTRAL) | read_by_prober(LLAMA),
        MISTRAL,
        NOTHING
        | {("Utilisation", "A"): {"node-7/2": 0.03}, ("Power", "A"): {"node-7/2": 71}}
        | {("SM clock", "A"): {"node-7/2": 1.2e9}, ("Temperature", "A"): {"node-7/2": 33}},
        1,
        FALLBACK,
    ),
    "read by the prober too": (
        exporter(exported) | target(LLAMA) | read_by_prober(LLAMA),
        LLAMA,
        OF_LLAMA | OF_PROBER,
        1,
        "read by the prober",
    ),
    "read by the prober alone": (
        target(LLAMA) | read_by_prober(LLAMA),
        LLAMA,
        NOTHING | OF_PROBER,
        1,
        "read by the prober",
    ),
    "named for another target": (exporter(of_node_and_pods) | target(LLAMA), LLAMA, NOTHING, None, "no data"),
    "another name": (exporter(exported) | target("llama"), "llama", NOTHING, None, "no data"),
    "the exporter's own pod": (
        exporter(exported) | target("gpu-operator/dcgm-exporter-x5k2p"),
        "gpu-operator/dcgm-exporter-x5k2p",
        NOTHING,
        None,
        "no data",
    ),
    "nodes without pods": (exporter(without_pods) | target(LLAMA), LLAMA, NOTHING, None, "no data"),
}  # fmt: skip


@pytest.mark.parametrize("release", ["2", "3"])
def test_panels_show_the_exporters_figures_of_the_target_where_the_prober_reads_none(
    release: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """By panel; what the prober reads itself wins, so no GPU is shown or counted twice."""
    promtool = request.getfixturevalue("promtool" if release == "2" else "newer_promtool")
    cases = [
        case(
            series,
            name=name,
            promql_expr_test=[
                *(expects(query(*panel), one, expected) for panel, expected in figures.items()),
                *counted(one, number, told),
            ],
        )
        for name, (series, one, figures, number, told) in SCENES.items()
    ]
    run_cases(promtool, tmp_path, RULES, cases)


def test_exporters_of_another_cluster_are_not_shown(promtool: Path, tmp_path: Path) -> None:
    """Pods of two clusters may have one name."""
    series = exporter(exported, cluster="delhi") | target(LLAMA, cluster="delhi") | target(LLAMA, cluster="berlin")
    utilisation = query("Utilisation")
    tests = [
        expects(utilisation, LLAMA, OF_LLAMA["Utilisation", "A"], cluster="delhi"),
        expects(utilisation, LLAMA, {}, cluster="berlin"),
        *counted(LLAMA, 2, FALLBACK, "delhi"),
        *counted(LLAMA, None, "no data", "berlin"),
    ]
    run_cases(promtool, tmp_path, RULES, [case(series, promql_expr_test=tests)])


def test_labels_of_places_tell_exporters_apart_but_the_namespace_of_the_prober_does_not(
    promtool: Path, tmp_path: Path
) -> None:
    """`--group-label=region --group-label=namespace`: an exporter has the region of its pods' prober, and another namespace."""
    of_prober = target(LLAMA) | target(MISTRAL)
    series = {f'{name[:-1]},region="asia",namespace="slo",team="a"}}': values for name, values in of_prober.items()}
    series |= {f'{name[:-1]},region="asia"}}': values for name, values in exporter(exported).items()}
    hotter = {name: "99x60" for name in exporter(exported) if name.startswith("DCGM_FI_DEV_GPU_TEMP")}
    series |= {f'{name[:-1]},region="europe"}}': values for name, values in hotter.items()}
    tests = [expects(query("Temperature"), LLAMA, OF_LLAMA["Temperature", "A"])]
    run_cases(promtool, tmp_path, recorded("region", "namespace"), [case(series, promql_expr_test=tests)])


def test_two_targets_of_one_pod_keep_no_other_from_its_gpus(promtool: Path, tmp_path: Path) -> None:
    """Such as the pod of two services, which two probers discovered. One of them has the GPUs."""
    both = target("llm/a/llama-0") | target("llm/b/llama-0")
    series = exporter(exported) | both | target(MISTRAL)
    of_both = 'gpu:llmslo_exporter:max{target=~"llm/./llama-0",metric="DCGM_FI_DEV_GPU_TEMP"}'
    tests = [
        rules.expects(f"count(count by (target) ({of_both}))", "30m", {"": 1}),
        rules.expects(f"sum({of_both})", "30m", {"": 61 + 64}),
        expects(query("Temperature"), MISTRAL, {"node-7/2": 33}),
    ]
    run_cases(promtool, tmp_path, RULES, [case(series, promql_expr_test=tests)])


def test_partitions_are_shown_apart_and_their_gpu_is_counted_once(promtool: Path, tmp_path: Path) -> None:
    """The exporter has no utilisation of a partition, but its share of active cycles."""
    of_gpu = f'{EXPORTER},gpu="0",UUID="GPU-a0",Hostname="node-7",namespace="llm",pod="llama-0"'
    series = target(LLAMA) | {
        f'{name}{{{of_gpu},GPU_I_PROFILE="3g.40gb",GPU_I_ID="{partition}"}}': f"{value}x60"
        for partition, share in (("1", 0.5), ("2", 0.25))
        for name, value in (("DCGM_FI_PROF_GR_ENGINE_ACTIVE", share), ("DCGM_FI_DEV_GPU_TEMP", 50))
    }
    tests = [
        expects(query("Utilisation"), LLAMA, {"node-7/0:1": 0.5, "node-7/0:2": 0.25}),
        *counted(LLAMA, 1, FALLBACK),
    ]
    run_cases(promtool, tmp_path, RULES, [case(series, promql_expr_test=tests)])


def test_a_new_xid_is_an_error_and_an_old_one_is_none(promtool: Path, tmp_path: Path) -> None:
    """The exporter keeps the last XID as value and in its labels, so each is another series."""
    of_pod = f'{EXPORTER},Hostname="node-7",namespace="llm",pod="llama-0"'

    def xid(gpu: str, code: int, values: str) -> Series:
        return {
            f'DCGM_FI_DEV_XID_ERRORS{{{of_pod},gpu="{gpu}",UUID="GPU-a{gpu}",err_code="{code}",err_msg="x"}}': values
        }

    series = {
        **target(LLAMA),
        **xid("0", 0, "0x19 stale"),
        **xid("0", 79, "_x20 79x19 stale"),
        **xid("0", 31, "_x40 31x20"),
        **xid("1", 0, "0x60"),
        **xid("2", 48, "48x60"),
    }
    errors = query("Errors", "B")
    tests = [
        expects(errors, LLAMA, {FIRST: 0, "node-7/1": 0}, at="18m"),
        expects(errors, LLAMA, {FIRST: 1, "node-7/1": 0}, at="22m"),
        expects(errors, LLAMA, {"node-7/1": 0}, at="35m"),
        expects(errors, LLAMA, {FIRST: 1, "node-7/1": 0}, at="42m"),
    ]
    run_cases(promtool, tmp_path, RULES, [case(series, promql_expr_test=tests)])


def test_the_scenes_have_every_gpu_panel_that_can_fall_back() -> None:
    """So that none is added without a scene."""
    falling = {
        (panel["title"], target["refId"])
        for panel in panels(ENGINE)
        for target in panel["targets"]
        if "DCGM_FI" in json.dumps(target)
    }
    of_amd = {key for key, figures in OF_LLAMA_ON_AMD.items() if figures}
    assert {
        (panel["title"], target["refId"])
        for panel in panels(ENGINE)
        for target in panel["targets"]
        if '=\\"gpu_' in json.dumps(target)
    } == of_amd
    assert falling == {*OF_LLAMA, ("Errors", "B")}

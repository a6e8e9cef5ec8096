"""Recording rules and alerts of the SLOs. They use the exported objectives, so that one set serves every SLO of every prober.

For the events of the probes, and for all requests of the engine (`metrics.slos`), the rules record the share of bad events in
seven windows, each under its own name. Events are summed over all replicas of the prober before the division: no mean of
ratios. Two alerts compare the shares of two windows with a multiple of the error budget (`prober.measure.objective`). A second copy of
the rules in a Prometheus changes no figure.

No rule reads alerts: Alertmanager decides which of two alerts about the same trouble is sent (deploy/alertmanager).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prober.exposition.alerting import HAPPENING, Alert, Link, Rule, RuleOptions, happening
from prober.exposition.dashboards.queries import BAD_RATIO, BUDGET_RATIO, RECORDED, of_traffic
from prober.features.slo.firing import CHANCE_Z, needed_events
from prober.measure.objective import PAIRS, Pair, promql

ALLOWING_ONE = f"{RECORDED}_events:per_bad"  # number of events whose budget is one bad probe
MAX_COUNTED_S = 3_600  # longer windows are sums of tiles (events of a few minutes): every sample of days costs too much
# A burn of six times the budget is over after this multiple of ALLOWING_ONE without a bad event: 0.94 ** 50 is 5%.
ENDED = 0.5
MIN_FLIPS = 4  # of "fails every probe" in 15 minutes; an outage has two
PAGING, TICKETS = ([pair for pair in PAIRS if pair.severity == severity] for severity in ("critical", "warning"))
# LLMTargetFailing reports failures of the last minutes, unless it flaps because the target answers now and then.
UNLESS_FAILING = (
    'unless on (target) (avg by (target) (max_over_time(llmslo_target_state{state="failing"}[5m])) > 0.5\n'
    f'  unless max by (target) (changes(llmslo_target_state{{state="failing"}}[15m])) >= {MIN_FLIPS})\n'
)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Kind of events for a set of rules: probes, or all requests of an engine.

    exported: prefix of the counters; by: their labels; alert: prefix of the alerts
    """

    exported: str
    by: str
    alert: str
    is_traffic: bool

    def recorded(self, name: str) -> str:
        """Name of a recorded series of these events."""
        return of_traffic(name) if self.is_traffic else name

    def ratio(self, window_s: int) -> str:
        """Name of the recorded share of bad events in a window."""
        return self.recorded(f"{BAD_RATIO}{promql(window_s)}")

    def increase(self, name: str, window: str, matchers: str = "") -> str:
        """PromQL: number of events or bad events in a window. name: `events` or `bad_events`"""
        return f"sum by ({self.by}) (increase({self.exported}_{name}_total{matchers}[{window}]))"


PROBES = _Kind("llmslo_slo", "target, workload, slo", "LLMErrorBudgetBurn", is_traffic=False)
TRAFFIC = _Kind("llmslo_slo_traffic", "target, slo", "LLMErrorBudgetBurnOfTraffic", is_traffic=True)


def groups(options: RuleOptions, *, has_traffic: bool) -> list[Rule]:
    """Rule groups in the format of rule files: two for the probes, and two more if SLOs judge all requests of an engine."""
    return [group for kind in (PROBES, TRAFFIC)[: 1 + has_traffic] for group in _groups(kind, options)]


def _groups(kind: _Kind, options: RuleOptions) -> Iterator[Rule]:
    """Two groups: a frequent one, and one for long windows, which are expensive (`bench.rule_cost`) but can wait."""
    windows = sorted({window_s for pair in PAIRS for window_s in (pair.short_s, pair.long_s)})
    tile = options.slow
    tiles = {
        kind.recorded(f"{RECORDED}_{name}:increase{tile}"): kind.increase(name, tile)
        for name in ("events", "bad_events")
    }
    records = list(_declared(kind)), [{"record": name, "expr": f"{expr}\n"} for name, expr in tiles.items()]
    for window_s in windows:
        records[window_s > MAX_COUNTED_S].append(_ratio(kind, window_s, tile))
    pages = [_page(kind, options)]
    ticket = _burn(kind, TICKETS, _burning(kind, TICKETS, tile), "20m" if kind.is_traffic else "15m")
    if not kind.is_traffic:
        pages += [_no_data(), *([_from_vantage()] if options.has_several_probers else [])]
    name = "llm-slo-traffic" if kind.is_traffic else "llm-slo-probes"
    yield {"name": name, "rules": [*records[0], *(alert.as_rule(options) for alert in pages)]}
    yield {"name": f"{name}-slow", "interval": tile, "rules": [*records[1], ticket.as_rule(options)]}


def _declared(kind: _Kind) -> Iterator[Rule]:
    """Rules for the budget as a share of events, and for the number of events that allows one bad probe.

    A declaration counts for 5 minutes after its prober's last scrape, so that a restart resolves no alert. If it
    disappears while its prober is scraped, it ends at once.
    """
    objective, budget = f"{kind.exported}_objective_ratio", kind.recorded(BUDGET_RATIO)
    alive = f"{objective} or (last_over_time({objective}[5m]) unless on (job, instance) up == 1)"
    yield {"record": budget, "expr": f"1 - max by ({kind.by}) ({alive})\n"}
    of_a_probe = f"max by ({kind.by}) ({kind.exported}_events_per_probe)"
    yield {"record": kind.recorded(ALLOWING_ONE), "expr": f"({of_a_probe} or {budget} ^ 0) / {budget}\n"}


def _ratio(kind: _Kind, window_s: int, tile: str) -> Rule:
    """Rule for the share of bad events in a window. For the long window of a pair it needs enough events."""
    window = promql(window_s)
    needed = next((needed_events(pair) for pair in PAIRS if pair.long_s == window_s), 0.0)
    least = f"{needed:.3g} * {kind.recorded(ALLOWING_ONE)}" if needed else "0"
    # The subquery's steps count a tile once, even if two copies of the rules record it.
    bad, events = (
        kind.increase(name, window)
        if window_s <= MAX_COUNTED_S
        else f"sum_over_time({kind.recorded(f'{RECORDED}_{name}:increase{tile}')}[{window}:{tile}])"
        for name in ("bad_events", "events")
    )
    return {"record": kind.ratio(window_s), "expr": f"{bad}\n/\n({events} > {least})\n"}


def _burning(kind: _Kind, pairs: Sequence[Pair], tile: str = "") -> str:
    """PromQL: latest share of bad events where both windows of a pair burn the budget faster than the pair's rate.

    tile: for a ticket, whose burn rates are near the budget: the long window must exceed them by more than chance
    """

    def above(pair: Pair) -> str:
        burn, window = f"{pair.burn} * {kind.recorded(BUDGET_RATIO)}", promql(pair.long_s)
        events = f"sum_over_time({kind.recorded(f'{RECORDED}_events:increase{tile}')}[{window}:{tile}])"
        chance = f" * (1 + {CHANCE_Z} * sqrt({kind.recorded(ALLOWING_ONE)} / ({pair.burn} * {events})))" if tile else ""
        return f"{kind.ratio(pair.long_s)} > {burn}{chance} and {kind.ratio(pair.short_s)} > {burn}"

    both = "\n  or ".join(map(above, pairs))
    return f"({' or '.join(kind.ratio(pair.short_s) for pair in pairs)})\nand ({both})\n"


def _page(kind: _Kind, options: RuleOptions) -> Alert:
    short_s = PAGING[0].short_s
    enough = f"{kind.increase('events', promql(short_s))} > {ENDED} * {kind.recorded(ALLOWING_ONE)}"
    expr = f"{_burning(kind, PAGING)}unless ({kind.ratio(short_s)} == 0 and {enough})\n{UNLESS_FAILING}"
    if options.has_several_probers and not kind.is_traffic:
        expr += f"unless ({_seen_from()} <= 0.5)\n"
    # The alert on all requests fires later than that on probes, which inhibits it if both see the trouble.
    return _burn(kind, PAGING, expr, "5m" if kind.is_traffic else "3m")


def _burn(kind: _Kind, pairs: Sequence[Pair], expr: str, wait_for: str) -> Alert:
    labels = kind.by.split(", ")
    chosen = ",".join(f"{label}=%[{place}]q" for place, label in enumerate(labels, 1))
    bad, events = (f"sum(increase({kind.exported}_{name}_total{{{chosen}}}[5m]))" for name in ("bad_events", "events"))
    last = f"Bad is the share of the last {promql(pairs[0].short_s)}.{happening()}"
    if pairs is PAGING:
        counts = f'label_replace({bad}, "of", " of ", "", "") or {events} or {HAPPENING}'
        count = '{{ .Value | printf `%.0f` }}{{ or .Labels.of " events bad." }}'
        last = f"Last 5 min: {happening(counts, *labels, otherwise=count, nothing='no events.')}"
    windows = " or ".join(f"{promql(pair.long_s)} and {promql(pair.short_s)}" for pair in pairs)
    of = "all requests" if kind.is_traffic else "workload {{ $labels.workload }}"
    return Alert(
        kind.alert,
        pairs[0].severity,
        expr,
        wait_for,
        f"{{{{ $labels.target }}}}: {{{{ $value | humanizePercentage }}}} of the events of {of} are bad for SLO {{{{ $labels.slo }}}}",
        f"{last} Burns over {windows}.",
        (("source", "traffic"),) if kind.is_traffic else (),
        link=Link("slo", tuple(labels), promql(3 * pairs[0].long_s)),
    )


def _seen_from() -> str:
    """PromQL: share of places (vantages) that see a burn; in a place with several probers, most of them must see it."""
    by, slow = PROBES.by, PAGING[-1]
    bad, events = (f"increase(llmslo_slo_{name}_total[{promql(slow.short_s)}])" for name in ("bad_events", "events"))
    burns = f"{bad} / ({events} > 0) > bool on ({by}) group_left () ({slow.burn} * {BUDGET_RATIO})"
    return f"avg by ({by}) (avg by ({by}, vantage) ({burns}) > bool 0.5)"


def _from_vantage() -> Alert:
    """Warning if a vantage sees a burn without a page: neither all vantages together nor most of them see it."""
    pair = PAGING[0]
    kind = _Kind("llmslo_slo", f"{PROBES.by}, vantage", "", is_traffic=False)
    on, least = f"on ({PROBES.by}) group_left ()", f"{needed_events(pair):.3g} * {ALLOWING_ONE}"
    bad, events = (
        [kind.increase(name, promql(window_s), '{vantage!=""}') for window_s in (pair.long_s, pair.short_s)]
        for name in ("bad_events", "events")
    )
    return Alert(
        "LLMErrorBudgetBurnFromVantage",
        "warning",
        f"{bad[1]} / ({events[1]} > 0) > {on} ({pair.burn} * {BUDGET_RATIO})\n"
        f"and\n{bad[0]} / ({events[0]} > {on} ({least})) > {on} ({pair.burn} * {BUDGET_RATIO})\n"
        f"unless on ({PROBES.by})\n"
        f"({PROBES.ratio(pair.short_s)} > {pair.burn} * {BUDGET_RATIO} and {_seen_from()} > 0.5)\n",
        "5m",  # an outage is a page, but not noticed everywhere at once
        "{{ $labels.target }}: {{ $value | humanizePercentage }} of the events of workload {{ $labels.workload }} are bad for SLO "
        "{{ $labels.slo }} from vantage {{ $labels.vantage }}",
        "All vantages together do not page: look at the way from this one first.",
        link=Link("target", ("target", "workload"), promql(3 * pair.long_s)),
    )


def _no_data() -> Alert:
    return Alert(
        "LLMSLONoData",
        "warning",
        f"min by ({PROBES.by}) (llmslo_slo_silent) == 1\n"
        # An engine that has never answered and refuses connections is starting, up to a limit; then LLMTargetFailing fires.
        "unless on (target) (llmslo_target_starting_until_timestamp_seconds > time())\n",
        "5m",
        "SLO {{ $labels.slo }} of {{ $labels.target }} has no data",
        "No event of workload {{ $labels.workload }} while ten probes were due: it is neither met nor missed.",
        link=Link("slo", ("target", "workload", "slo")),
    )

"""Recording rules and alerts of the SLOs, generated from the configured SLOs that are also counted at run time.

Events are summed over all replicas of the prober before they are divided: no mean of ratios. Without events there is no ratio, so an
SLO without data is neither met nor missed. Burn-rate windows: prober.measure.objective.

One problem raises one alert. The pairs of windows of one severity are alternatives of one alert, whose labels do not name the pair. A
page silences the tickets of its SLO, and LLMTargetFailing silences both, for events that they have in common. Every alert is joined
with the declaration: a target or SLO that is no longer declared must not alert.

An SLO of `metrics.slos` has the same rules over all requests of the engine, by its own histogram, in series without `workload`.
Of probes and traffic that burn the same budget the first one pages.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

from prober.exposition.alerting import (
    Alert,
    Link,
    Rule,
    RuleOptions,
    Severity,
    firing,
    top_failure_template,
    what_happens_template,
)
from prober.exposition.dashboards.queries import BUDGET_LEFT, BURN_RATE, DECLARED, RECORDED, SLO_STATE, of_traffic
from prober.features.slo import messages, traffic
from prober.features.slo.compliance import compliance_queries, percentile_events, silence_s
from prober.features.slo.firing import chance, guard, percentile_window
from prober.measure.objective import JudgedStream, Pair, Slo, format_percent, pairs, promql

BURN = "LLMErrorBudgetBurn"
BURN_OF_TRAFFIC = "LLMErrorBudgetBurnOfTraffic"
FAILING = "LLMTargetFailing"
GROUP_LABELS = "target, workload, slo"
TRAFFIC_LABELS = "target, slo"
MIN_FLIPS = 4  # changes of "fails every probe" in 15 minutes; an outage has two
PAGES = ',severity="critical"'
EVERY_VANTAGE = ',vantage!=""'  # no series of probers without one
TICKET_WAIT = "15m"  # what becomes a page within this time opens no ticket
SIGNAL_NAMES = {
    "ttft": "TTFT",
    "ttft_answer": "TTFT of the answer",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2e": "E2E latency",
    "success": "success",
    "quality": "correct answers",
}


def groups(
    uses: Mapping[Slo, Sequence[JudgedStream]], options: RuleOptions, of_all_requests: Collection[Slo] = ()
) -> list[Rule]:
    """Two rule groups per SLO (critical alerts, tickets), two more if it has rules on all requests; in the format of rule files.

    They are separate as they cost much to evaluate, which `bench.rule_cost` measures.
    """
    rule_groups = list[Rule]()
    for slo, streams in uses.items():
        rule_groups += _SloRules(slo, streams, options, slo in of_all_requests).groups()
    for slo in of_all_requests:
        rule_groups += _TrafficRules(slo, [traffic.STREAM], options).groups()
    return rule_groups


def stale_alert(selector: str) -> Alert:
    """Alert if an SLO that a prober declares has no rules, or rules with another objective."""
    declared = f"max by ({GROUP_LABELS}) (llmslo_slo_objective_ratio{{{selector}}})"
    of_all = f"max by ({TRAFFIC_LABELS}) (llmslo_slo_traffic_objective_ratio{{{selector}}})"
    rules_of_all = of_traffic(DECLARED)
    return Alert(
        "LLMRulesStale",
        "warning",
        f"{declared} unless {DECLARED}\nor\n{declared} != {DECLARED}\n"
        f"or\n({of_all} unless on ({TRAFFIC_LABELS}) {rules_of_all})\n"
        f"or\n({of_all} != on ({TRAFFIC_LABELS}) {rules_of_all})\n",
        "15m",  # a prober reads its configuration again before the rules written from it are loaded
        "The rules for SLO {{ $labels.slo }} of {{ $labels.target }} are missing or out of date",
        "The prober judges {{ $value | humanizePercentage }} of the events of "
        "{{ with $labels.workload }}workload {{ . }}{{ else }}all requests{{ end }}; Prometheus has no rules for this "
        "SLO, or rules for another objective. Its budget is not watched as declared. Write them again with `prober rules`.",
        link=Link("slo", ("target", "workload", "slo")),
    )


@dataclass(frozen=True, slots=True)
class _SloRules:
    """The rules of one SLO over its probes.

    uses: the streams that it judges
    has_traffic: whether all requests are judged by it too
    by: labels of its recorded series
    """

    by: ClassVar[str] = GROUP_LABELS
    slo: Slo
    uses: Sequence[JudgedStream]
    options: RuleOptions
    has_traffic: bool = False

    def groups(self) -> list[Rule]:
        paging, waiting = (
            [pair for pair in pairs(self.slo.window_s) if pair.severity == severity]
            for severity in ("critical", "warning")
        )
        soon = [self._declared(), *self._burn_rates(paging, self._increase), self._state()]
        # Events of a few minutes, every few minutes: their sums are those of a long window, for a tenth of the samples.
        tile = self.options.slow
        later = [
            self._record(f"{RECORDED}_{kind}:tile{tile}", self._increase(kind, self.options.slow_s))
            for kind in ("events", "bad_events")
        ]
        later += [*self._budget(), *self._burn_rates(waiting, self._tile_sum)]
        soon += [alert.as_rule(self.options) for alert in self._pages(paging)]
        later += [alert.as_rule(self.options) for alert in self._tickets(waiting)]
        name = self._group_name()
        return [
            {"name": name, "rules": soon},
            {"name": f"{name}-slow", "interval": self.options.slow, "rules": later},
        ]

    def _group_name(self) -> str:
        return f"llm-slo-{self.slo.name}"

    def _pages(self, chosen: Sequence[Pair]) -> Iterator[Alert]:
        """Alerts for the rule group that is evaluated often."""
        yield self._page(chosen)
        yield self._vantage(chosen)
        yield self._no_data()

    def _tickets(self, chosen: Sequence[Pair]) -> Iterator[Alert]:
        """Alerts for the rule group that is evaluated seldom."""
        # A page suppresses the ticket as long as the short window reaches back to it.
        burning = [
            f"{self._burns(pair)}\n{self._unless_told(pair.short_s, PAGES)}{self._unless_of_traffic(pair.short_s)}"
            for pair in chosen
        ]
        yield self._burn("warning", TICKET_WAIT, chosen, burning)
        if percentile := percentile_window(self.slo, self.uses):
            yield self._percentile(*percentile)

    def _record(self, name: str, expr: str, **labels: str) -> Rule:
        return {"record": name, "expr": f"{expr}\n", "labels": {"slo": self.slo.name, **labels}}

    def _declared(self) -> Rule:
        """Rule that records the objective of these rules for each target that declares the SLO; LLMRulesStale compares both.

        A declaration counts for 5 minutes after the last scrape of its prober, so that a restart resolves no alert. It ends at once if
        it disappears while its prober is scraped.
        """
        objective, alive = self._exported("objective_ratio"), f"up{{{self.options.selector}}} == 1"
        declared = f"{objective} or (last_over_time({objective}[5m]) unless on (instance) {alive})"
        return self._record(DECLARED, f"{_number(self.slo.objective)} * (max by ({self.by}) ({declared}) > bool 0)")

    def _burn_rates(self, chosen: Sequence[Pair], count: Callable[[str, float], str]) -> Iterator[Rule]:
        """Rules for the lower of the burn rates of both windows, if the long window has enough events.

        count: returns PromQL for the number of events of a kind in a window
        """
        for pair in chosen:
            long, short = (
                f"({count('bad_events', window_s)}{self._each()}\n/\n({count('events', window_s)}{self._each()} {enough}))"
                for window_s, enough in ((pair.long_s, f">= {guard(self.slo, pair, self.uses)}"), (pair.short_s, "> 0"))
            )
            lower = f"(\n{short}\n- clamp_min({short}\n- {long}, 0)) / {_number(self.slo.error_budget_ratio)}"
            yield self._record(BURN_RATE, lower, long=promql(pair.long_s), short=promql(pair.short_s))

    def _budget(self) -> Iterator[Rule]:
        """Rules for the events of the SLO's window and for the remaining budget, of declared SLOs only."""
        for kind in ("events", "bad_events"):
            count = self._tile_sum(kind, self.slo.window_s)
            yield self._record(f"{RECORDED}_{kind}:window", f"{count}\nand\n{self._recorded(DECLARED)}")
        events, bad = (self._recorded(f"{RECORDED}_{kind}:window") for kind in ("events", "bad_events"))
        share = f"{bad} / ({events} > 0)"
        yield self._record(BUDGET_LEFT, f"1 - {share} / {_number(self.slo.error_budget_ratio)}")

    def _state(self) -> Rule:
        """Rule for the compliance with the SLO: exactly one of its states is 1.

        While llmslo_trusted is 0 no latency SLO is met. With too few events, or none for a while, the state is no_data.
        """
        counted = f"increase({self._exported('events_total')}[{promql(silence_s(self.uses))}])"
        trusted = (
            f"{counted} * on (instance, target) group_left () "
            f"max by (instance, target) (llmslo_trusted{{{self.options.selector}}})"
        )
        has_events, has_trusted_events = (f"sum by ({GROUP_LABELS}) ({part}) > 0" for part in (counted, trusted))
        return self._state_if(has_events, has_trusted_events if self.slo.threshold_s is not None else "")

    def _state_if(self, has_events: str, trusted: str = "") -> Rule:
        """Rule for the compliance. has_events: PromQL, else it is no_data; trusted: PromQL, without which the SLO is not met"""
        events, bad = (self._recorded(f"{RECORDED}_{kind}:window") + self._each() for kind in ("events", "bad_events"))
        queries = compliance_queries(self.slo, self.uses, events, bad)
        if trusted:
            queries["met"] = f"({queries['met']})\nand on ({self.by})\n({trusted})"
        words = "\nor\n".join(f'label_replace({query}, "state", "{state}", "", "")' for state, query in queries.items())
        declared = self._recorded(DECLARED)
        no_data = f'label_replace({declared}, "state", "no_data", "", "")'
        judged = f"({words})\nand on ({self.by})\n({has_events})\nand on ({self.by})\n{declared}"
        return self._record(SLO_STATE, f"count by ({self.by}, state) (\n{judged}\nor on ({self.by})\n{no_data}\n)")

    def _page(self, chosen: Sequence[Pair]) -> Alert:
        """Critical alert on a burn. It needs more than half of the vantages, if there are any, and more than a single prober."""
        burning = []
        for pair in chosen:
            share = _number(pair.burn * self.slo.error_budget_ratio)
            bad, events = (self._from_vantages(kind, pair.short_s) for kind in ("bad_events", "events"))
            burning.append(
                f"{self._burns(pair)}\nunless on (target, workload)\n"
                f"(avg by (target, workload) ({bad} / ({events} > 0) > bool {share}) <= 0.5)\n"
                f"unless on (target, workload)\n({self._only_one_prober(pair, share)})\n{self._unless_failing(pair.short_s)}"
                f"{self._unless_of_traffic(pair.short_s, PAGES)}"
            )
        # Of a target that fails every probe, LLMTargetFailing comes first, and is the only page.
        return self._burn("critical", "3m", chosen, burning)

    def _only_one_prober(self, pair: Pair, share: str) -> str:
        """PromQL condition: one prober fails every probe while others do not, and the events of the others do not burn the budget."""
        window = promql(pair.short_s)
        odd = f'max by (target, instance) (max_over_time(ALERTS{{alertname="LLMProbersDisagree"}}[{window}]))'
        bad, events = (
            f"sum by (target, workload) (increase({self._exported(f'{kind}_total')}[{window}]) "
            f"unless on (target, instance) {odd})"
            for kind in ("bad_events", "events")
        )
        return f"{bad}\n/\n({events} > 0) <= {share}\nand on (target) {odd}"

    def _burn(self, severity: Severity, wait_for: str, chosen: Sequence[Pair], burning: Sequence[str]) -> Alert:
        """The alert on a burn over any of these pairs of windows. burning: PromQL condition of each pair"""
        any_pair, selector = "\nor\n".join(burning), self.options.selector
        fired = messages.query(f"topk(1, {' or '.join(self._burns(pair, messages.matchers()) for pair in chosen)})")
        return Alert(
            BURN,
            severity,
            f"max by ({GROUP_LABELS}) (\n{any_pair}\n)\nand\n{self._recorded(DECLARED)}\n",
            wait_for,
            f"{{{{ $labels.target }}}} burns the error budget of SLO {self.slo.name} "
            "{{ printf `%.1f` $value }} times as fast as it allows",
            f"{{{{ range {fired} }}}}{{{{ $long := .Labels.long }}}}{{{{ $short := .Labels.short }}}}"
            f"{messages.bad_share(self._exported)} ({self._judged()}).{{{{ end }}}}"
            f"{messages.budget(self.slo, self._recorded, self._exported, promql(chosen[0].short_s))}"
            f"{messages.latency(self.slo, selector)}{top_failure_template(selector, 'workload')}{messages.engine(selector)}"
            f"{what_happens_template(selector)}",
            (("slo", self.slo.name),),
            link=Link("slo", ("target", "workload", "slo"), promql(3 * chosen[0].long_s)),
        )

    def _burns(self, pair: Pair, matchers: str = "") -> str:
        """PromQL that has a value where the budget burns in both windows of the pair.

        Critical burn rates are far above the budget. Burn rates of tickets are near it, and must exceed it by more than chance.
        """
        needed = _number(pair.burn)
        if pair.severity == "warning":
            more = chance(self.slo, pair, self.uses) / float(self.slo.error_budget_ratio)
            count = self._tile_sum("events", pair.long_s, matchers)
            needed = f"on ({self.by}) group_left () ({needed} + {more:.4g} / sqrt({count}{self._each()}))"
        of_pair = f',long="{promql(pair.long_s)}"{matchers}'
        return f"{self._recorded(BURN_RATE, of_pair)} > {needed}"

    def _vantage(self, chosen: Sequence[Pair]) -> Alert:
        labels = (*messages.OF_STREAM, "vantage")
        any_pair = "\nor\n".join(self._burns_from(pair) for pair in chosen)
        windows, shorter = (
            f'{{{{ $long {sign} "{promql(pair.long_s)}" }}}}{{{{ $short {sign} "{promql(pair.short_s)}" }}}}'
            for pair, sign in ((chosen[-1], ":="), (chosen[0], "="))
        )
        shorter_burns = messages.query(self._burns_from(chosen[0], messages.matchers(labels)), labels=labels)
        windows += f"{{{{ if {shorter_burns} }}}}{shorter}{{{{ end }}}}"
        return Alert(
            "LLMErrorBudgetBurnFromVantage",
            "warning",
            f"(\n{any_pair}\n)\nand on ({GROUP_LABELS})\n{self._recorded(DECLARED)}\n"
            f"{self._unless_told(chosen[0].short_s, PAGES)}\n",
            "5m",  # an outage is not noticed at the same time everywhere, and is a page
            f"{{{{ $labels.target }}}} burns the error budget of SLO {self.slo.name} too fast from vantage {{{{ $labels.vantage }}}}",
            f"By what this vantage recorded {windows}{messages.bad_share(self._exported, labels)} ({self._judged()}). "
            "All vantages together do not page: look at the way from this one first.",
            (("slo", self.slo.name),),
            link=Link("target", ("target", "workload"), promql(3 * chosen[0].long_s)),
        )

    def _burns_from(self, pair: Pair, matchers: str = EVERY_VANTAGE) -> str:
        """PromQL that has a value where a vantage sees the budget burn in both windows of the pair."""
        share, least = _number(pair.burn * self.slo.error_budget_ratio), guard(self.slo, pair, self.uses)
        long, short = (
            f"{self._from_vantages('bad_events', window_s, matchers)}\n/\n"
            f"({self._from_vantages('events', window_s, matchers)} {enough}) > {share}"
            for window_s, enough in ((pair.long_s, f">= {least}"), (pair.short_s, "> 0"))
        )
        return f"{long}\nand\n{short}"

    def _percentile(self, window_s: int, least: int) -> Alert:
        events, bad = (self._tile_sum(kind, window_s) for kind in ("events", "bad_events"))
        return Alert(
            "LLMPercentileSLOBreach",
            "warning",
            f"{bad} / {events} > {_number(self.slo.error_budget_ratio)}\nand\n{events} >= {least}\n"
            f"and\n{self._recorded(DECLARED)}\n{self._unless_told(window_s)}{self._unless_of_traffic(window_s)}\n",
            TICKET_WAIT,
            f"{{{{ $labels.target }}}} misses the percentile of SLO {self.slo.name}",
            f'{{{{ $window := "{promql(window_s)}" }}}}{{{{ $value | humanizePercentage }}}} of the events of workload '
            f"{{{{ $labels.workload }}}} in the last {messages.data_window(self._exported, '$window')} were bad ({self._judged()}). "
            f"There were at least {percentile_events(self.slo):,}, enough for this percentile."
            f"{what_happens_template(self.options.selector)}",
            (("slo", self.slo.name),),
            link=Link("slo", ("target", "workload", "slo"), promql(3 * window_s)),
        )

    def _no_data(self) -> Alert:
        objective, events = self._exported("objective_ratio"), self._exported("events_total")
        window, slowest = silence_s(self.uses), min(use.rate_per_s for use in self.uses)
        # While an engine that has never answered refuses connections it counts as starting, up to a limit; then LLMTargetFailing fires.
        starting = f"llmslo_target_starting_until_timestamp_seconds{{{self.options.selector}}} > time()"
        # The first successful probes after a start are warm-up and not events.
        wait_for = promql(max(300, 60 * -(-5 // slowest // 60)))
        return Alert(
            "LLMSLONoData",
            "warning",
            f"(max by ({GROUP_LABELS}) ({objective}) > bool 0)\n"
            f"unless\n(sum by ({GROUP_LABELS}) (increase({events}[{promql(window)}])) > 0)\n"
            f"unless on (target)\n({starting})\nunless on (target)\n{firing(FAILING)}\n"
            f"unless on (target, workload)\n{firing('LLMProbeRejected|LLMProbeBudgetExhausted')}\n",
            wait_for,
            f"SLO {self.slo.name} of {{{{ $labels.target }}}} has no data",
            f"No event of workload {{{{ $labels.workload }}}} in {promql(window)}; about {slowest * window:.0f} were due. "
            "The SLO is neither met nor missed.",
            (("slo", self.slo.name),),
            link=Link("slo", ("target", "workload", "slo")),
        )

    def _unless_told(self, window_s: int, severity: str = "") -> str:
        """PromQL `unless` clauses for windows in which LLMTargetFailing or a burn alert of this severity fired for the same events."""
        burn = firing(BURN, f'{severity},slo="{self.slo.name}"')
        return (
            f"unless on (target, workload)\nmax_over_time({burn}[{promql(window_s)}])\n{self._unless_failing(window_s)}"
        )

    def _unless_of_traffic(self, window_s: int, severity: str = "") -> str:
        """PromQL `unless` clause for windows in which an alert of this severity fired for the same SLO over all requests."""
        return self._unless_fired(BURN_OF_TRAFFIC, window_s, severity) if self.has_traffic else ""

    def _unless_fired(self, alert: str, window_s: int, severity: str) -> str:
        fired = firing(alert, f'{severity},slo="{self.slo.name}"')
        return f"\nunless on (target)\nmax_over_time({fired}[{promql(window_s)}])"

    def _unless_failing(self, window_s: int) -> str:
        """PromQL `unless` clause for windows in which LLMTargetFailing fired, which covers their bad events.

        If the target answers now and then, that alert flaps, so the other alerts stay.
        """
        flips = f'changes(llmslo_target_state{{{self.options.selector},state="failing"}}[15m])'
        return (
            f"unless on (target)\n(max_over_time({firing(FAILING)}[{promql(window_s)}])\n"
            f"unless on (target)\n{flips} >= {MIN_FLIPS})"
        )

    def _exported(self, name: str, more: str = "") -> str:
        """PromQL selector of a series that the probers export for this SLO. more: further label matchers"""
        return f'llmslo_slo_{name}{{{self.options.selector}{more},slo="{self.slo.name}"}}'

    def _recorded(self, name: str, more: str = "") -> str:
        return f'{name}{{slo="{self.slo.name}"{more}}}'

    def _increase(self, kind: str, window_s: float) -> str:
        return f"sum by ({self.by}) (increase({self._exported(f'{kind}_total')}[{promql(window_s)}]))"

    def _each(self) -> str:
        """PromQL that divides a number of events by the number of probers, if each of them counts the same events; else ""."""
        return ""

    def _from_vantages(self, kind: str, window_s: float, matchers: str = EVERY_VANTAGE) -> str:
        counter = self._exported(f"{kind}_total", matchers)
        return f"sum by (target, workload, vantage, slo) (increase({counter}[{promql(window_s)}]))"

    def _tile_sum(self, kind: str, window_s: float, matchers: str = "") -> str:
        tiles = self._recorded(f"{RECORDED}_{kind}:tile{self.options.slow}", matchers)
        return f"sum_over_time({tiles}[{promql(window_s)}])"

    def _judged(self) -> str:
        """Text on what a good event is, and on the budget, such as `TTFT up to 500ms; budget 1%`."""
        limit = "" if self.slo.threshold_s is None else f" up to {self.slo.threshold_s * 1e3:g}ms"
        return f"{SIGNAL_NAMES[self.slo.signal]}{limit}; budget {format_percent(self.slo.error_budget_ratio)}"


class _TrafficRules(_SloRules):
    """The same rules over all requests of the engine.

    Replicas and vantages of the prober read the same metrics page; each sidecar reads its own. Shares are computed from the sum over
    all of them, which is right for both. Numbers of events are the mean over the probers, so that no request counts twice.
    """

    __slots__ = ()
    by: ClassVar[str] = TRAFFIC_LABELS

    def _group_name(self) -> str:
        return f"llm-slo-{self.slo.name}:traffic"  # no SLO has such a name

    def _state(self) -> Rule:
        """Rule for the compliance. It is no_data while no page has a bound near the threshold, but not for an hour without requests."""
        return self._state_if(f"max by ({self.by}) ({self._exported('threshold_seconds')})")

    def _pages(self, chosen: Sequence[Pair]) -> Iterator[Alert]:
        # Longer than the three minutes of the probes' page: if both see it, theirs comes first and is the only one.
        yield self._burn_of_traffic("critical", "5m", chosen, ((BURN, PAGES),))

    def _tickets(self, chosen: Sequence[Pair]) -> Iterator[Alert]:
        yield self._burn_of_traffic("warning", "20m", chosen, ((BURN, ""), (BURN_OF_TRAFFIC, PAGES)))

    def _burn_of_traffic(
        self, severity: Severity, wait_for: str, chosen: Sequence[Pair], alerts: Sequence[tuple[str, str]]
    ) -> Alert:
        """The alert on a burn over any of these pairs of windows. alerts: (name, severity) of those that report it already"""
        burning = "\nor\n".join(
            f"{self._burns(pair)}\n{self._unless_failing(pair.short_s)}"
            + "".join(self._unless_fired(alert, pair.short_s, of_severity) for alert, of_severity in alerts)
            for pair in chosen
        )
        labels = ("target",)
        matchers = messages.matchers(labels)
        fired = messages.query(f"topk(1, {' or '.join(self._burns(pair, matchers) for pair in chosen)})", labels=labels)
        bound = messages.query(f"max({self._exported('threshold_seconds', matchers)})", labels=labels)
        bad, events = (
            f"sum(increase({_SloRules._exported(self, f'{kind}_total', matchers)}[%[2]s]))"
            for kind in ("bad_events", "events")
        )
        of_probes = messages.query(f"{bad} / {events}", "$long", labels=labels)
        return Alert(
            BURN_OF_TRAFFIC,
            severity,
            f"max by ({self.by}) (\n{burning}\n)\nand on ({self.by})\n{self._recorded(DECLARED)}\n",
            wait_for,
            f"All requests to {{{{ $labels.target }}}} burn the error budget of SLO {self.slo.name} "
            "{{ printf `%.1f` $value }} times as fast as it allows",
            f"{{{{ range {fired} }}}}{{{{ $long := .Labels.long }}}}{{{{ $short := .Labels.short }}}}"
            f"{messages.bad_share(self._exported, labels)} ({SIGNAL_NAMES[self.slo.signal]} up to "
            f"{{{{ range {bound} }}}}{{{{ .Value | humanizeDuration }}}}{{{{ end }}}} by the engine's own histogram; "
            f"budget {format_percent(self.slo.error_budget_ratio)})."
            f"{{{{ range {of_probes} }}}} Of the probes' events {{{{ .Value | humanizePercentage }}}} were bad in that time."
            "{{ end }}{{ end }} Users may send longer prompts than the probes, want longer answers, or find less in the prefix cache."
            f"{messages.engine(self.options.selector)}{what_happens_template(self.options.selector)}",
            (("slo", self.slo.name), ("source", "traffic")),
            link=Link("slo", ("target", "slo"), promql(3 * chosen[0].long_s)),
        )

    def _each(self) -> str:
        return f" / on ({self.by}) count by ({self.by}) ({self._exported('events_total')})"

    def _exported(self, name: str, more: str = "") -> str:
        return super()._exported(f"traffic_{name}", more)

    def _recorded(self, name: str, more: str = "") -> str:
        return super()._recorded(of_traffic(name), more)

    def _record(self, name: str, expr: str, **labels: str) -> Rule:
        return super()._record(of_traffic(name), expr, source="traffic", **labels)


def _number(value: Decimal) -> str:
    return f"{value.normalize():f}"

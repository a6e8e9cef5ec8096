// The dashboards, recording rules and alerts of llm-slo-prober for those who deploy them by jsonnet. They are the generated files of
// this repository; only the links of alerts depend on _config. Load the rules once per Prometheus.
{
  _config+:: {
    proberUrl: 'http://llm-slo-prober:9742',
    runbookUrl: self.proberUrl + '/runbooks',
    grafanaUrl: 'http://grafana:3000',
  },

  local config = self._config,
  local generated = importstr 'rules.yaml',
  local linked = std.foldl(function(text, link) std.strReplace(text, link[0], link[1]), [
    ['runbook_url: http://llm-slo-prober:9742/runbooks/', 'runbook_url: ' + config.runbookUrl + '/'],
    ['prober_url: http://llm-slo-prober:9742/', 'prober_url: ' + config.proberUrl + '/'],
    ['dashboard_url: http://grafana:3000/', 'dashboard_url: ' + config.grafanaUrl + '/'],
  ], generated),
  local groups = std.parseYaml(linked).groups,
  // A group with alerts keeps its recording rules, which have to be evaluated just before them.
  local hasAlerts(group) = std.length([rule for rule in group.rules if 'alert' in rule]) > 0,

  prometheusAlerts+:: { groups+: [group for group in groups if hasAlerts(group)] },
  prometheusRules+:: { groups+: [group for group in groups if !hasAlerts(group)] },
  grafanaDashboards+:: {
    'llm-slo-capacity.json': import '../../dashboards/capacity.json',
    'llm-slo-drift.json': import '../../dashboards/drift.json',
    'llm-slo-engine.json': import '../../dashboards/engine.json',
    'llm-slo-overview.json': import '../../dashboards/overview.json',
    'llm-slo-budget.json': import '../../dashboards/slo.json',
    'llm-slo-target.json': import '../../dashboards/target.json',
  },
}

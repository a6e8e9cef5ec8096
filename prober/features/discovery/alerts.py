"""Alerts on discovery."""

from prober.exposition.alerting import Alert


def alerts(selector: str) -> tuple[Alert, ...]:
    """Alerts on sources that cannot be read and on targets that are not probed."""
    return (
        Alert(
            "LLMDiscoveryDown",
            "warning",
            f"count by (discovery) (llmslo_discovery_up{{{selector}}} == 0)\n",
            "10m",
            "The source of discovery {{ $labels.discovery }} does not answer",
            "{{ $value }} probers cannot read its source, or not all of it. Known targets are still probed; new engines may be "
            "missed. The log of each prober has the error.",
        ),
        Alert(
            "LLMDiscoveryTargetsRefused",
            "warning",
            f'max by (discovery, reason) (llmslo_discovery_refused_targets{{{selector},reason!="duplicate"}}) > 0\n',
            "15m",
            "The discovery {{ $labels.discovery }} finds targets that are not probed",
            "{{ $value }} targets were found and are not probed, reason {{ $labels.reason }} (limit: more than the entry's `limit`; "
            "unfit: invalid address or name, or a host that is not allowed). The log of the prober names them.",
        ),
    )

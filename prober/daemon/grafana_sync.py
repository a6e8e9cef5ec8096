"""Process of one synchronisation with Grafana, started as `python -m prober.daemon.grafana_sync`."""

from prober.daemon.dashboards import documents
from prober.features.grafana.client.sync import main

if __name__ == "__main__":
    main(lambda: documents().values())

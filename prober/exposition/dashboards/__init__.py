"""Parts of Grafana dashboards: queries, panels and the grid. Each feature builds its own panels from them."""

"""SLOs: recording rules, burn-rate alerts, and the status of each SLO."""

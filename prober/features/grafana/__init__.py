"""Dashboards for Grafana, and the synchronisation of dashboards and annotations."""

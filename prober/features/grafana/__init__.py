"""Synchronisation of dashboards and annotations with Grafana."""

"""Targets from files, servers, DNS and Kubernetes, joined with the configured ones."""

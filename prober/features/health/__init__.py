"""Answers of `/health/TARGET`, which tell load balancers, gateways and kubelets if a target generates."""

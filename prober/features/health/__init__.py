"""Answers of `/health/TARGET`: whether a target generates, for load balancers, gateways and kubelets."""

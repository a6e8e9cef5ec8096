"""`/health/TARGET`: tells load balancers, gateways and kubelets whether a target generates."""

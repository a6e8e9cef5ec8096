"""Sweeps, the rate up to which the SLOs hold, demand, headroom and its forecast."""

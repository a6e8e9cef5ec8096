"""Sweeps, the rates up to which SLOs hold, demand, headroom and its forecast."""

"""Objectives: what is judged, which probes are events, and which alerts they can fire."""

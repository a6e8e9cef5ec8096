"""Sending probes when they are due, whatever became of the ones before."""

"""GPUs of this machine, read through NVML."""

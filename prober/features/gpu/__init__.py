"""GPUs of this machine, read through the libraries of NVIDIA (NVML) and AMD (AMD SMI)."""

"""The prober's own page: values in, HTML out, piece by piece."""

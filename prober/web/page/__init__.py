"""The prober's own pages: rendered from values to HTML, piece by piece."""

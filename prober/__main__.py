"""`python -m prober`."""

from prober.cli.main import main

main()

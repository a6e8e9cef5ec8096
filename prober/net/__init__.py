"""The network, one system a file. Thin: the modules above decide what an answer means."""

"""Network clients, one system per file. They return answers; the modules above interpret them."""

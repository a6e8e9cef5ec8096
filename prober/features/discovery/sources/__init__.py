"""Sources of targets: files, a server, DNS, a cluster. Only the modules in use are loaded."""

"""Where targets are found: in files, on a server, in DNS, in a cluster. One module each; only those in use are loaded."""

"""What an experiment came to, as data: kept, read again, and read from other tools' files."""

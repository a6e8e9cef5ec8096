"""Detection of checked answers that are wrong more often than before."""

"""Other tools' files, one tool a module: what they mean in our terms, and where their figures mean something else."""

"""What the user wants: YAML in; frozen specifications out, or every mistake at once, each with its path."""

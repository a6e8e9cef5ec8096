"""Reports of results as Markdown, HTML and CSV."""

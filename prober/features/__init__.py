"""Features of the product, a folder for each feature. Features do not import each other."""

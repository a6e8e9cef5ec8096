"""What the product does, a folder for each feature. Features do not import each other."""

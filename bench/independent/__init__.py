"""Data that judge the product, written without its code."""

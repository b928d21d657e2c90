"""Pictures: one module per noun. Each function returns a matplotlib Figure; only the command line writes files."""

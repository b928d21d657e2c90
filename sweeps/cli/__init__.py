"""`scale sweep` and `scale status`. Torch-free: training happens in processes of its own."""

"""Training sweeps: grid, store, runner and executors are torch-free; model, recipe and training are not."""

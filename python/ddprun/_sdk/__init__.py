"""What a worker has beside operations: store, metrics, samplers, checkpoints, timers."""

"""Neural market model: data, network, training, sampling, baselines and validation."""

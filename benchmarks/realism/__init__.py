"""Train-on-synthetic, test-on-real benchmark of market generators."""

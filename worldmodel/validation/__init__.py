"""Out-of-sample validation of market models."""

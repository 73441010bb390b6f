"""A typed expression language for strategies, and the evaluation of thousands of programs as tensors."""

"""Text interface of the agent-based market."""

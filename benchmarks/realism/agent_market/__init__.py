"""How real the agent-based market is: its statistics beside real markets' and a zero-intelligence model's."""

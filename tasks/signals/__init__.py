"""Trading on scores of documents: sentiment and risk in the state, the action and the reward."""

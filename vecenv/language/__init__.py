"""Language models as agents: conversations, batched generation, and learning from them. Needs ``vecenv[language]``."""

"""What is financial about evaluation: accounts, measures with intervals, references, pictures and recorded markets."""

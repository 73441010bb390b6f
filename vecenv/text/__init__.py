"""Text interface of language agents: rendering, parsing, tool calls and turns."""

"""Studies: what agents learn and how real markets are. A YAML file is a matrix of commands, a module needs code."""

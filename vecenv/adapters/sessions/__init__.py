"""Sessions that are rows of one world, whatever protocol they speak: pools of rows, names of episodes, a web server."""

"""The loop: one for all methods and problems, timed by section, recorded line by line, resumed bit by bit."""

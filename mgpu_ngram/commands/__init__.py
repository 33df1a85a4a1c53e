"""The commands of the command line, one module each: `add(verbs)` makes its parser, and a function runs it."""

"""KenLM's binary files and lmplz's intermediate files."""

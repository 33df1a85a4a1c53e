"""The tables of the systems' papers, measured again."""

"""The stages, one module each, behind one contract. See docs/add-a-stage.md."""

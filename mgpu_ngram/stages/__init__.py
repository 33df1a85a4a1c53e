"""The stages: what a user can ask for, one module each, behind one contract. See docs/add-a-stage.md."""

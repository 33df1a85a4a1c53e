"""Devices, budgets, copies and spills: all that knows how much memory a task may take."""

"""Accuracy of the performance model on published measurements: tables, read into one kind of row."""

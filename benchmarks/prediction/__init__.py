"""Accuracy of run-time predictions, compared with simple methods and gradient-boosted trees."""

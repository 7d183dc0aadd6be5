"""What Refold is measured against."""

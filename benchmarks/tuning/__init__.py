"""What `refold tune` gains on published traces, and how its search compares with others."""

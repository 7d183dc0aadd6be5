"""What is watched: the output of runs, and the GPUs of the machine."""

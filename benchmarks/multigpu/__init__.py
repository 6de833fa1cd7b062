"""Two GPUs of one host in one session, against one, and against the driver alone."""

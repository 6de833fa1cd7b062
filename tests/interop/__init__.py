"""Arrays, streams and kernels of other libraries, where no GPU is needed."""

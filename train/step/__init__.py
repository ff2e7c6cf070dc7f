"""One gradient step in plain torch, and the process it runs in: device and threads."""

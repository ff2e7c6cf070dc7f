"""One gradient step in torch (read `plain` first), and the process that takes steps."""

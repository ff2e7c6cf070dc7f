"""The engine for GPUs: everything on the device, nothing drawn, gathered or stored by the host in a step."""

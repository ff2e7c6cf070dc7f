"""Outputs of GraphStorm -> tables keyed by raw id: GraphStorm's remap command, safe against kills."""

"""Search of a configuration for a graph, by short trainings on a dense part of it: `graphmill tune`."""

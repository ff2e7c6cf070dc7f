"""`graphmill export`: the vectors of a run, smaller if wanted, in the formats that other systems load."""

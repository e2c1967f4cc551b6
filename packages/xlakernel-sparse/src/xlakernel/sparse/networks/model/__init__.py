"""Parts of a network: populations, projections, inputs, rules and recordings."""

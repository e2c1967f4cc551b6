"""What a network is made of: populations, projections, inputs, rules and recordings."""

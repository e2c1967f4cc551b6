"""Random numbers of neurons, counted by key, neuron, step and draw."""

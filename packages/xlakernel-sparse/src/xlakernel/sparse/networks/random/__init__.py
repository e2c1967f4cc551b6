"""Random numbers of neurons, each determined by key, neuron, step and draw."""

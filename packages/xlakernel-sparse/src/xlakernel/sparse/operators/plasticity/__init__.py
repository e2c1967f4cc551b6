"""Changes of the weights of active rows or columns, in place: the updates and rules of synaptic plasticity."""

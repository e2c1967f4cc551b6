"""How operators are batched and differentiated."""

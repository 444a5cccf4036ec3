"""What the three parts share; it imports none of them."""
